"""Does compile time grow with depth? The training step of 7 and of 64 layers over 1 layer."""

import time

import jax
import numpy as np

from benchmarks.record import Record
from benchmarks.timing import table
from benchmarks.video import training_step

__all__ = ["main"]

DEPTHS, REPEATS = (1, 7, 64), 5
BAR = 1.5  # of 7 layers over 1


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints the median time to trace, lower and compile at each depth, over one layer's."""
    del peers  # there are none
    depths, repeats = (DEPTHS[:2], 2) if quick else (DEPTHS, REPEATS)
    cache = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        runs = _timed(depths, repeats)
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    record = Record()
    for depth, seconds in runs.items():
        record.time(f"layers_{depth}_seconds", np.array(seconds))
    print(f"trace + compile of a constrained training step, median of {repeats}, {jax.default_backend()}")
    rows = [[str(depth), f"{record.figures[f'layers_{depth}_seconds']:.2f}"] for depth in depths]
    print(table(["layers", "seconds"], rows))
    for depth in depths[1:]:
        ratio = record.ratio(f"layers_{depth}_over_1", f"layers_{depth}_seconds", "layers_1_seconds")
        print(f"{depth} layers / 1 layer: {ratio:.2f}" + (f" (bar {BAR:.2f})" if depth == 7 else ""))
    return record


def _timed(depths: tuple[int, ...], repeats: int) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth in depths:
            jax.clear_caches()
            step, state, batch = training_step("constrained", depth)
            began = time.perf_counter()
            step.lower(state, batch).compile()
            seconds[depth].append(time.perf_counter() - began)
    return seconds
