"""Implicit gradients against unrolled ones: time, memory and error as one thing changes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import unroll_jax
from benchmarks.gradients.exact import exact
from benchmarks.gradients.problems import Cell, deep_cell, dense_cell
from benchmarks.gradients.race import TOL, compiled_gradient, gradient_error
from benchmarks.timing import interleaved, table

__all__ = ["sweeps"]

ITERATIONS = (10, 30, 100, 300, 1000)


def sweeps(*, quick: bool = False) -> dict[str, float]:
    """Prints a table of both ways over iterations, depth, width, tolerance and contraction."""
    figures: dict[str, float] = {}
    sizes, squares, tolerances = (64, 256, 1024), (0.9, 0.99, 0.999), (1e-2, 1e-3, 1e-4, 1e-5)
    depths, counts = (1, 3, 5), ITERATIONS
    if quick:
        sizes, squares, tolerances, depths, counts = sizes[:1], squares[:1], tolerances[1:2], depths[:2], counts[:2]
    iterations = [(f"{count} iterations", _same_iterations(count)) for count in counts]
    others = [
        *((f"{depth} layers", _to_tolerance(deep_cell(depth))) for depth in depths),
        *((f"width {dim}, random", _to_tolerance(dense_cell(dim, 0.99, "random"))) for dim in sizes),
        *((f"tolerance {tol:.0e}", _to_tolerance(dense_cell(256, 0.99, "spread"), tol=tol)) for tol in tolerances),
        *((f"|W|^2 = {square}", _to_tolerance(dense_cell(256, square, "spread"))) for square in squares),
    ]
    header = ["", "steps", "unrolled ms", "implicit ms", "ratio", "unrolled MiB", "implicit MiB", "errors", ""]
    for title, parts in (
        (
            "The same number of plain steps forward, and at most as many of conjugate gradients back (|W|^2 = 0.999)",
            iterations,
        ),
        ("Plain steps to the tolerance, unrolled; the defaults, implicit", others),
    ):
        print(f"\n{title}; dense, m = 256, |W|^2 = 0.99 spread, tolerance {TOL:.0e}, batch 64 if not said otherwise:")
        rows = []
        for name, measure in parts:
            row, case_figures = measure()
            rows.append([name, *row])
            figures |= {f"{name} {what}": value for what, value in case_figures.items()}
        print(table(header, rows), flush=True)
    return figures


def _same_iterations(count: int) -> Callable[[], tuple[list[str], dict[str, float]]]:
    options = {"solver": "picard", "adjoint": "conjugate_gradient", "max_steps": count, "adjoint_max_steps": count}
    never = {"tol": 1e-30, "adjoint_tol": 1e-30, "on_failure": "accept"}
    return lambda: _compare(dense_cell(256, 0.999, "spread"), count, options | never)


def _to_tolerance(cell: Cell, *, tol: float = TOL) -> Callable[[], tuple[list[str], dict[str, float]]]:
    def measure() -> tuple[list[str], dict[str, float]]:
        _, info = unroll_jax.equilibrium(
            cell.layer, cell.params, cell.start, cell.x, solver="picard", tol=tol, max_steps=20_000
        )
        return _compare(cell, int(np.max(info.steps)), {"tol": tol})

    return measure


def _compare(cell: Cell, count: int, implicit: dict[str, Any]) -> tuple[list[str], dict[str, float]]:
    ways = {
        "unrolled": {"adjoint": unroll_jax.fixed_point.unrolled(count), "on_failure": "accept"},
        "implicit": implicit,
    }
    built = {name: compiled_gradient(cell, _find(cell, options)) for name, options in ways.items()}
    results = {name: run() for name, (run, _) in built.items()}
    truth = exact(cell, results["implicit"][0])
    errors = {name: gradient_error(truth, gradient) for name, (_, gradient) in results.items()}
    seconds = interleaved({name: run for name, (run, _) in built.items()}, repeats=5, warmup=1)
    time = {name: float(np.median(values)) for name, values in seconds.items()}
    memory = {name: mebibytes for name, (_, mebibytes) in built.items()}
    row = [
        str(count),
        *(f"{1e3 * time[name]:.2f}" for name in ways),
        f"{time['implicit'] / time['unrolled']:.2f}",
        *(f"{memory[name]:.2f}" for name in ways),
        *(f"{errors[name]:.0e}" for name in ways),
    ]
    figures = {"time_ratio": time["implicit"] / time["unrolled"]}
    return row, figures | {f"{name}_mebibytes": memory[name] for name in ways}


def _find(cell: Cell, options: dict[str, Any]) -> Callable[[Any], jax.Array]:
    return lambda params: unroll_jax.equilibrium(cell.layer, params, cell.start, cell.x, **options)[0]
