"""Fixed-point iterations, and the loop that runs one until every example has converged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import typed
from unroll_jax.fixed_point.problem import Problem, SolveInfo, extend, judge, norm, per_example, relative
from unroll_jax.fixed_point.progress import IDLE_AT_THE_CAP, Progress, advance, at_the_cap, begin

__all__ = ["Point", "Solver", "damped", "picard", "run", "unroll_solver"]

STALL_PATIENCE = 10  # steps without a better residual, near round-off, after which there is none to be had


class Point(NamedTuple):
    """Where an iteration stands: z, f(z), relative residual and whether it goes on of each row, steps taken so far."""

    z: Float[Array, "b m"]
    fz: Float[Array, "b m"]
    residual: Float[Array, " b"]
    going: Bool[Array, " b"]
    number: Int[Array, ""]


class Solver(NamedTuple):
    """A fixed-point iteration on states (b, m), as pure functions.

    Attributes:
      init: ``z -> memory``, a pytree whose leaves lead with the example axis.
      update: ``(problem, point, memory) -> (z', memory')``.
      symmetric: whether it needs a map whose Jacobian is symmetric.
      unrollable: whether reverse-mode autodiff can go through ``update``.
      whole: ``(problem, z, tol, max_steps) -> (z, steps)`` in place of the two, for loops that are not ours and those
        that do not stop on a residual; steps unrolled for autodiff are ``update`` all the same.
    """

    init: Callable[[Float[Array, "b m"]], Any]
    update: Callable[[Problem, Point, Any], tuple[Float[Array, "b m"], Any]]
    symmetric: bool = False
    unrollable: bool = True
    whole: Callable[[Problem, Float[Array, "b m"], float, int], tuple[Float[Array, "b m"], Int[Array, " b"]]] | None = (
        None
    )


def picard() -> Solver:
    """z' = f(z): converges at the rate of f's contraction."""
    return damped(1.0)


@typed
def damped(share: float = 0.5) -> Solver:
    """z' = (1 - share) z + share f(z) (Krasnoselskii-Mann): converges for every f that is nonexpansive.

    Raises:
      ValueError: if share is outside (0, 1].
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share must be in (0, 1], got {share}")

    def update(problem: Problem, point: Point, memory: Any) -> tuple[Array, Any]:
        return (point.fz if share == 1.0 else point.z + share * (point.fz - point.z)), memory

    return Solver(init=lambda z: (), update=update)


class _Carry(NamedTuple):
    number: Int[Array, ""]
    z: Array
    memory: Any
    progress: Progress
    steps: Array


def run(
    problem: Problem,
    z: Float[Array, "b m"],
    solver: Solver,
    *,
    tol: float,
    max_steps: int,
    scale: Float[Array, " b"] | None = None,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Iterates until every row has |f(z) - z| <= tol |f(z)|, has stalled at round-off, or max_steps are taken.

    A row that has ended is frozen. What is returned is the best state met and its residual. With ``scale``, residuals
    are relative to it in place of |f(z)|, as of a linear map, whose values may be large and round at their own size;
    a row that improves no more then ends whatever its residual is.
    """
    if solver.whole is not None:
        return _run_whole(problem, z, solver.whole, tol, max_steps)

    floor, rounding = (problem.floor, 0.5 * problem.epsilon) if scale is None else (jnp.inf, 0.0)

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.progress.going) & (carry.number < max_steps)

    def body(carry: _Carry) -> _Carry:
        fz = problem.apply(carry.z)
        steps = carry.steps + carry.progress.going
        progress, residual = advance(
            carry.progress,
            carry.z,
            norm(fz - carry.z),
            norm(fz) if scale is None else jnp.where(scale > 0.0, scale, 1.0),
            tol=tol,
            epsilon=problem.epsilon,
            floor=floor,
            patience=STALL_PATIENCE,
        )
        z, memory = solver.update(problem, Point(carry.z, fz, residual, progress.going, carry.number), carry.memory)
        z, memory = per_example(progress.going, (z, memory), (carry.z, carry.memory))
        return _Carry(carry.number + 1, z, memory, progress, steps)

    progress = begin(z, norm(z) if scale is None else jnp.full_like(scale, jnp.inf))
    start = _Carry(jnp.zeros((), jnp.int32), z, solver.init(z), progress, jnp.zeros_like(progress.since))
    end = jax.lax.while_loop(unfinished, body, start)
    return end.progress.best, SolveInfo(end.progress.residual, end.steps, at_the_cap(end.progress, floor, rounding))


def unroll_solver(
    problem: Problem, z: Float[Array, "b m"], solver: Solver, *, num_steps: int, tol: float
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """``num_steps`` steps in a scan that autodiff can go through; the residual is that of the last evaluation.

    Raises:
      ValueError: if the solver has no steps that autodiff can go through.
    """
    if not solver.unrollable:
        raise ValueError('adjoint="unrolled" needs a solver whose steps can be differentiated, such as "picard"')
    going = jnp.ones(z.shape[0], bool)

    def body(carry: tuple[Array, Any, Array], count: Array) -> tuple[tuple[Array, Any, Array], Array]:
        z, memory, reach = carry
        fz = problem.apply(z)
        step, size = jax.lax.stop_gradient((norm(fz - z), norm(fz)))
        reach = extend(reach, step, first=count == 0)
        residual = relative(step, size, reach, problem.epsilon)
        z, memory = solver.update(problem, Point(z, fz, residual, going, count), memory)
        return (z, memory, reach), residual

    begin = (z, solver.init(z), jax.lax.stop_gradient(norm(z)))
    (z, _, _), residuals = jax.lax.scan(body, begin, jnp.arange(num_steps, dtype=jnp.int32))
    steps = jnp.full(z.shape[0], num_steps, jnp.int32)
    idle = num_steps - 1 - jnp.argmin(residuals, axis=0) >= IDLE_AT_THE_CAP
    return z, judge(residuals[-1], steps, tol, problem.epsilon, idle)


def _run_whole(
    problem: Problem, z: Array, whole: Callable[..., Any], tol: float, max_steps: int
) -> tuple[Array, SolveInfo]:
    """Runs a loop that is not `run`'s, and measures what it returns as that does its own."""
    reach = extend(norm(z), norm(problem.apply(z) - z), first=True)
    z, steps = whole(problem, z, tol, max_steps)
    fz = problem.apply(z)
    residual = relative(norm(fz - z), norm(fz), reach, problem.epsilon)
    return z, judge(residual, steps, tol, problem.epsilon, idle=steps < max_steps)
