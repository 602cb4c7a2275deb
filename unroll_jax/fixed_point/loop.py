"""One loop for z = f(z) and for w = v + J^T w.

It takes plain steps, then a solver's where plain ones are slow.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.rows import largest, per_row, row_constant
from unroll_jax.fixed_point.solver import Map, Point, Solver
from unroll_jax.fixed_point.status import EquilibriumInfo
from unroll_jax.fixed_point.stopping import (
    ROUND_OFF,
    Sizes,
    Stall,
    StopRule,
    check_stall,
    measure,
    outcome,
)
from unroll_jax.placement import vary_like

__all__ = ["iterate"]

# Plain steps are quick if each makes every residual this many times smaller.
MIN_REDUCTION = 1.25
# Plain steps between two checks of residuals.
CHECK_INTERVAL = 4
# Plain steps continue if so many more blocks at the last rate reach the tolerance.
NEAR = 8
# A row returns to its best state if its squared gap rises beyond this many times the
# least.
MAX_RISE = 4.0
# Factor by which the squared gap must fall on a plateau of the residual, for a row to
# count as converging to 0.
MIN_SHRINKAGE = 16.0
# Accelerated steps between two comparisons with plain ones.
TRIAL = 10
# By then the squared residual must be this share of that of plain steps.
MIN_GAIN = 0.25

_ENDED, _PLAIN, _SOLVER, _GIVEN_UP = 0, 1, 2, 3


class _Schedule(NamedTuple):
    """The next block of steps. Residuals and rates are squares.

    A block is one or more plain steps, or one step of the solver. All rows are checked
    at its end.

    Attributes:
      phase: the end, plain steps, the solver's, or plain ones for good.
      block: evaluations in the next block.
      trial: accelerated steps since the last comparison with plain ones.
      base: residual at that comparison.
      plain_rate: factor of the residual in a plain step, as last seen.
      plain_growth: the same of |f(z) - z|.
    """

    phase: Int[Array, ""]
    block: Int[Array, ""]
    trial: Int[Array, ""]
    base: Float[Array, " b"]
    plain_rate: Float[Array, " b"]
    plain_growth: Float[Array, " b"]


class _Best(NamedTuple):
    """The best state of each row.

    Attributes:
      z: f of the state with the least gap.
      gap: squared |f(z) - z| of that state, in units of the row's scale.
      residual: its squared residual.
      restarted: rows that returned to their best state at the last update.
    """

    z: Float[Array, "b m"]
    gap: Float[Array, " b"]
    residual: Float[Array, " b"]
    restarted: Bool[Array, " b"]


class _Plateau(NamedTuple):
    """Residual and gap where the residual last halved."""

    residual: Float[Array, " b"]
    gap: Float[Array, " b"]


class _Carry(NamedTuple):
    """The state of the loop. Residuals and gaps are squares.

    Attributes:
      number: evaluations so far.
      stall: kept only where round-off may come before the tolerance.
      plateau: kept only where states that go to 0 count as converged.
    """

    number: Int[Array, ""]
    z: Float[Array, "b m"]
    residual: Float[Array, " b"]
    gap: Float[Array, " b"]
    scale: Float[Array, " b"]
    active: Bool[Array, " b"]
    steps: Int[Array, " b"]
    schedule: _Schedule
    best: _Best
    memory: Any
    stall: Stall | None
    plateau: _Plateau | None


def iterate(
    apply: Map, z: Float[Array, "b m"], solver: Solver, rule: StopRule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """Returns y = f(z) and the outcome of each row.

    z is the first state within tolerance, or the best one.
    """
    if solver.run is not None:
        return _run_whole(apply, z, solver.run, rule)

    end = jax.lax.while_loop(
        lambda carry: (carry.schedule.phase > _ENDED) & (carry.number < rule.max_steps),
        functools.partial(_run_block, apply, solver, rule),
        _start(z, solver, rule),
    )
    return _finish(rule, end)


def _run_whole(
    apply: Map, z: Float[Array, "b m"], run: Callable[..., Any], rule: StopRule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """The result of a complete solve. Nothing is known of its way.

    So a row that has missed the tolerance does not count as stalled at round-off.
    """
    first = largest(apply(z))
    end, steps = run(apply, z, rule.tol, rule.max_steps)
    fz = apply(end)
    scale = jnp.fmax(largest(z), first)
    sizes = measure(rule, fz, end, scale, first=False, frozen=True)
    # A row that was lost at once ended there, whatever the others took.
    steps = jnp.where(first < jnp.inf, steps, jnp.minimum(steps, 1))
    return fz, outcome(rule, sizes.residual, steps)


def _start(z: Float[Array, "b m"], solver: Solver, rule: StopRule) -> _Carry:
    infinite = row_constant(z, jnp.inf)
    zeros = row_constant(z, 0)
    schedule = _Schedule(
        phase=jnp.int32(_PLAIN),
        block=jnp.int32(1),
        trial=jnp.int32(0),
        base=infinite,
        plain_rate=infinite,
        plain_growth=infinite,
    )
    # A linear system has had one step: v, from a residual of 1 at w = 0.
    first = row_constant(z, 1.0) if rule.linear else infinite
    to_round_off = rule.tol < ROUND_OFF * rule.epsilon
    to_zero = not rule.linear and rule.atol is None
    carry = _Carry(
        number=jnp.int32(0),
        z=z,
        residual=first,
        gap=first,
        scale=largest(z),
        active=row_constant(z, True),
        steps=zeros,
        schedule=schedule,
        best=_Best(z, infinite, infinite, row_constant(z, False)),
        memory=solver.init(z),
        stall=Stall(infinite, zeros) if to_round_off else None,
        plateau=_Plateau(infinite, infinite) if to_zero else None,
    )
    return vary_like(carry, z)


def _finish(rule: StopRule, end: _Carry) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """The last state of each row, or its best one if that is better."""
    missed = ~(end.residual <= rule.tol**2)
    # NaN in, NaN out: a row that was lost at its first step has no best state.
    back = missed & ~(end.gap <= end.best.gap) & (end.steps > 1)
    residual = jnp.where(back, end.best.residual, end.residual)

    # At the cap, a state that goes to 0 may be within tol of its scale.
    if end.plateau is not None:
        near_zero = missed & _is_near_zero(end.gap, end.plateau, rule.tol)
        residual = jnp.where(near_zero, end.gap, residual)

    lost = ~(end.residual < jnp.inf)
    info = outcome(rule, residual, end.steps, stalled=~end.active, lost=lost)
    return per_row(back, end.best.z, end.z), info


def _run_block(apply: Map, solver: Solver, rule: StopRule, carry: _Carry) -> _Carry:
    """One block of steps, one check of all rows, and the schedule of the next block."""
    z, fz = _evaluate(apply, solver, carry)
    frozen = carry.schedule.phase == _SOLVER
    sizes = measure(rule, fz, z, carry.scale, first=carry.number == 0, frozen=frozen)
    residual = sizes.residual
    plateau = carry.plateau
    if plateau is not None:
        residual, plateau = _check_zero(rule, sizes, plateau)

    # A row that leaves the range may return to its best state.
    usable = (residual < jnp.inf) | ((carry.best.gap < jnp.inf) & solver.extrapolates)
    active = carry.active & ~(residual <= rule.tol**2) & usable
    stall = carry.stall
    if stall is not None:
        stall, stalled = check_stall(rule, stall, residual, fz)
        active = active & ~stalled

    number = carry.number + carry.schedule.block
    schedule = _plan_block(rule, solver, carry, sizes, residual, active, number)
    growth = schedule.plain_growth
    update = functools.partial(_update, solver, carry, sizes, z, active, growth)
    if solver.extrapolates:
        accelerate = (schedule.phase == _SOLVER) & (number < rule.max_steps)
        update = functools.partial(_run_if, accelerate, update)
    best, memory, after = update((carry.best, carry.memory, fz))

    goes_on = active & (number < rule.max_steps)
    return _Carry(
        number=number,
        z=per_row(goes_on, after, fz),
        residual=jnp.where(carry.active, residual, carry.residual),
        gap=jnp.where(carry.active, sizes.gap, carry.gap),
        scale=sizes.scale,
        active=active,
        steps=carry.steps + jnp.where(carry.active, carry.schedule.block, 0),
        schedule=schedule,
        best=best,
        memory=memory,
        stall=stall,
        plateau=plateau,
    )


def _evaluate(apply: Map, solver: Solver, carry: _Carry) -> tuple[Array, Array]:
    """The last two states of a block of plain steps; rows that have ended stay."""

    def plain_step(_: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        _, z = pair
        return z, per_row(carry.active, apply(z), z)

    pair = carry.z, carry.z
    if not solver.extrapolates:
        return plain_step(None, pair)
    return jax.lax.fori_loop(0, carry.schedule.block, plain_step, pair)


def _update(
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    z: Array,
    active: Array,
    growth: Array,
    state: tuple[_Best, Any, Array],
) -> tuple[_Best, Any, Array]:
    """The best states so far, the solver's memory and its next states.

    Rows whose gap has risen too far return to their best state.
    """
    assert solver.update is not None
    best, memory, fz = state
    # Plain steps may raise the gap too, by no fault of the solver.
    allowed = MAX_RISE * jnp.fmax(growth, 1.0) * best.gap
    risen = ~(sizes.gap <= allowed) & solver.extrapolates
    restart = active & risen & (best.gap < jnp.inf) & ~best.restarted

    residual = jnp.sqrt(sizes.residual)
    point = Point(z, fz, residual, sizes.unit, active, restart, carry.number)
    after, memory = solver.update(point, memory)
    after = per_row(restart, best.z, after)

    better = carry.active & (sizes.gap < best.gap)
    best = _Best(
        z=per_row(better, fz, best.z),
        gap=jnp.where(better, sizes.gap, best.gap),
        residual=jnp.where(better, sizes.residual, best.residual),
        restarted=restart,
    )
    return best, memory, after


def _plan_block(
    rule: StopRule,
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    residual: Array,
    active: Array,
    number: Array,
) -> _Schedule:
    """Plain steps while they are quick, then the solver's until plain ones do as well.

    A solver that does not extrapolate takes its own steps to the end.
    """
    schedule = carry.schedule
    if not solver.extrapolates:
        phase = jnp.where(jnp.any(active), _PLAIN, _ENDED)
        return schedule._replace(phase=phase.astype(jnp.int32))
    bound = rule.tol**2
    accelerated = schedule.phase == _SOLVER
    several = schedule.block == CHECK_INTERVAL

    # The pace of plain steps.
    rate = residual / carry.residual
    rescaled = jnp.where(carry.scale > 0.0, sizes.scale / carry.scale, 1.0)
    rise = sizes.gap / carry.gap * rescaled**2
    share = jnp.where(several, 1.0 / CHECK_INTERVAL, 1.0)
    plain_rate = jnp.where(accelerated, schedule.plain_rate, rate**share)
    growth = jnp.where(accelerated, schedule.plain_growth, rise**share)

    # Accelerate if a row is slow, unless few more blocks at this rate will do.
    near = rate**NEAR * residual <= bound
    quick = rate < MIN_REDUCTION ** (-2 * CHECK_INTERVAL)
    rises = ~(rate < 1.0)
    slow = several & ~quick & ~near | rises
    far = rate * residual > bound

    # Give acceleration up if a trial gains little on plain steps in every row.
    trial = jnp.where(accelerated, schedule.trial + 1, 0)
    compare = trial == TRIAL
    gained = residual < MIN_GAIN * schedule.base * plain_rate**TRIAL

    # One reduction over rows: which of these hold in an active row.
    conditions = jnp.stack([active, active & slow, active & gained, active & far])
    any_active, any_slow, any_gained, any_far = jnp.any(conditions, axis=1)
    given_up = (schedule.phase == _GIVEN_UP) | (compare & ~any_gained)
    trial = jnp.where(compare, 0, trial)

    phase = jnp.where(any_slow, _SOLVER, schedule.phase)
    phase = jnp.where(given_up, _GIVEN_UP, phase)
    phase = jnp.where(any_active, phase, _ENDED)
    check_late = (phase != _SOLVER) & (any_far | (schedule.block == 1))
    block = jnp.where(check_late, CHECK_INTERVAL, 1)
    block = jnp.minimum(block, jnp.maximum(rule.max_steps - number, 1))
    return _Schedule(
        phase=phase,
        block=block,
        trial=trial,
        base=jnp.where(trial == 0, residual, schedule.base),
        plain_rate=plain_rate,
        plain_growth=growth,
    )


def _check_zero(
    rule: StopRule, sizes: Sizes, plateau: _Plateau
) -> tuple[Array, _Plateau]:
    """The squared residuals, relative to the scale in rows that have gone to 0.

    On the way to 0 a relative residual is meaningless: it is constant, 1 / c - 1 for
    f(z) = c z. There gap and state have shrunk to a quarter since the residual last
    halved. Near another fixed point z* they stop, about 2 |z*| from 0.
    """
    halved = sizes.residual <= 0.25 * plateau.residual
    plateau = _Plateau(
        residual=jnp.where(halved, sizes.residual, plateau.residual),
        gap=jnp.where(halved, sizes.gap, plateau.gap),
    )
    limit = min(rule.tol, 0.5 * rule.epsilon)
    near_zero = _is_near_zero(sizes.gap, plateau, limit)
    return jnp.where(near_zero, sizes.gap, sizes.residual), plateau


def _is_near_zero(gap: Array, plateau: _Plateau, limit: float) -> Array:
    return (gap <= plateau.gap / MIN_SHRINKAGE) & (gap <= limit**2)


def _run_if(condition: Array, function: Callable[[Any], Any], state: Any) -> Any:
    """``function(state)`` if ``condition``, else ``state``.

    A while_loop, not cond: vmap runs both branches of cond.
    """

    def body(pair: tuple[Any, Array]) -> tuple[Any, Array]:
        state, condition = pair
        return function(state), condition & False

    return jax.lax.while_loop(lambda pair: pair[1], body, (state, condition))[0]
