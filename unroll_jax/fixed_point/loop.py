"""One loop for z = f(z) and for w = v + J^T w: plain steps, then a solver's where
plain ones are slow."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.reports import ROUND_OFF, EquilibriumInfo
from unroll_jax.fixed_point.sizes import (
    Rule,
    Sizes,
    filled,
    judge,
    largest,
    measure,
    per_row,
)
from unroll_jax.placement import vary_like

__all__ = ["Map", "Point", "Solver", "iterate"]

# a map of each row, all rows at once
Map = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]

# checks without a better residual, near round-off, after which there is none to be had
PATIENCE = 10
MIN_REDUCTION = 1.25  # times smaller, a plain step must make every residual to be quick
CHECK_INTERVAL = 4  # plain steps between two checks of residuals
# checks: plain steps continue if so many more at the last rate reach the tolerance
NEAR = 8
# times its least squared residual, beyond which a row returns to its best state
MAX_RISE = 4.0
# times smaller is the squared gap of a state on its way to 0, than where its plateau
# began
SHRUNK = 16.0
TRIAL = 10  # accelerated steps between two comparisons with plain ones
# share of the squared residual of plain steps, that accelerated ones must reach by then
MIN_GAIN = 0.25

_ENDED, _PLAIN, _SOLVER = 0, 1, 2


class Point(NamedTuple):
    """The state of an iteration, as a `Solver` sees it.

    Attributes:
      z, fz: states with examples as rows, and f(z).
      residual: relative residual of each row.
      unit: size of each row's largest entry: z / unit has squares that neither under-
        nor overflow.
      active: rows that have not ended.
      restart: rows that return to their best state, for which earlier points no longer
        count.
      number: updates so far.

    Example:
      >>> import jax.numpy as jnp
      >>> z, fz, one = jnp.ones((1, 2)), jnp.zeros((1, 2)), jnp.ones(1)
      >>> point = Point(
      ...     z, fz, one, one, active=one > 0, restart=one < 0, number=jnp.array(1)
      ... )
      >>> (0.5 * (point.z + point.fz)).tolist()  # from here, a damped step
      [[0.5, 0.5]]
    """

    z: Float[Array, "b m"]
    fz: Float[Array, "b m"]
    residual: Float[Array, " b"]
    unit: Float[Array, " b"]
    active: Bool[Array, " b"]
    restart: Bool[Array, " b"]
    number: Int[Array, ""]


class Solver(NamedTuple):
    """A fixed-point iteration on states (b, m), as pure functions.

    Attributes:
      init: ``z -> memory``, a pytree whose leaves lead with the example axis.
      update: ``(point, memory) -> (z', memory')``; None if the solver is ``whole``.
      symmetric: whether it needs a map whose Jacobian is symmetric.
      extrapolates: whether its states may be far from all before. Plain steps, z' =
        f(z), then come first, as long as they contract quickly, and a row whose
        residual rises too far returns to its best state.
      whole: ``(f, z, tol, max_steps) -> (z, steps)`` in place of the two, for loops
        that are not ours and those that do not stop on a residual; steps unrolled for
        autodiff are ``update`` all the same.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax import equilibrium
      >>> halfway = Solver(
      ...     lambda z: (), lambda point, memory: (0.5 * (point.z + point.fz), memory)
      ... )
      >>> z, _ = equilibrium(
      ...     lambda w, z, x: 1.0 - w * z,
      ...     1.0,
      ...     jnp.zeros(()),
      ...     solver=halfway,
      ...     batch_ndim=0,
      ... )
      >>> round(float(z), 3)  # plain steps go 0, 1, 0, 1
      0.5
    """

    init: Callable[[Float[Array, "b m"]], Any]
    update: Callable[[Point, Any], tuple[Float[Array, "b m"], Any]] | None
    symmetric: bool = False
    extrapolates: bool = False
    whole: (
        Callable[
            [Map, Float[Array, "b m"], float, int],
            tuple[Float[Array, "b m"], Int[Array, " b"]],
        ]
        | None
    ) = None


class _Pace(NamedTuple):
    """The choice between plain steps and the solver's; residuals and rates are
    squares."""

    phase: Int[Array, ""]
    turns: Int[Array, ""]  # plain steps until the next check
    trial: Int[Array, ""]  # accelerated steps since the last comparison
    given_up: Bool[Array, ""]
    base: Float[Array, " b"]  # residual at that comparison
    rate: Float[Array, " b"]  # of the residual in the last plain steps, per step
    growth: Float[Array, " b"]  # of |f(z) - z| in the last plain steps, per step


class _Best(NamedTuple):
    z: Float[Array, "b m"]
    # |f(z) - z|^2 of the point before it, in units of the row's scale
    gap: Float[Array, " b"]
    residual: Float[Array, " b"]
    restarted: Bool[Array, " b"]  # at the last update


class _Carry(NamedTuple):
    k: Int[Array, ""]
    z: Float[Array, "b m"]
    residual: Float[Array, " b"]  # squared, as all sizes are
    gap: Float[Array, " b"]
    scale: Float[Array, " b"]
    active: Bool[Array, " b"]
    steps: Int[Array, " b"]
    pace: _Pace
    best: _Best
    memory: Any
    # least residual and checks since, where round-off may come before the tolerance
    stall: tuple[Array, Array] | None
    # residual and gap where the residual last halved, see `_vanishing`
    plateau: tuple[Array, Array] | None


def iterate(
    apply: Map, z: Float[Array, "b m"], solver: Solver, rule: Rule
) -> tuple[Array, EquilibriumInfo]:
    """``(y, info)``: for every row of z = f(z) f of the state that met the
    tolerance, or else of the best one."""
    if solver.whole is not None:
        end, steps = solver.whole(apply, z, rule.tol, rule.max_steps)
        fz = apply(end)
        sizes = measure(
            rule,
            fz,
            end,
            jnp.fmax(largest(z), largest(apply(z))),
            first=False,
            frozen=True,
        )
        return fz, judge(rule, sizes.residual, steps)
    end = jax.lax.while_loop(
        lambda c: (c.pace.phase > _ENDED) & (c.k < rule.max_steps),
        functools.partial(_turn, apply, solver, rule),
        _begin(z, solver, rule),
    )
    missed = ~(end.residual <= rule.tol**2)
    back = missed & ~(end.gap <= end.best.gap) & (end.steps > 1)  # NaN in, NaN out
    residual = jnp.where(back, end.best.residual, end.residual)
    # at the cap, a state that goes to 0 may be within tol of its scale
    if end.plateau is not None:
        near_zero = (
            missed & (end.gap <= end.plateau[1] / SHRUNK) & (end.gap <= rule.tol**2)
        )
        residual = jnp.where(near_zero, end.gap, residual)
    return per_row(back, end.best.z, end.z), judge(
        rule, residual, end.steps, lost=~(end.residual < jnp.inf)
    )


def _begin(z: Array, solver: Solver, rule: Rule) -> _Carry:
    infinite, none, no = filled(z, jnp.inf), filled(z, 0), jnp.zeros((), bool)
    # residual of 0, from which v is the first step
    first = filled(z, 1.0) if rule.linear else infinite
    scalar = lambda value: jnp.asarray(value, jnp.int32)
    phase = _PLAIN if solver.extrapolates else _SOLVER
    carry = _Carry(
        scalar(0),
        z,
        first,
        first,
        largest(z),
        filled(z, True),
        none,
        _Pace(scalar(phase), scalar(1), scalar(0), no, infinite, infinite, infinite),
        _Best(z, infinite, infinite, filled(z, False)),
        solver.init(z),
        (infinite, none) if rule.tol < ROUND_OFF * rule.epsilon else None,
        None if rule.linear or rule.atol is not None else (infinite, infinite),
    )
    return vary_like(carry, z)


def _turn(apply: Map, solver: Solver, rule: Rule, c: _Carry) -> _Carry:
    """Plain steps or one step of the solver's, one check of all rows, and the plan
    of the next turn."""
    before, fz = _evaluate(apply, solver, c)
    accelerated = (c.pace.phase == _SOLVER) & solver.extrapolates
    sizes = measure(rule, fz, before, c.scale, first=c.k == 0, frozen=accelerated)
    residual, plateau, stall = sizes.residual, c.plateau, c.stall
    if plateau is not None:
        residual, plateau = _vanishing(rule, sizes, plateau)
    sound = (residual < jnp.inf) | ((c.best.gap < jnp.inf) & solver.extrapolates)
    more = c.active & ~(residual <= rule.tol**2) & sound
    if stall is not None:
        stall = (
            jnp.fmin(stall[0], residual),
            jnp.where(residual < stall[0], 0, stall[1] + 1),
        )
        more = more & ~(
            (stall[1] >= PATIENCE) & (stall[0] <= (ROUND_OFF * rule.epsilon) ** 2)
        )
    k = c.k + c.pace.turns
    state = c.best, c.memory, fz
    if solver.extrapolates:
        pace = _plan(rule, c, sizes, residual, more, k)
        update = functools.partial(
            _update, solver, sizes, before, fz, c, more, pace.growth
        )
        state = _once((pace.phase == _SOLVER) & (k < rule.max_steps), update, state)
    else:
        pace = c.pace._replace(
            phase=jnp.where(jnp.any(more), _SOLVER, _ENDED).astype(jnp.int32)
        )
        state = _update(solver, sizes, before, fz, c, more, pace.growth, state)
    best, memory, after = state
    residual, gap = (
        jnp.where(c.active, residual, c.residual),
        jnp.where(c.active, sizes.gap, c.gap),
    )
    steps, z = (
        c.steps + c.pace.turns * c.active,
        per_row(more & (k < rule.max_steps), after, fz),
    )
    return _Carry(
        k,
        z,
        residual,
        gap,
        sizes.scale,
        more,
        steps,
        pace,
        best,
        memory,
        stall,
        plateau,
    )


def _evaluate(apply: Map, solver: Solver, c: _Carry) -> tuple[Array, Array]:
    """The last two states after ``turns`` plain steps; rows that have ended stay."""

    def plain_step(_: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        return pair[1], per_row(c.active, apply(pair[1]), pair[1])

    if not solver.extrapolates:
        return plain_step(None, (c.z, c.z))
    return jax.lax.fori_loop(0, c.pace.turns, plain_step, (c.z, c.z))


def _update(
    solver: Solver,
    sizes: Sizes,
    z: Array,
    fz: Array,
    c: _Carry,
    more: Array,
    growth: Array,
    state: Any,
) -> tuple[_Best, Any, Array]:
    """The best states so far, and the solver's next ones; rows whose gap has risen
    too far return to their best."""
    assert solver.update is not None
    best, memory, _ = state
    allowed = MAX_RISE * jnp.fmax(growth, 1.0) * best.gap
    restart = (
        more
        & ~(sizes.gap <= allowed)
        & (best.gap < jnp.inf)
        & ~best.restarted
        & solver.extrapolates
    )
    after, memory = solver.update(
        Point(z, fz, jnp.sqrt(sizes.residual), sizes.unit, more, restart, c.k), memory
    )
    after = per_row(restart, best.z, after) if solver.extrapolates else after
    better = c.active & (sizes.gap < best.gap)
    gap, residual = (
        jnp.where(better, sizes.gap, best.gap),
        jnp.where(better, sizes.residual, best.residual),
    )
    return _Best(per_row(better, fz, best.z), gap, residual, restart), memory, after


def _plan(
    rule: Rule, c: _Carry, sizes: Sizes, residual: Array, more: Array, k: Array
) -> _Pace:
    """The next turn: plain steps while they are quick, then the solver's until plain
    ones do as well."""
    pace, bound = c.pace, rule.tol**2
    rate = residual / c.residual  # over the last turn
    near = rate**NEAR * residual <= bound
    quick = rate < MIN_REDUCTION ** (-2 * CHECK_INTERVAL)
    slow = (pace.turns == CHECK_INTERVAL) & ~quick & ~near | ~(rate < 1.0)
    accelerated = pace.phase == _SOLVER
    trial = jnp.where(accelerated, pace.trial + 1, 0)

    def per_step(ratio):
        return jnp.where(pace.turns == CHECK_INTERVAL, jnp.sqrt(jnp.sqrt(ratio)), ratio)

    plain_rate = jnp.where(accelerated, pace.rate, per_step(rate))
    rise = sizes.gap / c.gap * jnp.where(c.scale > 0.0, sizes.scale / c.scale, 1.0) ** 2
    growth = jnp.where(accelerated, pace.growth, per_step(rise))
    compare = trial == TRIAL
    gained = residual < MIN_GAIN * pace.base * plain_rate**TRIAL
    far = rate * residual > bound
    # One reduction over rows: which of the four hold in an active row.
    conditions = jnp.stack([more, more & slow, more & gained, more & far])
    any_active, any_slow, any_gained, any_far = jnp.any(conditions, axis=1)
    given_up = pace.given_up | (compare & ~any_gained)
    base = jnp.where((trial == 0) | compare, residual, pace.base)
    wanted = jnp.where(
        given_up, _PLAIN, jnp.where(any_slow & ~pace.given_up, _SOLVER, pace.phase)
    )
    phase = jnp.where(any_active, wanted, _ENDED)
    often = (phase == _PLAIN) & (any_far | (pace.turns == 1))
    turns = jnp.minimum(
        jnp.where(often, CHECK_INTERVAL, 1), jnp.maximum(rule.max_steps - k, 1)
    )
    trial = jnp.where(compare, 0, trial)
    phase, turns, trial = (count.astype(jnp.int32) for count in (phase, turns, trial))
    return _Pace(phase, turns, trial, given_up, base, plain_rate, growth)


def _vanishing(
    rule: Rule, sizes: Sizes, plateau: tuple[Array, Array]
) -> tuple[Array, tuple[Array, Array]]:
    """The residuals of rows, relative to their scale where they have gone to 0; where
    the last plateau began.

    On the way to 0 a relative residual is meaningless: it is constant, 1 / c - 1 for
    f(z) = c z. There gap and state have shrunk to a quarter since the residual last
    halved. Near another fixed point z* they stop, about 2 |z*| from 0.
    """
    level, height = plateau
    halved = (sizes.residual <= 0.25 * level) | (level == jnp.inf)
    level, height = (
        jnp.where(halved, sizes.residual, level),
        jnp.where(halved, sizes.gap, height),
    )
    ended = (sizes.gap <= height / SHRUNK) & (
        sizes.gap <= min(rule.tol, 0.5 * rule.epsilon) ** 2
    )
    return jnp.where(ended, sizes.gap, sizes.residual), (level, height)


def _once(condition: Array, function: Callable[[Any], Any], state: Any) -> Any:
    """``function(state)`` if ``condition``. A while_loop, not cond: vmap runs both
    branches of cond."""
    body = lambda pair: (function(pair[0]), pair[1] & False)
    return jax.lax.while_loop(lambda pair: pair[1], body, (state, condition))[0]
