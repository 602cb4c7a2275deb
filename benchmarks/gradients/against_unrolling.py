"""Implicit gradients against unrolled ones: time, memory and error as one thing
changes."""

from typing import Any

import numpy as np

import unroll_jax
from benchmarks.gradients.exact import exact
from benchmarks.gradients.problems import Cell, deep_cell, dense_cell
from benchmarks.gradients.race import TOL, compiled_gradient, gradient_error, ours
from benchmarks.timing import interleaved, table

__all__ = ["sweeps"]

ITERATIONS = (10, 30, 100, 300, 1000)


def sweeps(*, quick: bool = False) -> dict[str, float]:
    """Prints a table of both ways over iterations, depth, width, tolerance and
    contraction."""
    few = slice(1) if quick else slice(None)
    deep = [
        (f"{depth} layers", deep_cell(depth), TOL)
        for depth in (1, 3, 5)[: 2 if quick else 3]
    ]
    wide = [
        (f"width {dim}, random", dense_cell(dim, 0.99, "random"), TOL)
        for dim in (64, 256, 1024)[few]
    ]
    loose = [
        (f"tolerance {tol:.0e}", dense_cell(256, 0.99, "spread"), tol)
        for tol in (1e-2, 1e-3, 1e-4, 1e-5)[few]
    ]
    slow = [
        (f"|W|^2 = {square}", dense_cell(256, square, "spread"), TOL)
        for square in (0.9, 0.99, 0.999)[few]
    ]
    same = (
        (f"{count} iterations", _same_iterations(count))
        for count in ITERATIONS[: 2 if quick else None]
    )
    others = (
        (name, _to_tolerance(cell, tol))
        for name, cell, tol in (*deep, *wide, *loose, *slow)
    )
    figures: dict[str, float] = {}
    header = [
        "",
        "steps",
        "unrolled ms",
        "implicit ms",
        "ratio",
        "unrolled MiB",
        "implicit MiB",
        "errors",
        "",
    ]
    back = (
        "The same number of plain steps forward, and at most as many of conjugate"
        " gradients back (|W|^2 = 0.999)"
    )
    for title, parts in (
        (back, same),
        ("Plain steps to the tolerance, unrolled; the defaults, implicit", others),
    ):
        print(
            f"\n{title}; dense, m = 256, |W|^2 = 0.99 spread, tolerance {TOL:.0e},"
            " batch 64 if not said otherwise:"
        )
        rows = []
        for name, (row, case_figures) in parts:
            rows.append([name, *row])
            figures |= {f"{name} {what}": value for what, value in case_figures.items()}
        print(table(header, rows), flush=True)
    return figures


def _same_iterations(count: int) -> tuple[list[str], dict[str, float]]:
    options = {
        "solver": "picard",
        "adjoint": "conjugate_gradient",
        "max_steps": count,
        "adjoint_max_steps": count,
    }
    return _compare(
        dense_cell(256, 0.999, "spread"),
        count,
        options | {"tol": 1e-30, "adjoint_tol": 1e-30},
    )


def _to_tolerance(cell: Cell, tol: float) -> tuple[list[str], dict[str, float]]:
    options = {"solver": "picard", "tol": tol, "max_steps": 20_000}
    _, info = unroll_jax.equilibrium(
        cell.layer, cell.params, cell.start, cell.x, **options
    )
    return _compare(cell, int(np.max(info.steps)), {"tol": tol})


def _compare(
    cell: Cell, count: int, implicit: dict[str, Any]
) -> tuple[list[str], dict[str, float]]:
    unrolled = {"adjoint": unroll_jax.fixed_point.unrolled(count)}
    built = [
        compiled_gradient(cell, ours(cell, **options))
        for options in (unrolled, implicit)
    ]
    results = [run() for run, *_ in built]
    truth = exact(cell, results[1][0])
    seconds = interleaved(
        {str(way): run for way, (run, *_) in enumerate(built)}, repeats=5, warmup=1
    ).values()
    time, memory = (
        [float(np.median(values)) for values in seconds],
        [mebibytes for _, mebibytes, _ in built],
    )
    row = [
        str(count),
        *(f"{1e3 * value:.2f}" for value in time),
        f"{time[1] / time[0]:.2f}",
    ]
    row += [
        *(f"{value:.2f}" for value in memory),
        *(f"{gradient_error(truth, g):.0e}" for _, g in results),
    ]
    figures = {"unrolled_mebibytes": memory[0], "implicit_mebibytes": memory[1]}
    return row, {"time_ratio": time[1] / time[0]} | figures
