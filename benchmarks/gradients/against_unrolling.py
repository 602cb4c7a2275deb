"""Implicit gradients against unrolled ones: time, memory and error in sweeps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import unroll_jax
from benchmarks.gradients.exact import exact
from benchmarks.gradients.problems import Cell, deep_cell, dense_cell
from benchmarks.gradients.race import TOL, compiled_gradient, gradient_error, ours
from benchmarks.timing import interleaved, table

__all__ = ["sweeps"]

ITERATIONS = (10, 30, 100, 300, 1000)


class _Case(NamedTuple):
    """A row of the table, without its name, and its figures."""

    row: list[Any]
    figures: dict[str, float]


def sweeps() -> dict[str, float]:
    """Prints both over iterations, depth, width, tolerance and contraction."""
    figures = _print_sweep(
        "The same number of plain steps forward, and at most as many of conjugate"
        " gradients back (|W|^2 = 0.999)",
        {
            f"{count} iterations": functools.partial(_same_iterations, count)
            for count in ITERATIONS
        },
    )
    # (cell, tolerance) by name
    cells = {f"{depth} layers": (deep_cell(depth), TOL) for depth in (1, 3, 5)}
    for dim in (64, 256, 1024):
        cells[f"width {dim}, random"] = dense_cell(dim, 0.99, "random"), TOL
    for tol in (1e-2, 1e-3, 1e-4, 1e-5):
        cells[f"tolerance {tol:.0e}"] = dense_cell(256, 0.99, "spread"), tol
    for square in (0.9, 0.99, 0.999):
        cells[f"|W|^2 = {square}"] = dense_cell(256, square, "spread"), TOL
    return figures | _print_sweep(
        "Plain steps to the tolerance, unrolled; the defaults, implicit",
        {name: functools.partial(_to_tolerance, *each) for name, each in cells.items()},
    )


def _print_sweep(title: str, cases: dict[str, Callable[[], _Case]]) -> dict[str, float]:
    print(
        f"\n{title}; dense, m = 256, |W|^2 = 0.99 spread, tolerance {TOL:.0e}, batch 64"
        " if not said otherwise:"
    )
    rows = []
    figures = {}
    for name, compare in cases.items():
        case = compare()
        rows.append([name, *case.row])
        figures |= {f"{name} {what}": value for what, value in case.figures.items()}
    header = ["", "steps", "unrolled ms", "implicit ms", "ratio", "unrolled MiB"]
    print(table([*header, "implicit MiB", "errors", ""], rows), flush=True)
    return figures


def _same_iterations(count: int) -> _Case:
    # tolerances that are not reached
    options = {"solver": "picard", "tol": 1e-30, "max_steps": count}
    options |= {"adjoint": "conjugate_gradient", "adjoint_tol": 1e-30}
    options["adjoint_max_steps"] = count
    return _compare(dense_cell(256, 0.999, "spread"), count, options)


def _to_tolerance(cell: Cell, tol: float) -> _Case:
    options = {"solver": "picard", "tol": tol, "max_steps": 20_000}
    arguments = cell.layer, cell.params, cell.start, cell.x
    _, info = unroll_jax.equilibrium(*arguments, **options)
    return _compare(cell, int(np.max(info.steps)), {"tol": tol})


def _compare(cell: Cell, count: int, implicit: dict[str, Any]) -> _Case:
    unrolled = {"adjoint": unroll_jax.fixed_point.unrolled(count)}
    built = [
        compiled_gradient(cell, ours(cell, **options))
        for options in (unrolled, implicit)
    ]
    memory = [mebibytes for _, mebibytes, _ in built]
    runs = {str(way): run for way, (run, *_) in enumerate(built)}
    results = [run() for run in runs.values()]
    truth = exact(cell, results[1][0])
    errors = [gradient_error(truth, gradient) for _, gradient in results]
    seconds = interleaved(runs, repeats=5, warmup=1)
    time = [float(np.median(values)) for values in seconds.values()]
    ratio = time[1] / time[0]
    figures = {
        "time_ratio": ratio,
        "unrolled_mebibytes": memory[0],
        "implicit_mebibytes": memory[1],
    }
    milliseconds = [1e3 * value for value in time]
    return _Case([count, *milliseconds, ratio, *memory, *errors], figures)
