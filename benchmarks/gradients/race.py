"""One equilibrium problem, solved and differentiated by this library and by each peer at its best."""

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
from benchmarks.gradients.exact import Exact, exact, residual
from benchmarks.gradients.problems import Cell
from benchmarks.timing import interleaved, temporary_mebibytes

__all__ = ["TOL", "Contender", "Result", "compiled_gradient", "gradient_error", "ours", "race"]

TOL = 1e-5
# Peers stop by other norms than the worst example's: of their forward tolerances the first that meets TOL is taken.
FACTORS = (3.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
# What ran before leaves caches and cores in its own state: short runs are timed several at a time.
LEAST_SECONDS = 0.01
HOPELESS, BEATEN = 5.0, 100.0  # times the library's best so far, and times ours
FAR = 100.0  # times TOL: a residual that a smaller tolerance does not mend
SENSELESS = 0.1  # relative error of a gradient beyond which a way has not solved the problem


class Contender(NamedTuple):
    """A way to the gradient.

    Attributes:
      name: of the solver and its settings.
      run: a call that returns ``(state, gradient)``, both done.
      mebibytes: of temporary memory, NaN where it is not known.
      compile_seconds: to trace and compile it, NaN where nothing is compiled.
    """

    name: str
    run: Callable[[], tuple[Any, Any]]
    mebibytes: float
    compile_seconds: float


class Result(NamedTuple):
    """The result of a contender in one cell.

    Attributes:
      name: of the contender.
      seconds: the median run.
      mebibytes: of temporary memory.
      residual: the worst example's, relative.
      error: of the gradient, relative to the exact one.
      spread: interquartile range of the runs over their median.
      compile_seconds: as of a contender.
    """

    name: str
    seconds: float
    mebibytes: float
    residual: float
    error: float
    spread: float = 0.0
    compile_seconds: float = float("nan")


def race(cell: Cell, *, repeats: int, peers: bool = True) -> dict[str, Result]:
    """Every library's best way in interleaved runs; a library that solves the problem in no way is left out."""
    first = Contender("unroll_jax", *_compiled(cell, ours(cell)))
    truth = exact(cell, first.run()[0])
    best = {"unroll_jax": first}
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # the breakdowns of peers, which are counted
    limit = BEATEN * min(_timed(first.run)[0] for _ in range(3))
    for library, ways in (_peers(cell, truth) if peers else {}).items():
        result = _best(cell, truth, ways, limit)
        if result is not None:
            best[library] = result
    calls = max(1, round(LEAST_SECONDS / min(_timed(first.run)[0] for _ in range(3))))
    seconds = interleaved({library: _again(way.run, calls) for library, way in best.items()}, repeats=repeats)
    results = {}
    for library, way in best.items():
        state, gradient = way.run()
        figures = (way.mebibytes, residual(cell, state), gradient_error(truth, gradient))
        low, median, high = np.quantile(seconds[library], [0.25, 0.5, 0.75])
        spread = float((high - low) / median)
        results[library] = Result(way.name, float(median) / calls, *figures, spread, way.compile_seconds)
    return results


def compiled_gradient(
    cell: Cell, find: Callable[..., jax.Array], *arguments: jax.Array
) -> tuple[Callable[..., tuple[Any, Any]], float]:
    """The program for the state and the gradient of <target, state>, and its temporary memory in MiB.

    ``find`` is ``(params, *arguments) -> state``; what is returned takes other arguments, these are the default.
    """

    def loss(params: Any, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = find(params, *arguments)
        return jnp.sum(cell.target * state), state

    program = jax.jit(jax.grad(loss, has_aux=True)).lower(cell.params, *arguments).compile()

    def run(*others: jax.Array) -> tuple[Any, Any]:
        gradient, state = jax.block_until_ready(program(cell.params, *(others or arguments)))
        return state, gradient

    return run, temporary_mebibytes(program)


def _compiled(
    cell: Cell, find: Callable[..., jax.Array], *arguments: jax.Array
) -> tuple[Callable[..., tuple[Any, Any]], float, float]:
    """The same, and the seconds that it took; not from JAX's cache on disk."""
    cached = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    began = time.perf_counter()
    run, mebibytes = compiled_gradient(cell, find, *arguments)
    seconds = time.perf_counter() - began
    jax.config.update("jax_enable_compilation_cache", cached)
    return run, mebibytes, seconds


def gradient_error(truth: Exact, gradient: Any) -> float:
    """Relative, in the Euclidean norm over all parameters."""
    vector = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(gradient)])
    return float(np.linalg.norm(vector - truth.gradient) / np.linalg.norm(truth.gradient))


def ours(cell: Cell) -> Callable[[Any], jax.Array]:
    """Solves with the defaults, and as the peers reports no failures."""
    options: dict[str, Any] = {} if isinstance(cell.layer, unroll_jax.Descent) else {"batch_ndim": 1}
    options |= {"tol": TOL, "on_failure": "accept"}
    return lambda params: unroll_jax.equilibrium(cell.layer, params, cell.start, cell.x, **options)[0]


# Compiles a way, and returns what makes a contender of it for a forward tolerance in units of TOL.
_Way = Callable[[], Callable[[float], Contender]]


def _peers(cell: Cell, truth: Exact) -> dict[str, dict[str, _Way]]:
    """library -> name of a way -> the way; all tolerances of the adjoint system are TOL, relative."""
    size = float(np.median(np.linalg.norm(truth.z.reshape(len(truth.z), -1), axis=1)))

    def in_jax(name: str, way: jax_peers.Way) -> _Way:
        norm = TOL * size * (1.0 if name.endswith("vmap") else np.sqrt(len(truth.z)))

        def build() -> Callable[[float], Contender]:
            run, *figures = _compiled(cell, way(cell, TOL), jnp.float32(norm))
            return lambda factor: Contender(name, functools.partial(run, jnp.float32(factor * norm)), *figures)

        return build

    def in_banax(name: str, way: Callable[..., Any]) -> _Way:
        return lambda: lambda factor: Contender(name, *_compiled(cell, way(cell, factor * TOL, TOL)))

    return {
        "jaxopt": {name: in_jax(name, way) for name, way in jax_peers.jaxopt_ways(cell).items()},
        "optimistix": {name: in_jax(name, way) for name, way in jax_peers.optimistix_ways(cell).items()},
        "banax": {name: in_banax(name, way) for name, way in jax_peers.banax_ways().items()},
    }


def _best(cell: Cell, truth: Exact, ways: dict[str, _Way], limit: float) -> Contender | None:
    """The quickest of the ways that solve the problem within the limit of seconds."""
    best, least = None, float("inf")
    for way in ways.values():
        contender = _solver(cell, truth, way, min(limit, HOPELESS * least))
        if contender is None:
            continue
        seconds = min(_timed(contender.run)[0] for _ in range(3))
        if seconds < least:
            best, least = contender, seconds
    return best


def _solver(cell: Cell, truth: Exact, way: _Way, limit: float) -> Contender | None:
    """The way with the largest tolerance that solves the problem; None if none does, or a run takes too long."""
    try:
        build = way()
        build(FACTORS[0]).run()  # to warm up
        for factor in FACTORS:
            contender = build(factor)
            seconds, (state, gradient) = _timed(contender.run)
            reached = residual(cell, state)
            if seconds > limit or not reached <= FAR * TOL:
                return None
            if reached <= TOL:
                return contender if gradient_error(truth, gradient) <= SENSELESS else None
    except (RuntimeError, ValueError):  # a breakdown, as a peer's linear solver reports it
        return None
    return None


def _again(run: Callable[[], Any], calls: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(calls):
            run()

    return repeated


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    outcome = run()
    return time.perf_counter() - began, outcome
