"""Equilibria and their gradients against float64, by the precision of products: TF32 by default, float32 at most."""

from typing import Any, NamedTuple

import jax

import unroll_jax
from benchmarks.gradients.exact import exact, residual
from benchmarks.gradients.problems import conv_cell, deep_cell, dense_cell
from benchmarks.gradients.race import TOL, compiled_gradient, gradient_error
from benchmarks.record import Record
from benchmarks.timing import interleaved

__all__ = ["FULL", "QUICK", "Sizes", "measure"]


class Sizes(NamedTuple):
    """Widths of the layers, channels and side of the images, and how many runs there are."""

    dim: int
    channels: int
    side: int
    batch: int
    repeats: int


FULL, QUICK = Sizes(256, 32, 32, 16, 10), Sizes(64, 8, 16, 4, 5)


def measure(sizes: Sizes) -> Record:
    """Residual, error of the gradient and seconds at the library's defaults and a tolerance of 1e-5, in float32.

    Errors are relative, to direct solves in float64 on the CPU.
    """
    cells = [
        dense_cell(sizes.dim, 0.99, "random", batch=sizes.batch),
        dense_cell(sizes.dim, 0.999, "spread", batch=sizes.batch),
        deep_cell(3, sizes.dim, 0.99, batch=sizes.batch),
        conv_cell(sizes.channels, sizes.side, 0.99, batch=min(sizes.batch, 4)),
    ]
    record = Record()
    for cell in cells:
        truth = None
        for precision in ("highest", "default"):
            with jax.default_matmul_precision(precision):
                run, *_ = compiled_gradient(cell, _find(cell))
            state, gradient = jax.device_get(run())
            with jax.default_device(jax.devices("cpu")[0]):
                truth = exact(cell, state) if truth is None else truth  # Newton's method, from the better of the two
                reached = residual(cell, state)
            name = f"{cell.name}, {precision}"
            record.figures[f"{name} residual"] = reached
            record.figures[f"{name} gradient error"] = gradient_error(truth, gradient)
            record.time(f"{name} seconds", interleaved({name: run}, repeats=sizes.repeats)[name])
    record.notes.append(f"the tolerance of equilibria is {TOL:.0e}: a larger residual was reported as a failure")
    return record


def _find(cell: Any) -> Any:
    def find(params: Any) -> jax.Array:
        options = {"tol": TOL, "on_failure": "accept"}
        return unroll_jax.equilibrium(cell.layer, params, cell.start, cell.x, **options)[0]

    return find
