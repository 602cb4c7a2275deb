"""What do descent constraints cost a training step? Constrained over plain, same model, same batch."""

from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import interleaved, matmul_rate, table, temporary_mebibytes
from benchmarks.video import compiled_step, matmul_flops

__all__ = ["main"]

NUM_LAYERS, BATCH_SIZE, REPEATS = 7, 64, 60
BAR = 1.10


def main() -> dict[str, float]:
    """Prints medians of interleaved steps, their ratio, the temporary memory and the floor."""
    compiled = {method: compiled_step(method, NUM_LAYERS) for method in ("erm", "constrained")}
    seconds = interleaved({name: _stepper(*parts) for name, parts in compiled.items()}, repeats=REPEATS)
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    memory = {name: temporary_mebibytes(parts[0]) for name, parts in compiled.items()}
    floor = matmul_flops(NUM_LAYERS, BATCH_SIZE) / matmul_rate(1280, 256, 256)
    rows = [
        [name, f"{1e3 * median[name]:.1f}", f"{1e3 * np.min(seconds[name]):.1f}", f"{memory[name]:.1f}"]
        for name in median
    ]
    ratio, memory_ratio = median["constrained"] / median["erm"], memory["constrained"] / memory["erm"]
    print(f"one training step, UT of {NUM_LAYERS} layers, batch {BATCH_SIZE}, {REPEATS} runs, {jax.default_backend()}")
    print(table(["method", "median ms", "least ms", "temp MiB"], rows))
    print(f"constrained / erm: time {ratio:.3f} (bar {BAR:.2f}), temporary memory {memory_ratio:.3f}")
    print(f"floor: its matrix products alone at the rate of a 1280 x 256 x 256 product, {1e3 * floor:.1f} ms")
    return {"time_ratio": ratio, "memory_ratio": memory_ratio, **{f"{name}_seconds": s for name, s in median.items()}}


def _stepper(step: Callable, state: object, batch: np.ndarray) -> Callable[[], object]:
    held = [state]

    def run() -> object:
        held[0], metrics = step(held[0], batch)
        return jax.block_until_ready((held[0], metrics))

    return run


if __name__ == "__main__":
    main()
