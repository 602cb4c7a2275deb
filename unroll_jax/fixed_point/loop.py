"""One loop for z = f(z) and for w = v + J^T w.

It takes plain steps, then a solver's where plain ones are slow.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.decisions import (
    ACCELERATED,
    CHECK_INTERVAL,
    ENDED,
    GIVEN_UP,
    PLAIN,
    Schedule,
    is_near_zero,
    must_return,
    plan_block,
)
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
      schedule: a `Schedule` as one array, which compiles to one kernel.
      pace: factor of |f(z) - z| in a plain step, as last seen.
      base: gap where the trial of accelerated steps began.
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

    z is the first state within tolerance, or the best state.
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
    """The result of a complete solve, whose residuals are not known on the way.

    A row that has missed the tolerance does not count as stalled at round-off.
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
        near_zero = missed & is_near_zero(gap, end.plateau.gap, rule.tol)
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
    last = Schedule(*carry.schedule)
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
    schedule, base = _plan(rule, solver, carry, sizes, pace, active)

    goes_on = active if solver.extrapolates else active & (schedule.phase != ENDED)
    moves = goes_on
    if solver.extrapolates:
        moves = goes_on & (schedule.phase == ACCELERATED)
    update = functools.partial(_update, solver, carry, sizes, z, goes_on, moves, pace)
    if solver.extrapolates:
        # A row that the last accelerated step has lost returns, too: plain steps would
        # go on from there, and the scale would grow.
        gives_up = frozen & (schedule.phase == GIVEN_UP)
        condition = (schedule.phase == ACCELERATED) | gives_up
        update = functools.partial(_run_if, condition, update)
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
    """The last two states of a block of plain steps. Rows that have ended stay."""

    def plain_step(state: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        count, _, z = state
        return count + 1, z, per_row(carry.active, apply(z), z)

    start = jnp.int32(0), carry.z, carry.z
    if not solver.extrapolates:
        return plain_step(start)[1:]

    def is_within(state: tuple[Any, Array, Array]) -> Array:
        return state[0] < Schedule(*carry.schedule).block

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
        ended = ended | is_near_zero(sizes.gap, plateau.gap, limit)

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
    last = Schedule(*carry.schedule)
    factor = sizes.gap / _gap(carry)
    if not rule.linear:
        # Gaps are relative to scales.
        factor *= jnp.where(carry.scale > 0.0, sizes.scale / carry.scale, 1.0)
    pace = _per_step(factor, last)
    return jnp.where(last.phase == ACCELERATED, carry.pace, pace)


def _per_step(factor: Array, last: Schedule) -> Array:
    """The factor of one step, from the factor of a block."""
    several = last.block == CHECK_INTERVAL
    return factor ** jnp.where(several, 1.0 / CHECK_INTERVAL, 1.0)


def _plan(
    rule: StopRule,
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    pace: Array,
    active: Array,
) -> tuple[Schedule, Array]:
    """`plan_block`. A solver that does not extrapolate takes only its own steps."""
    last = Schedule(*carry.schedule)
    if solver.extrapolates:
        rate = pace
        if not rule.linear:
            rate = _per_step(sizes.residual / carry.residual, last)
        return plan_block(rule, last, sizes, carry.base, rate, pace, active)
    number = last.number + last.block
    goes_on = jnp.any(active) & (number < rule.max_steps)
    phase = jnp.where(goes_on, last.phase, ENDED)
    return last._replace(phase=phase, number=number, updates=number), carry.base


def _update(
    solver: Solver,
    carry: _Carry,
    sizes: Sizes,
    z: Array,
    goes_on: Array,
    moves: Array,
    pace: Array,
    state: tuple[_Best, Any, Array],
) -> tuple[_Best, Any, Array]:
    """The best states so far, the solver's memory and its next states.

    Rows without ``moves`` take f(z), or return to their best state.
    """
    assert solver.update is not None
    best, memory, fz = state
    age = best.age + 1
    number = Schedule(*carry.schedule).updates
    if solver.extrapolates:
        returns = goes_on & must_return(sizes.gap, pace, best.gap, best.age)
        age = jnp.where(returns, 0, age)
    point = Point(z, fz, sizes.residual, sizes.inverse, goes_on, age, number)
    after, memory = solver.update(point, memory)
    after = per_row(moves, after, fz)
    if solver.extrapolates:
        after = per_row(age == 0, best.z, after)

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


def _run_if(condition: Array, function: Callable[[Any], Any], state: Any) -> Any:
    """``function(state)`` if ``condition``, else ``state``.

    A while_loop, not cond: vmap runs both branches of cond.
    """

    def body(pair: tuple[Any, Array]) -> tuple[Any, Array]:
        state, condition = pair
        return function(state), condition & False

    return jax.lax.while_loop(lambda pair: pair[1], body, (state, condition))[0]
