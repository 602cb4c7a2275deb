"""Compile time: its growth with depth in a training step, and of each layer of the
library, beside plain JAX code of the same mathematics."""

import functools
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
from unroll_jax.train.core.step import init_state, jit_step
from unroll_jax.train.core.task import NoData
from unroll_jax.train.tasks.video.data import VideoSpec
from unroll_jax.train.tasks.video.options import ModelConfig, VideoConfig
from unroll_jax.train.tasks.video.task import make

__all__ = ["main", "training_step", "unrolled_gradient"]

DEPTHS, REPEATS = (1, 7, 64), 5
SPEC = VideoSpec(pixel_std=0.25)  # 16 x 16 patches through 20 frames
LAYERS = tuple(PLAIN)
QUICK_LAYERS = ("softmax_attention", "multihead_attention")
NUM_LAYERS = 12
# A jitted function to compile, and arguments for it.
Case = tuple[jax.stages.Wrapped, tuple[Any, ...]]


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints CPU seconds to trace, lower and compile, and their ratios."""
    del peers  # there are none
    depths, repeats = (DEPTHS[:2], 2) if quick else (DEPTHS, REPEATS)
    cases = {f"layers_{n}": functools.partial(training_step, n) for n in depths}
    others = dict.fromkeys(cases, "layers_1")
    for name in QUICK_LAYERS if quick else LAYERS:
        plain, loop = f"{name}, plain", f"{name}, unroll=1"
        cases[plain] = functools.partial(unrolled_gradient, name, plain=True)
        cases[name] = functools.partial(unrolled_gradient, name)
        cases[loop] = functools.partial(unrolled_gradient, name, unroll=1)
        others |= {name: plain, loop: plain}
    record = Record()
    for name, seconds in _timed(cases, repeats).items():
        record.time(f"{name}_seconds", seconds)
    rows = []
    for name, other in others.items():
        names = f"{name}_seconds", f"{other}_seconds"
        ratio = record.ratio(f"{name}_over_{other}", *names)
        rows.append([name, *(record.figures[each] for each in names), ratio])
    print(
        f"CPU seconds to trace and compile, medians of {repeats}: a constrained step of"
        " training by its layers, over that of one layer (bar for 7: 1.5), and the"
        f" gradient of {NUM_LAYERS} layers, over plain JAX (bar: 2)"
    )
    print(table(["", "seconds", "the other's", "ratio"], rows))
    return record


def training_step(num_layers: int) -> Case:
    """The constrained step of the video experiment, on random frames, uint8."""
    model = ModelConfig(num_layers=num_layers)
    config = VideoConfig(method="constrained", mesh="data=1", model=model)
    task = make(config, NoData(SPEC))
    plan = make_plan(task)
    shape = (config.batch_size, SPEC.num_tokens, SPEC.token_dim)
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return jit_step(task, plan), (init_state(task, plan, config.seed), frames)


def unrolled_gradient(
    name: str, *, plain: bool = False, unroll: int | None = None
) -> Case:
    """The gradient of 12 layers in their parameters and the state, by the library or
    in plain JAX.

    They are of the example of `DESCENTS`. ``unroll`` is that of `unroll_jax.unroll`.
    """
    descent, y, x = uj.DESCENTS[name].example(jax.random.key(0), (4,))
    params = jax.vmap(descent.init)(jax.random.split(jax.random.key(1), NUM_LAYERS))

    def loss(params: Any, y: Any, x: Any) -> jax.Array:
        if plain:
            step = lambda y, each: (PLAIN[name](each, y, x), None)  # noqa: E731
            after, _ = jax.lax.scan(step, y, params, length=NUM_LAYERS)
        else:
            options = {"num_layers": NUM_LAYERS, "tied": False, "record": None}
            after, _ = uj.unroll(descent, params, y, x, unroll=unroll, **options)
        return jnp.sum(after**2)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), (params, y, x)


def _timed(cases: dict[str, Callable[[], Case]], repeats: int) -> dict[str, np.ndarray]:
    """Seconds of every case, built and compiled from scratch, in turns."""
    seconds = {name: np.zeros(repeats) for name in cases}
    cache = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        for index in range(repeats):
            for name, build in cases.items():
                function, arguments = build()
                jax.clear_caches()
                began = time.process_time()
                function.lower(*arguments).compile()
                seconds[name][index] = time.process_time() - began
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    return seconds
