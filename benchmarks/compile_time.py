"""Compile time: its growth with depth in a training step, and of each layer of the
library, beside plain JAX code of the same mathematics."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import unroll_jax as uj
from benchmarks.plain_layers import PLAIN
from benchmarks.record import Record
from benchmarks.timing import table
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import TrainState, init_state, jit_step
from unroll_jax.train.core.task import NoData
from unroll_jax.train.tasks.video.data import VideoSpec
from unroll_jax.train.tasks.video.options import ModelConfig, VideoConfig
from unroll_jax.train.tasks.video.task import make

__all__ = ["main", "training_step", "unrolled_gradient"]

DEPTHS, REPEATS = (1, 7, 64), 5
SPEC = VideoSpec(pixel_std=0.25)  # 16 x 16 patches through 20 frames
BAR = 1.5  # of 7 layers over 1
LAYERS = tuple(uj.DESCENTS)
QUICK_LAYERS = ("softmax_attention", "multihead_attention")
NUM_LAYERS = 12
PLAIN_BAR = 2.0  # of a layer over plain JAX


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints times to trace, lower and compile, and their ratios."""
    del peers  # there are none
    depths, repeats = (DEPTHS[:2], 2) if quick else (DEPTHS, REPEATS)
    names = QUICK_LAYERS if quick else LAYERS
    cache = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        runs = _timed(depths, repeats)
        layers = _time_layers(names, repeats)
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
    _print_layers(record, layers, repeats)
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


def unrolled_gradient(
    name: str, *, plain: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The gradient of 12 layers in their parameters, by the library or in plain JAX.

    They are of the example of `DESCENTS`.
    """
    descent, y, x = uj.DESCENTS[name].example(jax.random.key(0), (4,))
    params = jax.vmap(descent.init)(jax.random.split(jax.random.key(1), NUM_LAYERS))

    def loss(params: Any, y: Any, x: Any) -> jax.Array:
        if plain:
            step = lambda y, each: (PLAIN[name](each, y, x), None)  # noqa: E731
            after, _ = jax.lax.scan(step, y, params, length=NUM_LAYERS)
        else:
            after, _ = uj.unroll(
                descent, params, y, x, num_layers=NUM_LAYERS, tied=False, record=None
            )
        leaves = jax.tree.leaves(after)
        return sum((jnp.sum(leaf**2) for leaf in leaves), start=jnp.zeros(()))

    return jax.value_and_grad(loss, argnums=(0, 1)), (params, y, x)


def _time_layers(names: tuple[str, ...], repeats: int) -> dict[str, list[float]]:
    """Seconds of the CPU, by the name of a layer, with "plain" before plain JAX."""
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name in names:
            for plain in (False, True) if name in PLAIN else (False,):
                function, arguments = unrolled_gradient(name, plain=plain)
                jax.clear_caches()
                began = time.process_time()
                jax.jit(function).lower(*arguments).compile()
                spent = time.process_time() - began
                key = f"plain {name}" if plain else name
                seconds.setdefault(key, []).append(spent)
    return seconds


def _print_layers(
    record: Record, seconds: dict[str, list[float]], repeats: int
) -> None:
    for name, times in seconds.items():
        record.time(f"{name}_seconds", np.array(times))
    rows = []
    for name in seconds:
        if name.startswith("plain "):
            continue
        row = [name, f"{record.figures[f'{name}_seconds']:.2f}", "-", "-"]
        if name in PLAIN:
            times = f"{name}_seconds", f"plain {name}_seconds"
            ratio = record.ratio(f"{name}_over_plain", *times)
            row[2:] = f"{record.figures[times[1]]:.2f}", f"{ratio:.2f}"
        rows.append(row)
    print(
        f"\nCPU seconds to trace and compile the gradient of {NUM_LAYERS} layers,"
        f" median of {repeats} (bar {PLAIN_BAR:.0f} times plain JAX)"
    )
    print(table(["layer", "seconds", "plain JAX", "ratio"], rows))
