"""Growth of compile time with depth: the training step of 1, 7 and 64 layers."""

import time

import jax
import numpy as np

from benchmarks.record import Record
from benchmarks.timing import table
from unroll_jax.train.config.video import ModelConfig, VideoConfig
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import TrainState, init_state, jit_step
from unroll_jax.train.core.task import NoData
from unroll_jax.train.data.video import VideoSpec
from unroll_jax.train.tasks.video import make

__all__ = ["main", "training_step"]

DEPTHS, REPEATS = (1, 7, 64), 5
SPEC = VideoSpec(pixel_std=0.25)  # 16 x 16 patches through 20 frames
BAR = 1.5  # of 7 layers over 1


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints the median time to trace, lower and compile, and its ratio to 1 layer."""
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
    print(
        f"trace + compile of a constrained training step, median of {repeats},"
        f" {jax.default_backend()}"
    )
    rows = [
        [str(depth), f"{record.figures[f'layers_{depth}_seconds']:.2f}"]
        for depth in depths
    ]
    print(table(["layers", "seconds"], rows))
    for depth in depths[1:]:
        times = f"layers_{depth}_seconds", "layers_1_seconds"
        ratio = record.ratio(f"layers_{depth}_over_1", *times)
        bar = f" (bar {BAR:.2f})" if depth == 7 else ""
        print(f"{depth} layers / 1 layer: {ratio:.2f}{bar}")
    return record


def training_step(num_layers: int) -> tuple[jax.stages.Wrapped, TrainState, np.ndarray]:
    """The jitted constrained step of the video experiment, its first state, and a
    batch of random frames, uint8."""
    model = ModelConfig(num_layers=num_layers)
    config = VideoConfig(method="constrained", mesh="data=1", model=model)
    task = make(config, NoData(SPEC))
    plan = make_plan(task)
    shape = (config.batch_size, SPEC.num_tokens, SPEC.token_dim)
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return jit_step(task, plan), init_state(task, plan, config.seed), frames


def _timed(depths: tuple[int, ...], repeats: int) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth in depths:
            jax.clear_caches()
            step, state, batch = training_step(depth)
            began = time.perf_counter()
            step.lower(state, batch).compile()
            seconds[depth].append(time.perf_counter() - began)
    return seconds
