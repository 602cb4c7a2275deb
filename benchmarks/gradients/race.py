"""One equilibrium problem, solved and differentiated by this library and by each peer at its best."""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax
from benchmarks.gradients import jax_peers, torch_peer
from benchmarks.gradients.exact import Exact, exact, residual
from benchmarks.gradients.problems import Cell
from benchmarks.timing import interleaved, temporary_mebibytes

__all__ = ["TOL", "Contender", "Result", "compiled_gradient", "gradient_error", "race"]

TOL = 1e-5
# Peers stop by other norms than the worst example's, so their tolerances are lowered until that meets TOL.
FACTORS = (0.7, 0.3, 0.1)
HOPELESS, BEATEN = 5.0, 100.0  # times the library's best so far, and times ours
FAR = 100.0  # times TOL: a residual that a smaller tolerance does not mend
SENSELESS = 0.1  # relative error of a gradient beyond which a way has not solved the problem


class Contender(NamedTuple):
    """A way to the gradient.

    Attributes:
      name: of the solver and its settings.
      run: a call that returns ``(state, gradient)``, both done.
      mebibytes: of temporary memory, NaN where it is not known.
    """

    name: str
    run: Callable[[], tuple[Any, Any]]
    mebibytes: float


class Result(NamedTuple):
    """What a contender did in one cell.

    Attributes:
      name: of the contender.
      seconds: the median run.
      mebibytes: of temporary memory.
      residual: the worst example's, relative.
      error: of the gradient, relative to the exact one.
    """

    name: str
    seconds: float
    mebibytes: float
    residual: float
    error: float


def race(cell: Cell, *, repeats: int) -> dict[str, Result]:
    """Every library's best way in interleaved runs; a library that solves the problem in no way is left out."""
    ours = Contender("unroll_jax", *compiled_gradient(cell, _ours(cell)))
    truth = exact(cell, ours.run()[0])
    best = {"unroll_jax": ours}
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # the breakdowns of peers, which are counted
    for library, ways in _peers(cell, truth).items():
        found = _best(cell, truth, ways, BEATEN * _timed(ours.run)[0])
        if found is not None:
            best[library] = found
    seconds = interleaved({library: way.run for library, way in best.items()}, repeats=repeats)
    results = {}
    for library, way in best.items():
        state, gradient = way.run()
        figures = (way.mebibytes, residual(cell, state), gradient_error(truth, gradient))
        results[library] = Result(way.name, float(np.median(seconds[library])), *figures)
    return results


def compiled_gradient(cell: Cell, find: Callable[[Any], jax.Array]) -> tuple[Callable[[], tuple[Any, Any]], float]:
    """The program for the state and the gradient of <target, state>, and its temporary memory in MiB."""

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        state = find(params)
        return jnp.sum(cell.target * state), state

    program = jax.jit(jax.grad(loss, has_aux=True)).lower(cell.params).compile()

    def run() -> tuple[Any, Any]:
        gradient, state = jax.block_until_ready(program(cell.params))
        return state, gradient

    return run, temporary_mebibytes(program)


def gradient_error(truth: Exact, gradient: Any) -> float:
    """Relative, in the Euclidean norm over all parameters."""
    vector = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(gradient)])
    return float(np.linalg.norm(vector - truth.gradient) / np.linalg.norm(truth.gradient))


def _ours(cell: Cell) -> Callable[[Any], jax.Array]:
    """With the defaults, told as the peers are to report no failures."""
    return lambda params: unroll_jax.equilibrium(cell.layer, params, cell.start, cell.x, tol=TOL, on_failure="accept")[
        0
    ]


def _peers(cell: Cell, truth: Exact) -> dict[str, dict[str, Callable[[float], Contender]]]:
    """library -> way -> (factor of the tolerances -> contender)."""
    size = float(np.median(np.linalg.norm(truth.z.reshape(len(truth.z), -1), axis=1)))

    def in_jax(name: str, way: jax_peers.Way) -> Callable[[float], Contender]:
        norm = size if name.endswith("vmap") else size * np.sqrt(len(truth.z))
        return lambda factor: Contender(
            name, *compiled_gradient(cell, way(cell, float(factor * TOL * norm), factor * TOL))
        )

    libraries: dict[str, dict[str, Callable[[float], Contender]]] = {
        "jaxopt": {name: in_jax(name, way) for name, way in jax_peers.jaxopt_ways(cell).items()},
        "optimistix": {name: in_jax(name, way) for name, way in jax_peers.optimistix_ways(cell).items()},
        "torchdeq": {
            name: lambda factor, name=name, settings=settings: Contender(
                name, torch_peer.gradient(cell, settings, tol=factor * TOL), float("nan")
            )
            for name, settings in torch_peer.ways().items()
        },
    }
    return libraries


def _best(cell: Cell, truth: Exact, ways: dict[str, Callable[[float], Contender]], limit: float) -> Contender | None:
    """The quickest of the ways that solve the problem within the limit of seconds."""
    best, least = None, float("inf")
    for build in ways.values():
        contender = _solver(cell, truth, build, min(limit, HOPELESS * least))
        if contender is None:
            continue
        seconds = min(_timed(contender.run)[0] for _ in range(3))
        if seconds < least:
            best, least = contender, seconds
    return best


def _solver(cell: Cell, truth: Exact, build: Callable[[float], Contender], limit: float) -> Contender | None:
    """The way with the largest tolerance that solves the problem; None if none does, or a run takes too long."""
    for factor in FACTORS:
        contender = build(factor)
        try:
            seconds, (state, gradient) = _timed(contender.run)
        except (RuntimeError, ValueError):  # a breakdown, as a peer's linear solver reports it
            return None
        reached = residual(cell, state)
        if seconds > limit or not reached <= FAR * TOL:
            return None
        if reached <= TOL and gradient_error(truth, gradient) <= SENSELESS:
            return contender
    return None


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found
