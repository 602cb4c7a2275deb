"""One equilibrium problem, solved and differentiated by this library and by each
peer at its best."""

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
# Peers stop by other norms than the worst example's: of their forward tolerances the
# first that meets TOL is taken.
FACTORS = (3.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
# What ran before leaves caches and cores in its own state: short runs are timed several
# at a time.
LEAST_SECONDS = 0.01
HOPELESS, BEATEN = 5.0, 100.0  # times the library's best so far, and times ours
FAR = 100.0  # times TOL: a residual that a smaller tolerance does not mend
# relative error of a gradient beyond which a way has not solved the problem
SENSELESS = 0.1


class Contender(NamedTuple):
    """A way to the gradient: a call that returns ``(state, gradient)``, its
    temporary memory and seconds to compile."""

    name: str
    run: Callable[..., tuple[Any, Any]]
    mebibytes: float
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
    """Every library's best way in interleaved runs; a library that solves the
    problem in no way is left out."""
    first = Contender("unroll_jax", *compiled_gradient(cell, ours(cell)))
    truth = exact(cell, first.run()[0])
    # the breakdowns of peers, which are counted
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    limit = BEATEN * _least_seconds(first.run)
    winners = {
        library: _best(cell, truth, library, limit)
        for library in (jax_peers.LIBRARIES if peers else ())
    }
    best = {"unroll_jax": first} | {
        library: way for library, way in winners.items() if way is not None
    }
    calls = max(1, round(LEAST_SECONDS / _least_seconds(first.run)))
    runs = {
        library: lambda run=way.run: [run() for _ in range(calls)]
        for library, way in best.items()
    }
    results = {}
    for library, seconds in interleaved(runs, repeats=repeats).items():
        way = best[library]
        state, gradient = way.run()
        low, median, high = np.quantile(seconds / calls, [0.25, 0.5, 0.75]).tolist()
        figures = way.mebibytes, residual(cell, state), gradient_error(truth, gradient)
        results[library] = Result(
            way.name, median, *figures, (high - low) / median, way.compile_seconds
        )
    return results


def compiled_gradient(
    cell: Cell, find: Callable[..., jax.Array], *arguments: jax.Array
) -> tuple[Callable[..., tuple[Any, Any]], float, float]:
    """The program for the state and the gradient of <target, state>, its temporary
    memory in MiB, seconds to compile.

    ``find`` is ``(params, *arguments) -> state``; the program takes other arguments,
    these are the default. It is not taken from JAX's cache on disk.
    """

    def loss(params: Any, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = find(params, *arguments)
        return jnp.sum(cell.target * state), state

    cached = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    lower = jax.jit(jax.grad(loss, has_aux=True)).lower
    seconds, program = _timed(lambda: lower(cell.params, *arguments).compile())
    jax.config.update("jax_enable_compilation_cache", cached)

    def run(*others: jax.Array) -> tuple[Any, Any]:
        gradient, state = jax.block_until_ready(
            program(cell.params, *(others or arguments))
        )
        return state, gradient

    return run, temporary_mebibytes(program), seconds


def gradient_error(truth: Exact, gradient: Any) -> float:
    """Relative, in the Euclidean norm over all parameters."""
    return float(
        np.linalg.norm(as_vector(gradient) - truth.gradient)
        / np.linalg.norm(truth.gradient)
    )


def ours(cell: Cell, **options: Any) -> Callable[[Any], jax.Array]:
    """Solves with the defaults, and as the peers reports no failures."""
    options = {"batch_ndim": 1, "tol": TOL, "on_failure": "accept"} | options
    return lambda params: unroll_jax.equilibrium(
        cell.layer, params, cell.start, cell.x, **options
    )[0]


def _best(cell: Cell, truth: Exact, library: str, limit: float) -> Contender | None:
    """The quickest of a library's ways that solve the problem within the limit of
    seconds."""
    best, least = None, float("inf")
    for name, way in jax_peers.ways(cell).get(library, {}).items():
        contender = solver_of(cell, truth, name, way, min(limit, HOPELESS * least))
        seconds = float("inf") if contender is None else _least_seconds(contender.run)
        if seconds < least:
            best, least = contender, seconds
    return best


def _builder(
    cell: Cell, truth: Exact, name: str, way: functools.partial
) -> Callable[[float], Contender]:
    """A contender for a forward tolerance in units of TOL; adjoint systems use TOL,
    relative."""
    if way.func is jax_peers.banax:  # its tolerances are constants
        return lambda factor: Contender(
            name, *compiled_gradient(cell, way(cell, factor * TOL, TOL))
        )
    size = float(np.median(np.linalg.norm(truth.z.reshape(len(truth.z), -1), axis=1)))
    norm = TOL * size * (1.0 if name.endswith("vmap") else np.sqrt(len(truth.z)))
    run, *figures = compiled_gradient(cell, way(cell, TOL), jnp.float32(norm))
    return lambda factor: Contender(
        name, functools.partial(run, jnp.float32(factor * norm)), *figures
    )


def solver_of(
    cell: Cell,
    truth: Exact,
    name: str,
    way: functools.partial,
    limit: float = float("inf"),
) -> Contender | None:
    """A peer's way with the largest tolerance that solves the problem within
    seconds; None if there is none."""
    try:
        return _solver(cell, truth, _builder(cell, truth, name, way), limit)
    # a breakdown, as a peer's linear solver reports it
    except (RuntimeError, ValueError):
        return None


def _solver(
    cell: Cell, truth: Exact, build: Callable[[float], Contender], limit: float
) -> Contender | None:
    """The way with the largest tolerance that solves the problem; None if none does,
    or a run takes too long."""
    build(FACTORS[0]).run()  # to warm up
    for factor in FACTORS:
        contender = build(factor)
        seconds, (state, gradient) = _timed(contender.run)
        reached = residual(cell, state)
        if seconds > limit or not reached <= FAR * TOL:
            return None
        if reached <= TOL:
            return contender if gradient_error(truth, gradient) <= SENSELESS else None
    return None


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    outcome = run()
    return time.perf_counter() - began, outcome


def _least_seconds(run: Callable[[], Any]) -> float:
    return min(_timed(run)[0] for _ in range(3))
