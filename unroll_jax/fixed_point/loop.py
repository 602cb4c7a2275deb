"""One loop for z = f(z) and for w = v + J^T w.

It takes plain steps, then a solver's where plain ones are slow.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.rows import any_rows, largest, per_row, row_constant
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

# Plain steps between two checks of residuals.
CHECK_INTERVAL = 4
# Plain steps are quick if each makes every residual this many times smaller.
MIN_REDUCTION = 1.25
# Plain steps continue if so many more blocks at the last rate reach the tolerance.
NEAR = 8
# Accelerated steps between two comparisons with plain ones.
TRIAL = 10
# By then |f(z) - z| must be this share of what as many plain steps would leave.
MIN_GAIN = 0.5
# A row returns to its best state if |f(z) - z| rises beyond this many times its least.
MAX_RISE = 2.0
# Factor by which the gap must fall on a plateau of the residual, for a row to count as
# converging to 0.
MIN_SHRINKAGE = 4.0

# The phases of a loop. PLAIN steps come first, ACCELERATED ones where these are slow.
# Plain steps after GIVEN_UP are for good.
ENDED, PLAIN, GIVEN_UP, ACCELERATED = range(4)


class _Schedule(NamedTuple):
    """The next block of steps. All rows are checked at its end.

    Attributes:
      phase: of the block.
      block: evaluations of the map in it; one if it is accelerated.
      number: evaluations before it.
      updates: of the solver before it.
      is_trial_end: 1 if its check compares accelerated steps with plain ones, or 0.
    """

    phase: Int[Array, ""]
    block: Int[Array, ""]
    number: Int[Array, ""]
    updates: Int[Array, ""]
    is_trial_end: Int[Array, ""]


class _Best(NamedTuple):
    """The best state of each row, as of the last update of the solver.

    Attributes:
      z: f of the state with the least gap.
      gap, residual: of that state; the residual is None if it is the gap.
      age: updates since the row last returned to its best state.
    """

    z: Float[Array, "b m"]
    gap: Float[Array, " b"]
    residual: Float[Array, " b"] | None
    age: Int[Array, " b"]


class _Plateau(NamedTuple):
    """Residual and gap where the residual last halved."""

    residual: Float[Array, " b"]
    gap: Float[Array, " b"]


class _Carry(NamedTuple):
    """The state of the loop.

    Attributes:
      residual: |f(z) - z| / |f(z)| of each row at its last check.
      gap: |f(z) - z| there, relative to the scale; None if it is the residual.
      scale: typical size of the states of a row.
      active: rows that have not ended.
      steps: evaluations of each row.
      schedule: a `_Schedule`, as one array.
      pace: factor of |f(z) - z| in a plain step, as last seen.
      base: gap at the last comparison of accelerated steps with plain ones.
      stall: kept only where round-off may come before the tolerance.
      plateau: kept only where states that go to 0 count as converged.
    """

    z: Float[Array, "b m"]
    residual: Float[Array, " b"]
    gap: Float[Array, " b"] | None
    scale: Float[Array, " b"]
    active: Bool[Array, " b"]
    steps: Int[Array, " b"]
    schedule: Int[Array, "5"]
    pace: Float[Array, " b"]
    base: Float[Array, " b"]
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
        lambda carry: carry.schedule[0] > ENDED,
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
    # A linear system has had one step: v, from a residual of 1 at w = 0.
    first = row_constant(z, 1.0) if rule.linear else infinite
    to_round_off = rule.tol < ROUND_OFF * rule.epsilon
    to_zero = not rule.linear and rule.atol is None
    carry = _Carry(
        z=z,
        residual=first,
        gap=None if rule.linear else first,
        scale=largest(z),
        active=row_constant(z, True),
        steps=zeros,
        schedule=jnp.array([PLAIN, 1, 0, 0, 0], jnp.int32),
        pace=infinite,
        base=infinite,
        best=_Best(
            z=z,
            gap=infinite,
            residual=None if rule.linear else infinite,
            age=zeros,
        ),
        memory=solver.init(z),
        stall=Stall(infinite, zeros) if to_round_off else None,
        plateau=_Plateau(infinite, infinite) if to_zero else None,
    )
    return vary_like(carry, z)


def _finish(rule: StopRule, end: _Carry) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """The last state of each row, or its best one if that is better."""
    gap, best_residual = _gap(end), end.best.residual
    missed = ~(end.residual <= rule.tol)
    residual = end.residual
    # At the cap, a state that goes to 0 may be within tol of its scale.
    if end.plateau is not None:
        near_zero = missed & _is_near_zero(gap, end.plateau, rule.tol)
        residual = jnp.where(near_zero, gap, residual)
        missed = missed & ~near_zero

    # NaN in, NaN out: a row that was lost at its first step has no best state.
    back = missed & ~(gap <= end.best.gap) & (end.steps > 1)
    best_residual = end.best.gap if best_residual is None else best_residual
    residual = jnp.where(back, best_residual, residual)
    lost = ~(end.residual < jnp.inf)
    info = outcome(rule, residual, end.steps, stalled=~end.active, lost=lost)
    return per_row(back, end.best.z, end.z), info


def _gap(carry: _Carry) -> Float[Array, " b"]:
    return carry.residual if carry.gap is None else carry.gap


def _run_block(apply: Map, solver: Solver, rule: StopRule, carry: _Carry) -> _Carry:
    """One block of steps, one check of all rows, and the schedule of the next block."""
    last = _Schedule(*carry.schedule)
    z, fz = _evaluate(apply, solver, carry)
    first = last.number == 0
    frozen = last.phase == ACCELERATED
    sizes = measure(rule, fz, z, carry.scale, first=first, frozen=frozen)
    residual = jnp.where(carry.active, sizes.residual, carry.residual)
    gap = residual
    if not rule.linear:
        gap = jnp.where(carry.active, sizes.gap, _gap(carry))
    sizes = sizes._replace(residual=residual, gap=gap)

    plateau = _follow_plateau(sizes, carry.plateau)
    active, stall = _check_rows(rule, solver, carry, sizes, plateau, fz)
    pace = _measure_pace(rule, carry, sizes)
    schedule, base = _plan_block(rule, solver, carry, sizes, pace, active)

    goes_on = active if solver.extrapolates else active & (schedule.phase != ENDED)
    update = functools.partial(_update, solver, carry, sizes, z, goes_on, pace)
    if solver.extrapolates:
        update = functools.partial(_run_if, schedule.phase == ACCELERATED, update)
    best, memory, after = update((carry.best, carry.memory, fz))

    return _Carry(
        z=after,
        residual=residual,
        gap=None if rule.linear else gap,
        scale=sizes.scale,
        active=active,
        steps=carry.steps + jnp.where(carry.active, last.block, 0),
        schedule=jnp.stack(schedule),
        pace=pace,
        base=base,
        best=best,
        memory=memory,
        stall=stall,
        plateau=plateau,
    )


def _evaluate(apply: Map, solver: Solver, carry: _Carry) -> tuple[Array, Array]:
    """The last two states of a block of plain steps; rows that have ended stay."""

    def plain_step(state: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        count, _, z = state
        return count + 1, z, per_row(carry.active, apply(z), z)

    start = jnp.int32(0), carry.z, carry.z
    if not solver.extrapolates:
        return plain_step(start)[1:]

    def is_within(state: tuple[Any, Array, Array]) -> Array:
        return state[0] < _Schedule(*carry.schedule).block

    return jax.lax.while_loop(is_within, plain_step, start)[1:]


def _check_rows(
    rule: StopRule,
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    plateau: _Plateau | None,
    fz: Array,
) -> tuple[Array, Stall | None]:
    """The rows that go on, and their progress near round-off."""
    ended = sizes.residual <= rule.tol
    if plateau is not None:
        limit = min(rule.tol, 0.5 * rule.epsilon)
        ended = ended | _is_near_zero(sizes.gap, plateau, limit)

    usable = sizes.residual < jnp.inf
    if solver.extrapolates:
        # A row that leaves the range may return to its best state.
        usable = usable | (carry.best.gap < jnp.inf)
    active = carry.active & ~ended & usable

    stall = carry.stall
    if stall is not None:
        stall, stalled = check_stall(rule, stall, sizes.residual, fz)
        active = active & ~stalled
    return active, stall


def _measure_pace(rule: StopRule, carry: _Carry, sizes: Sizes) -> Array:
    """The factor of |f(z) - z| in a plain step of this block, or as last seen."""
    last = _Schedule(*carry.schedule)
    factor = sizes.gap / _gap(carry)
    if not rule.linear:
        # Gaps are relative to scales.
        factor *= jnp.where(carry.scale > 0.0, sizes.scale / carry.scale, 1.0)
    several = last.block == CHECK_INTERVAL
    pace = factor ** jnp.where(several, 1.0 / CHECK_INTERVAL, 1.0)
    return jnp.where(last.phase == ACCELERATED, carry.pace, pace)


def _plan_block(
    rule: StopRule,
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    pace: Array,
    active: Array,
) -> tuple[_Schedule, Array]:
    """The schedule of the next block, and the gaps to compare accelerated steps with.

    A solver that does not extrapolate takes its own steps to the end.
    """
    last = _Schedule(*carry.schedule)
    number = last.number + last.block
    left = rule.max_steps - number
    if not solver.extrapolates:
        goes_on = jnp.any(active) & (left > 0)
        phase = jnp.where(goes_on, last.phase, ENDED)
        return last._replace(phase=phase, number=number, updates=number), carry.base

    slow = _is_slow(rule, sizes.residual, pace, last.block)
    far = _is_far(rule, sizes.residual, pace)
    gains = _gains(sizes.gap, carry.base, pace)
    any_active, any_slow, any_far, any_gains = any_rows(
        active, active & slow, active & far, active & gains
    )

    is_judged = last.is_trial_end == 1
    in_trial = (last.phase == ACCELERATED) & ~is_judged
    base = jnp.where(in_trial, carry.base, sizes.gap)

    accelerate = any_slow & (last.phase == PLAIN)
    give_up = is_judged & ~any_gains
    phase = jnp.where(accelerate, ACCELERATED, last.phase)
    phase = jnp.where(give_up, GIVEN_UP, phase)
    phase = jnp.where(any_active & (left > 0), phase, ENDED)

    # One step does not tell how far the tolerance is.
    check_late = (phase != ACCELERATED) & (any_far | (last.block == 1))
    block = jnp.where(check_late, jnp.minimum(CHECK_INTERVAL, left), 1)
    updates = jnp.where(phase == ACCELERATED, last.updates + 1, last.updates)
    in_step = jax.lax.rem(updates, jnp.int32(TRIAL)) == 0
    is_trial_end = jnp.where(phase == ACCELERATED, in_step.astype(jnp.int32), 0)
    return _Schedule(phase, block, number, updates, is_trial_end), base


def _is_slow(rule: StopRule, residual: Array, pace: Array, block: Array) -> Array:
    """Rows that plain steps do not bring to the tolerance soon.

    One step says little of the pace, unless |f(z) - z| rises.
    """
    quick = pace < 1.0 / MIN_REDUCTION
    near = pace ** (NEAR * CHECK_INTERVAL) * residual <= rule.tol
    rises = ~(pace < 1.0)
    return (block == CHECK_INTERVAL) & ~quick & ~near | rises


def _is_far(rule: StopRule, residual: Array, pace: Array) -> Array:
    """Rows that another block of plain steps leaves above the tolerance.

    Checks come late until then, and after every step from there on.
    """
    return pace**CHECK_INTERVAL * residual > rule.tol


def _gains(gap: Array, base: Array, pace: Array) -> Array:
    """Rows for which a trial of accelerated steps was worth its cost."""
    return gap < MIN_GAIN * base * pace**TRIAL


def _returns(gap: Array, pace: Array, best: _Best) -> Array:
    """Rows that acceleration has led astray, and that return to their best state.

    Plain steps may raise the gap too, by no fault of the solver. A row does not return
    twice in turn.
    """
    allowed = MAX_RISE * jnp.fmax(pace, 1.0) * best.gap
    return ~(gap <= allowed) & (best.gap < jnp.inf) & (best.age > 0)


def _update(
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    z: Array,
    active: Array,
    pace: Array,
    state: tuple[_Best, Any, Array],
) -> tuple[_Best, Any, Array]:
    """The best states so far, the solver's memory and its next states."""
    assert solver.update is not None
    best, memory, fz = state
    age = best.age + 1
    number = _Schedule(*carry.schedule).updates
    if solver.extrapolates:
        age = jnp.where(active & _returns(sizes.gap, pace, best), 0, age)
    point = Point(z, fz, sizes.residual, sizes.inverse, active, age, number)
    after, memory = solver.update(point, memory)
    if solver.extrapolates:
        after = per_row(age == 0, best.z, after)
    after = per_row(active, after, fz)

    better = carry.active & (sizes.gap < best.gap)
    residual = best.residual
    if residual is not None:
        residual = jnp.where(better, sizes.residual, residual)
    best = _Best(
        z=per_row(better, fz, best.z),
        gap=jnp.where(better, sizes.gap, best.gap),
        residual=residual,
        age=age,
    )
    return best, memory, after


def _follow_plateau(sizes: Sizes, plateau: _Plateau | None) -> _Plateau | None:
    if plateau is None:
        return None
    halved = sizes.residual <= 0.5 * plateau.residual
    return _Plateau(
        residual=jnp.where(halved, sizes.residual, plateau.residual),
        gap=jnp.where(halved, sizes.gap, plateau.gap),
    )


def _is_near_zero(gap: Array, plateau: _Plateau, limit: float) -> Array:
    """Rows that go to 0, and are within ``limit`` of their scale.

    On the way to 0 a relative residual is meaningless: it is constant, 1 / c - 1 for
    f(z) = c z. There gap and state have shrunk to a quarter since the residual last
    halved. Near another fixed point z* they stop, about 2 |z*| from 0.
    """
    return (gap <= plateau.gap / MIN_SHRINKAGE) & (gap <= limit)


def _run_if(condition: Array, function: Callable[[Any], Any], state: Any) -> Any:
    """``function(state)`` if ``condition``, else ``state``.

    A while_loop, not cond: vmap runs both branches of cond.
    """

    def body(pair: tuple[Any, Array]) -> tuple[Any, Array]:
        state, condition = pair
        return function(state), condition & False

    return jax.lax.while_loop(lambda pair: pair[1], body, (state, condition))[0]
