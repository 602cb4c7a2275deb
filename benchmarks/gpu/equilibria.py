"""Equilibria with gradients: against jaxopt, and by the precision of products."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from benchmarks.gpu.ahead import Program
from benchmarks.gradients.exact import Exact, exact, residual
from benchmarks.gradients.jax_peers import ways
from benchmarks.gradients.problems import Cell, conv_cell, deep_cell, dense_cell
from benchmarks.gradients.race import (
    TOL,
    compiled_gradient,
    gradient_error,
    ours,
    solver_of,
)
from benchmarks.record import Record
from benchmarks.timing import interleaved

__all__ = ["FULL", "QUICK", "Sizes", "measure", "measure_precision", "programs"]

# Few of jaxopt's solvers: the part has a minute.
WAYS = ("Anderson 5, cg", "Picard, cg", "Anderson 5, bicgstab", "Picard, bicgstab")


class Sizes(NamedTuple):
    """Sizes of the problems, and the number of runs."""

    dim: int  # width of dense layers
    channels: int  # of images
    side: int  # of images
    batch: int
    repeats: int


FULL, QUICK = Sizes(256, 32, 16, 16, 5), Sizes(64, 8, 16, 4, 5)


def measure(sizes: Sizes) -> Iterator[Record]:
    """Seconds, residual and error of the gradient, of this library and of jaxopt.

    Only ways of jaxopt that meet `TOL` count.
    """
    note = f"float32 products; a tolerance of {TOL:.0e}; jaxopt's ways: "
    record = Record(notes=[note + "; ".join(WAYS)])
    for cell in _cells(sizes):
        with jax.default_matmul_precision("highest"):
            run, *_ = compiled_gradient(cell, ours(cell))
            truth = _exact(cell, run)
            runs = {"unroll_jax": run}
            known = ways(cell).get("jaxopt", {})
            for name in [name for name in known if name in WAYS]:
                contender = solver_of(cell, truth, name, known[name])
                if contender is not None:
                    runs[f"jaxopt ({name})"] = contender.run
            _add(record, cell, truth, runs, sizes.repeats)
        first, *peers = (f"{cell.name}, {name} seconds" for name in runs)
        if peers:
            quickest = min(peers, key=record.figures.__getitem__)
            record.ratio(f"{cell.name} over_jaxopt", first, quickest)
        yield record


def measure_precision(sizes: Sizes) -> Record:
    """The same of this library with products in float32 ("highest") and in TF32.

    TF32 is JAX's default on a GPU.
    """
    note = f"the tolerance is {TOL:.0e}: a larger residual was reported as a failure"
    record = Record(notes=[note])
    hard = dense_cell(sizes.dim, 0.999, "spread", batch=sizes.batch)
    for cell in [*_cells(sizes), hard]:
        runs = {}
        for precision in ("highest", "default"):
            with jax.default_matmul_precision(precision):
                runs[precision], *_ = compiled_gradient(cell, ours(cell))
        _add(record, cell, _exact(cell, runs["highest"]), runs, sizes.repeats)
    return record


def programs(sizes: Sizes) -> dict[str, Program]:
    """The gradient of every cell."""

    def gradient(cell: Cell) -> Program:
        find = ours(cell)

        def loss(params):
            return (cell.target * find(params)).sum()

        return Program(jax.grad(loss), (cell.params,))

    return {cell.name: gradient(cell) for cell in _cells(sizes)}


def _cells(sizes: Sizes) -> list[Cell]:
    return [
        dense_cell(sizes.dim, 0.99, "random", batch=sizes.batch),
        deep_cell(3, sizes.dim, 0.99, batch=sizes.batch),
        conv_cell(sizes.channels, sizes.side, 0.99, batch=min(sizes.batch, 4)),
    ]


def _exact(cell: Cell, run: Callable[[], Any]) -> Exact:
    """By direct solves in float64 on the CPU, from the state of a program."""
    state = jax.device_get(run()[0])
    with jax.default_device(jax.devices("cpu")[0]):
        return exact(cell, state)


def _add(
    record: Record,
    cell: Cell,
    truth: Exact,
    runs: dict[str, Callable[[], Any]],
    repeats: int,
) -> None:
    for who, seconds in interleaved(runs, repeats=repeats).items():
        name = f"{cell.name}, {who}"
        record.time(f"{name} seconds", seconds)
        state, gradient = jax.device_get(runs[who]())
        with jax.default_device(jax.devices("cpu")[0]):
            record.figures[f"{name} residual"] = residual(cell, state)
        record.figures[f"{name} gradient error"] = gradient_error(truth, gradient)
