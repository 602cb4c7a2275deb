"""Runs an iteration until every example converges; tracks each example's best state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.fixed_point.problem import (
    CONVERGED,
    MAX_STEPS,
    NONFINITE,
    STALLED,
    Point,
    Problem,
    SolveInfo,
    Solver,
    judge,
    norm,
    per_example,
    ratio,
)

__all__ = [
    "GROWTH",
    "IDLE_AT_THE_CAP",
    "Progress",
    "advance",
    "at_the_cap",
    "begin",
    "extend",
    "relative",
    "run",
    "unroll_solver",
]

# States may grow to this many times their reach before residuals stop being relative to them: beyond, |f(z) - z| is
# small next to |f(z)| because z is large, as of a map without a fixed point.
GROWTH = 30.0

RUNNING = -1
IDLE_AT_THE_CAP = 3  # steps without a better residual, near round-off, after which a row that is cut off had stalled
STALL_PATIENCE = 10  # steps without a better residual, near round-off, after which there is none to be had


class Progress(NamedTuple):
    """The progress of each row.

    Attributes:
      best: the state of least residual met.
      residual: its relative residual.
      since: steps since it was met.
      status: how the row ended, or -1 while it runs.
      reach: see `extend`.
    """

    best: Float[Array, "b m"]
    residual: Float[Array, " b"]
    since: Int[Array, " b"]
    status: Int[Array, " b"]
    reach: Float[Array, " b"]

    @property
    def going(self) -> Bool[Array, " b"]:
        """True in rows that go on."""
        return self.status == RUNNING


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

    A row that has ended is frozen. Returns the best state met and its residual. With ``scale``, residuals
    are relative to it in place of |f(z)|, as of a linear map, whose values may be large and round at their own size;
    a row that improves no more then ends at any residual.
    """
    if solver.whole is not None:
        return _run_whole(problem, z, solver.whole, tol, max_steps)

    floor, rounding = (problem.floor, 0.5 * problem.epsilon) if scale is None else (jnp.inf, 0.0)

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.progress.going) & (carry.number < max_steps)

    def step(carry: _Carry, update: Callable[[Point, Any], tuple[Array, Any]]) -> _Carry:
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
        z, memory = update(Point(carry.z, fz, residual, progress.going, carry.number), carry.memory)
        z, memory = per_example(progress.going, (z, memory), (carry.z, carry.memory))
        return _Carry(carry.number + 1, z, memory, progress, steps)

    progress = begin(z, norm(z) if scale is None else jnp.full_like(scale, jnp.inf))
    start = _Carry(jnp.zeros((), jnp.int32), z, (), progress, jnp.zeros_like(progress.since))

    def iterate(start: _Carry) -> _Carry:
        def update(point: Point, memory: Any) -> tuple[Array, Any]:
            return solver.update(problem, point._replace(number=point.number - start.number), memory)

        with_memory = start._replace(memory=solver.init(start.z))
        return jax.lax.while_loop(unfinished, lambda carry: step(carry, update), with_memory)._replace(memory=())

    if solver.plain is None:
        end = iterate(start)
    else:  # a loop of one turn or none, which makes no memory where plain steps have done
        end = jax.lax.while_loop(unfinished, iterate, _plain_steps(step, unfinished, start, solver.plain))
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


def _plain_steps(
    step: Callable[..., _Carry], unfinished: Callable[[_Carry], Array], start: _Carry, fall: float
) -> _Carry:
    """Steps z' = f(z) until one has not made the least residual of every active row ``fall`` times smaller."""

    def body(carry: tuple[_Carry, Array]) -> tuple[_Carry, Array]:
        before, _ = carry
        after = step(before, lambda point, memory: (point.fz, memory))
        fell = after.progress.residual <= before.progress.residual / fall
        return after, jnp.all(fell | ~after.progress.going)

    quick = jnp.all(start.progress.going)  # which they all do
    return jax.lax.while_loop(lambda carry: unfinished(carry[0]) & carry[1], body, (start, quick))[0]


def begin(z: Float[Array, "b m"], reach: Float[Array, " b"]) -> Progress:
    """Before the first step from z, whose norm is ``reach``."""
    none = jnp.zeros_like(reach, jnp.int32)
    return Progress(z, jnp.full_like(reach, jnp.inf), none, jnp.full_like(none, RUNNING), reach)


def advance(
    progress: Progress,
    z: Float[Array, "b m"],
    step: Float[Array, " b"],
    size: Float[Array, " b"],
    *,
    tol: float,
    epsilon: float,
    floor: float | Float[Array, " b"],
    patience: int,
) -> tuple[Progress, Float[Array, " b"]]:
    """After |f(z) - z| and |f(z)| are known: rows end at ``tol``, at round-off, or at a value that is not finite.

    A row is at round-off if ``patience`` steps have brought nothing better than a residual under ``floor``.

    Returns:
      ``(progress, residual)``, the latter relative to ``size``, or see `relative`.
    """
    reach = extend(progress.reach, step, first=jnp.isinf(progress.residual))
    reach = jnp.where(progress.going, reach, progress.reach)
    residual = relative(step, size, reach, epsilon)
    better = progress.going & (residual < progress.residual)
    best = per_example(better, z, progress.best)
    since = jnp.where(better, 0, progress.since + 1)
    lowest = jnp.where(better, residual, progress.residual)
    status = jnp.where(progress.going & (since >= patience) & (lowest <= floor), STALLED, progress.status)
    status = jnp.where(progress.going & ~jnp.isfinite(residual), NONFINITE, status)
    status = jnp.where(progress.going & (residual <= tol), CONVERGED, status)
    return Progress(best, lowest, since, status, reach), residual


def at_the_cap(progress: Progress, floor: float | Float[Array, " b"], rounding: float) -> Int[Array, " b"]:
    """Returns the status of rows at the cap on steps: a row that is still going has stalled, or was cut off.

    A residual under ``rounding`` is less than rounding the values of the map leaves: more steps tell nothing.
    """
    idle = (progress.since >= IDLE_AT_THE_CAP) | (progress.residual <= rounding)
    stalled = (progress.residual <= floor) & idle
    return jnp.where(progress.going, jnp.where(stalled, STALLED, MAX_STEPS), progress.status)


def relative(
    step: Float[Array, " b"], size: Float[Array, " b"], reach: Float[Array, " b"], epsilon: float
) -> Float[Array, " b"]:
    """The residual |f(z) - z| relative to |f(z)|, or to `GROWTH` times ``reach`` where |f(z)| has outgrown that.

    Args:
      step: |f(z) - z|.
      size: |f(z)|.
      reach: see `extend`.
      epsilon: relative spacing of the numbers f is computed in; an outgrown state is not known any better.
    """
    limit = GROWTH * reach
    return jnp.where(size > limit, ratio(jnp.maximum(step, epsilon * size), limit), ratio(step, size))


def extend(reach: Float[Array, " b"], step: Float[Array, " b"], first: Bool[Array, "..."] | bool) -> Float[Array, " b"]:
    """The size that states of an iteration have by right, after a step |f(z) - z|.

    It is the norm of the first state or of the first step, and grows with later ones, at most twofold each: where an
    extrapolation has gone far astray, one step tells nothing about the size of a fixed point.
    """
    return jnp.fmax(reach, jnp.where(first, step, jnp.minimum(step, 2.0 * reach)))


def _run_whole(
    problem: Problem, z: Array, whole: Callable[..., Any], tol: float, max_steps: int
) -> tuple[Array, SolveInfo]:
    """Runs a loop that is not `run`'s, and measures its result as `run` does."""
    reach = extend(norm(z), norm(problem.apply(z) - z), first=True)
    z, steps = whole(problem, z, tol, max_steps)
    fz = problem.apply(z)
    residual = relative(norm(fz - z), norm(fz), reach, problem.epsilon)
    return z, judge(residual, steps, tol, problem.epsilon, idle=steps < max_steps)
