"""Does compile time grow with depth? The training step of 7 layers over that of 1."""

import time

import jax
import numpy as np

from benchmarks.timing import table
from benchmarks.video import training_step

__all__ = ["main"]

DEPTHS, REPEATS = (1, 7), 5
BAR = 1.5


def main() -> dict[str, float]:
    """Prints the median time to trace, lower and compile at each depth, and their ratio."""
    jax.config.update("jax_enable_compilation_cache", False)
    seconds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for _ in range(REPEATS):
        for depth in DEPTHS:
            jax.clear_caches()
            step, state, batch = training_step("constrained", depth)
            began = time.perf_counter()
            step.lower(state, batch).compile()
            seconds[depth].append(time.perf_counter() - began)
    median = {depth: float(np.median(values)) for depth, values in seconds.items()}
    ratio = median[7] / median[1]
    print(f"trace + compile of a constrained training step, median of {REPEATS}, {jax.default_backend()}")
    print(table(["layers", "seconds"], [[str(depth), f"{value:.2f}"] for depth, value in median.items()]))
    print(f"7 layers / 1 layer: {ratio:.2f} (bar {BAR:.2f})")
    return {"ratio": ratio, **{f"layers_{depth}_seconds": value for depth, value in median.items()}}


if __name__ == "__main__":
    main()
