"""Fixed-point iterations, and the loop that runs one until every example has converged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.fixed_point.problem import (
    CONVERGED,
    MAX_STEPS,
    NONFINITE,
    STALL_PATIENCE,
    STALLED,
    Problem,
    SolveInfo,
    norm,
    per_example,
    relative,
    stalled_at,
)

__all__ = ["Point", "Solver", "damped", "picard", "run"]


class Point(NamedTuple):
    """Where an iteration stands: z, f(z), the relative residual of each row, and the steps taken so far."""

    z: Float[Array, "b m"]
    fz: Float[Array, "b m"]
    residual: Float[Array, " b"]
    count: Int[Array, ""]


class Solver(NamedTuple):
    """A fixed-point iteration on states (b, m), as pure functions.

    Attributes:
      init: ``z -> memory``, a pytree whose leaves lead with the example axis.
      update: ``(problem, point, memory) -> (z', memory')``.
      symmetric: whether it needs a map whose Jacobian is symmetric.
    """

    init: Callable[[Float[Array, "b m"]], Any]
    update: Callable[[Problem, Point, Any], tuple[Float[Array, "b m"], Any]]
    symmetric: bool = False


def picard() -> Solver:
    """z' = f(z): converges at the rate of f's contraction."""
    return damped(1.0)


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
    count: Int[Array, ""]
    z: Array
    memory: Any
    best: Array
    residual: Array
    since: Array
    steps: Array
    status: Array


def run(problem: Problem, z: Float[Array, "b m"], solver: Solver, *, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
    """Iterates until every row has |f(z) - z| <= tol |f(z)|, has stalled at round-off, or max_steps are taken.

    A row that has ended is frozen. What is returned is the best state met and its residual.
    """
    running, floor = -1, stalled_at(z)
    rows = z.shape[0]

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.status == running) & (carry.count < max_steps)

    def body(carry: _Carry) -> _Carry:
        fz = problem.apply(carry.z)
        residual = relative(fz - carry.z, fz)
        active = carry.status == running
        better = active & (residual < carry.residual)
        best = per_example(better, carry.z, carry.best)
        since = jnp.where(better, 0, carry.since + 1)
        lowest = jnp.where(better, residual, carry.residual)
        status = jnp.where(active & (since >= STALL_PATIENCE) & (lowest <= floor), STALLED, carry.status)
        status = jnp.where(active & ~jnp.isfinite(residual), NONFINITE, status)
        status = jnp.where(active & (residual <= tol), CONVERGED, status)
        point = Point(carry.z, fz, residual, carry.count)
        z, memory = solver.update(problem, point, carry.memory)
        going = status == running
        z, memory = per_example(going, (z, memory), (carry.z, carry.memory))
        return _Carry(carry.count + 1, z, memory, best, lowest, since, carry.steps + active, status)

    start = _Carry(
        count=jnp.zeros((), jnp.int32),
        z=z,
        memory=solver.init(z),
        best=z,
        residual=jnp.full(rows, jnp.inf, norm(z).dtype),
        since=jnp.zeros(rows, jnp.int32),
        steps=jnp.zeros(rows, jnp.int32),
        status=jnp.full(rows, running, jnp.int32),
    )
    end = jax.lax.while_loop(unfinished, body, start)
    status = jnp.where(end.status == running, jnp.where(end.residual <= floor, STALLED, MAX_STEPS), end.status)
    return end.best, SolveInfo(end.residual, end.steps, status)
