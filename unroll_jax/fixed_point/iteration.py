"""Runs an iteration until every example converges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.flat_states import norm, per_example, repeat_while
from unroll_jax.fixed_point.problem import Point, Problem, SolveInfo, Solver, judge
from unroll_jax.fixed_point.progress import (
    IDLE_AT_THE_CAP,
    STALL_PATIENCE,
    Progress,
    advance,
    at_the_cap,
    begin,
    extend,
    looks,
    near_zero,
    relative,
)

__all__ = ["run", "unroll_solver"]


class _Carry(NamedTuple):
    number: Int[Array, ""]
    z: Array
    memory: Any
    progress: Progress
    steps: Array


class _Rule(NamedTuple):
    """The end of rows, see `run`: as soon as `advance` finds it, or after ``max_steps``."""

    tol: float
    max_steps: int
    epsilon: float
    scale: Float[Array, " b"] | None
    offset: float
    nought: float
    floor: float
    rounding: float

    def look(self, progress: Progress, z: Float[Array, "b m"], fz: Float[Array, "b m"]) -> tuple[Progress, Array]:
        """The progress after the evaluation f(z), and the residuals of z."""
        return advance(
            progress,
            z,
            norm(fz - z),
            norm(fz) if self.scale is None else jnp.where(self.scale > 0.0, self.scale, 1.0),
            tol=self.tol,
            epsilon=self.epsilon,
            floor=self.floor,
            patience=STALL_PATIENCE,
            offset=self.offset,
            nought=self.nought,
        )

    def unfinished(self, carry: _Carry) -> Bool[Array, ""]:
        return jnp.any(carry.progress.going) & (carry.number < self.max_steps)


def run(
    problem: Problem,
    z: Float[Array, "b m"],
    solver: Solver,
    *,
    tol: float,
    max_steps: int,
    scale: Float[Array, " b"] | None = None,
    atol: float | None = None,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Iterates until every row has |f(z) - z| <= atol + tol |f(z)|, has stalled at round-off, or max_steps are taken.

    The state of a row that has ended is frozen. Returns the best state met and its residual. With ``scale``, residuals
    are relative to it in place of |f(z)|, as of a linear map, whose values may be large and round at their own size;
    a row that improves no more then ends at any residual. Without ``scale`` and ``atol``, rows that go to 0 end at
    round-off of the sizes they came from, see `vanishing`.
    """
    offset = (atol or 0.0) / tol
    if solver.whole is not None:
        return _run_whole(problem, z, solver.whole, tol, max_steps, offset)
    nought = min(tol, 0.5 * problem.epsilon) if scale is None and atol is None else 0.0
    floor, rounding = (problem.floor, 0.5 * problem.epsilon) if scale is None else (jnp.inf, 0.0)
    rule = _Rule(tol, max_steps, problem.epsilon, scale, offset, nought, floor, rounding)
    progress = begin(z, norm(z) if scale is None else jnp.full_like(scale, jnp.inf))
    carry = _Carry(jnp.max(progress.since, initial=0), z, (), progress, jnp.zeros_like(progress.since))
    if solver.plain is None:
        end = _iterate(problem, solver, rule, carry)
    else:  # a loop of one turn or none, which makes no memory where plain steps have done
        after = _plain_steps(problem, rule, carry, solver.plain)
        end = repeat_while(rule.unfinished, lambda carry: _iterate(problem, solver, rule, carry), after)
    residual, status = end.progress.residual, at_the_cap(end.progress, floor, rounding)
    if nought:
        residual, status = near_zero(end.progress, status, tol)
    return end.progress.best, SolveInfo(residual, end.steps, status)


def _iterate(problem: Problem, solver: Solver, rule: _Rule, start: _Carry) -> _Carry:
    """Steps of the solver until every row has ended."""

    def body(carry: _Carry) -> _Carry:
        fz = problem.apply(carry.z)
        progress, residual = rule.look(carry.progress, carry.z, fz)
        point = Point(carry.z, fz, residual, progress.going, carry.number - start.number)
        z, memory = solver.update(problem, point, carry.memory)
        z = per_example(progress.going, z, carry.z)
        return _Carry(carry.number + 1, z, memory, progress, carry.steps + carry.progress.going)

    with_memory = start._replace(memory=solver.init(start.z))
    return jax.lax.while_loop(rule.unfinished, body, with_memory)._replace(memory=())


def _plain_steps(problem: Problem, rule: _Rule, start: _Carry, fall: float) -> _Carry:
    """Steps z' = f(z) until they have not made the least residual of every active row ``fall`` times smaller each.

    Residuals are not looked at after each step, which would cost as much as a small step does, see `looks`.
    """

    def body(carry: tuple[_Carry, Array, Array]) -> tuple[_Carry, Array, Array]:
        before, count, _ = carry
        going = before.progress.going

        def step(_: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
            return pair[1], per_example(going, problem.apply(pair[1]), pair[1])

        z, fz = jax.lax.fori_loop(0, count, step, (before.z, before.z))
        progress, _ = rule.look(before.progress, z, fz)
        after = _Carry(before.number + count, fz, (), progress, before.steps + count * going)
        following, quick = looks(before.progress.residual, progress.residual, rule.tol, progress.going, count, fall)
        return after, jnp.minimum(following, jnp.maximum(rule.max_steps - after.number, 1)), quick

    quick = jnp.all(start.progress.going)  # which they all do
    begin = (start, start.number + 1, quick)
    return jax.lax.while_loop(lambda carry: rule.unfinished(carry[0]) & carry[2], body, begin)[0]


def unroll_solver(
    problem: Problem, z: Float[Array, "b m"], solver: Solver, *, num_steps: int, tol: float, atol: float = 0.0
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """``num_steps`` steps in a scan that autodiff can go through; the residual is that of the last evaluation.

    Raises:
      ValueError: if the solver has no steps that autodiff can go through.
    """
    if not solver.unrollable:
        raise ValueError('adjoint="unrolled" needs a solver whose steps can be differentiated, such as "picard"')
    body, begin = _recorded(problem, z, solver, atol / tol)
    (z, _, _), residuals = jax.lax.scan(body, begin, jnp.arange(num_steps, dtype=jnp.int32))
    steps = jnp.full(z.shape[0], num_steps, jnp.int32)
    idle = num_steps - 1 - jnp.argmin(residuals, axis=0) >= IDLE_AT_THE_CAP
    return z, judge(residuals[-1], steps, tol, problem.epsilon, idle)


def _recorded(problem: Problem, z: Array, solver: Solver, offset: float) -> tuple[Callable[..., Any], Any]:
    """A step ``(carry, number) -> (carry, residual)`` of the solver for all rows, and the first carry, z and others."""
    going = jnp.ones(z.shape[0], bool)

    def body(carry: tuple[Array, Any, Array], count: Array) -> tuple[tuple[Array, Any, Array], Array]:
        z, memory, reach = carry
        fz = problem.apply(z)
        step, size = jax.lax.stop_gradient((norm(fz - z), norm(fz)))
        reach = extend(reach, step, first=count == 0)
        residual = relative(step, size, reach, problem.epsilon, offset)
        z, memory = solver.update(problem, Point(z, fz, residual, going, count), memory)
        return (z, memory, reach), residual

    return body, (z, solver.init(z), jax.lax.stop_gradient(norm(z)))


def _run_whole(
    problem: Problem, z: Array, whole: Callable[..., Any], tol: float, max_steps: int, offset: float
) -> tuple[Array, SolveInfo]:
    """Runs a loop that is not `run`'s, and measures its result as `run` does."""
    reach = extend(norm(z), norm(problem.apply(z) - z), first=True)
    z, steps = whole(problem, z, tol, max_steps)
    fz = problem.apply(z)
    residual = relative(norm(fz - z), norm(fz), reach, problem.epsilon, offset)
    return z, judge(residual, steps, tol, problem.epsilon, idle=steps < max_steps)
