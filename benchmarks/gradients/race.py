"""One equilibrium problem, solved and differentiated by this library and its peers."""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.gradients import jax_peers
from benchmarks.gradients.exact import Exact, as_vector, exact, residual
from benchmarks.gradients.problems import Cell
from benchmarks.timing import interleaved, temporary_mebibytes

__all__ = [
    "TOL",
    "Contender",
    "Result",
    "compiled_gradient",
    "gradient_error",
    "ours",
    "race",
    "solver_of",
]

TOL = 1e-5
# Peers stop by other norms than the worst example's. Their first forward tolerance that
# meets TOL is taken, in units of TOL.
FACTORS = (3.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
# Earlier runs leave their state in caches and cores. Short runs are repeated for so
# long.
LEAST_SECONDS = 0.01
# A way ends if it takes so many times the library's best time so far, or so many times
# ours.
MAX_OVER_BEST, MAX_OVER_OURS = 5.0, 100.0
MAX_RESIDUAL = 100.0  # times TOL: beyond it a smaller tolerance does not help
MAX_ERROR = 0.1  # of a gradient, relative: beyond it the problem is not solved


class Contender(NamedTuple):
    """A way to the gradient."""

    name: str
    run: Callable[..., tuple[Any, Any]]  # returns ``(state, gradient)``
    mebibytes: float  # of temporary memory
    compile_seconds: float


class Result(NamedTuple):
    """A contender in one cell."""

    name: str
    seconds: float  # the median run
    mebibytes: float  # of temporary memory
    residual: float  # the worst example's, relative
    error: float  # of the gradient, relative to the exact one
    spread: float = 0.0  # interquartile range of the runs over their median
    compile_seconds: float = float("nan")


def race(cell: Cell, *, repeats: int, peers: bool = True) -> dict[str, Result]:
    """Every library's best way, in interleaved runs.

    A library without a way that solves the problem is left out.
    """
    first = Contender("unroll_jax", *compiled_gradient(cell, ours(cell)))
    truth = exact(cell, first.run()[0])
    # Peers that break down are left out, without JAX's log of their errors.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    seconds_of_ours = _least_seconds(first.run)
    best = {"unroll_jax": first}
    for library in jax_peers.LIBRARIES if peers else ():
        way = _best(cell, truth, library, MAX_OVER_OURS * seconds_of_ours)
        if way is not None:
            best[library] = way

    calls = max(1, round(LEAST_SECONDS / seconds_of_ours))
    runs = {
        library: lambda run=way.run: [run() for _ in range(calls)]
        for library, way in best.items()
    }
    results = {}
    for library, seconds in interleaved(runs, repeats=repeats).items():
        way = best[library]
        state, gradient = way.run()
        low, median, high = np.quantile(seconds / calls, [0.25, 0.5, 0.75]).tolist()
        results[library] = Result(
            name=way.name,
            seconds=median,
            mebibytes=way.mebibytes,
            residual=residual(cell, state),
            error=gradient_error(truth, gradient),
            spread=(high - low) / median,
            compile_seconds=way.compile_seconds,
        )
    return results


def compiled_gradient(
    cell: Cell, find: Callable[..., jax.Array], *arguments: jax.Array
) -> tuple[Callable[..., tuple[Any, Any]], float, float]:
    """The program for the state and the gradient of <target, state>.

    It is not taken from JAX's cache on disk.

    Args:
      cell: the problem.
      find: ``(params, *arguments) -> state``.
      arguments: the defaults. The program takes others.

    Returns:
      ``(program, temporary memory in MiB, seconds to compile)``.
    """

    def loss(params: Any, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = find(params, *arguments)
        return jnp.sum(cell.target * state), state

    cached = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    lower = jax.jit(jax.grad(loss, has_aux=True)).lower
    seconds, program = _time(lambda: lower(cell.params, *arguments).compile())
    jax.config.update("jax_enable_compilation_cache", cached)

    def run(*others: jax.Array) -> tuple[Any, Any]:
        results = program(cell.params, *(others or arguments))
        gradient, state = jax.block_until_ready(results)
        return state, gradient

    return run, temporary_mebibytes(program), seconds


def gradient_error(truth: Exact, gradient: Any) -> float:
    """Relative, in the Euclidean norm over all parameters."""
    difference = as_vector(gradient) - truth.gradient
    return float(np.linalg.norm(difference) / np.linalg.norm(truth.gradient))


def ours(cell: Cell, **options: Any) -> Callable[[Any], jax.Array]:
    """Solves with the defaults, and like the peers reports no failures."""
    options = {"batch_ndim": 1, "tol": TOL, "on_failure": "accept"} | options

    def find(params):
        z, _ = unroll_jax.equilibrium(cell.layer, params, cell.start, cell.x, **options)
        return z

    return find


def _best(cell: Cell, truth: Exact, library: str, limit: float) -> Contender | None:
    """The quickest of a library's ways that solve the problem within ``limit``."""
    best = None
    least = float("inf")
    for name, way in jax_peers.ways(cell).get(library, {}).items():
        contender = solver_of(cell, truth, name, way, min(limit, MAX_OVER_BEST * least))
        if contender is None:
            continue
        seconds = _least_seconds(contender.run)
        if seconds < least:
            best, least = contender, seconds
    return best


def _builder(
    cell: Cell, truth: Exact, name: str, way: functools.partial
) -> Callable[[float], Contender]:
    """A contender by forward tolerance, in units of TOL.

    Adjoint systems are solved to the relative residual TOL.
    """
    if way.func is jax_peers.banax:  # its tolerances are constants
        return lambda factor: Contender(
            name, *compiled_gradient(cell, way(cell, factor * TOL, TOL))
        )
    # Tolerances are absolute: of an example if mapped over examples, else of the batch.
    sizes = np.linalg.norm(truth.z.reshape(len(truth.z), -1), axis=1)
    tol = TOL * float(np.median(sizes))
    if not name.endswith("vmap"):
        tol *= np.sqrt(len(sizes))
    run, *figures = compiled_gradient(cell, way(cell, TOL), jnp.float32(tol))
    return lambda factor: Contender(
        name, functools.partial(run, jnp.float32(factor * tol)), *figures
    )


def solver_of(
    cell: Cell,
    truth: Exact,
    name: str,
    way: functools.partial,
    limit: float = float("inf"),
) -> Contender | None:
    """A peer's way with the largest tolerance that solves the problem, or None.

    ``limit`` is the most seconds of a run.
    """
    try:
        return _solver(cell, truth, _builder(cell, truth, name, way), limit)
    # a breakdown, as a peer's linear solver reports it
    except (RuntimeError, ValueError):
        return None


def _solver(
    cell: Cell, truth: Exact, build: Callable[[float], Contender], limit: float
) -> Contender | None:
    """As `solver_of`, without breakdowns."""
    build(FACTORS[0]).run()  # to warm up
    for factor in FACTORS:
        contender = build(factor)
        seconds, (state, gradient) = _time(contender.run)
        reached = residual(cell, state)
        # NaN ends here too
        if seconds > limit or not reached <= MAX_RESIDUAL * TOL:
            return None
        if reached <= TOL:
            return contender if gradient_error(truth, gradient) <= MAX_ERROR else None
    return None


def _time(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    outcome = run()
    return time.perf_counter() - began, outcome


def _least_seconds(run: Callable[[], Any]) -> float:
    return min(_time(run)[0] for _ in range(3))
