"""The training loop against its bare step: compilations, and waits for the host."""

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import Record
from benchmarks.timing import counted_compilations
from unroll_jax.train.core.loop import train_run
from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import init_state, jit_step
from unroll_jax.train.core.task import Task
from unroll_jax.train.sharding import put
from unroll_jax.train.tasks.own.options import OwnConfig
from unroll_jax.train.tasks.own.task import own_task

__all__ = ["FULL", "QUICK", "Sizes", "measure"]


class Sizes(NamedTuple):
    """Sizes of a network of tanh layers, and the number of steps."""

    layers: int
    dim: int
    batch: int
    steps: int  # that are timed, after the warm-up
    warmup: int = 20


FULL, QUICK = Sizes(8, 512, 256, 400), Sizes(4, 256, 64, 100)


def measure(sizes: Sizes) -> Record:
    """Steps per second of the loop and of its compiled step, and compilations."""
    record = Record()
    with tempfile.TemporaryDirectory() as folder, counted_compilations() as compiled:
        clock = _Clock(compiled)
        options = {"experiment": "gpu", "callbacks": [clock], "log": lambda _: None}
        task = _task(sizes)
        train_run(task, make_plan(task), Path(folder) / "run", **options)
    steps = clock.steps
    again = steps[21].compiled - steps[1].compiled
    seconds = steps[sizes.warmup + sizes.steps].seconds - steps[sizes.warmup].seconds
    record.figures["loop_compiled_in_20_steps"] = again
    record.figures["loop_steps_a_second"] = sizes.steps / seconds
    record.figures["bare_steps_a_second"] = _bare(sizes)
    record.ratio("loop_over_bare", "loop_steps_a_second", "bare_steps_a_second")
    return record


class _Step(NamedTuple):
    """The time at which a step was reported, and the programs compiled until then."""

    seconds: float
    compiled: int


class _Clock:
    """Callbacks of a run that note the time of every step."""

    def __init__(self, compiled: list[float]) -> None:
        self.steps: dict[int, _Step] = {}
        self.compiled = compiled

    def on_step(self, row: dict[str, Any]) -> None:
        self.steps[row["step"]] = _Step(time.perf_counter(), len(self.compiled))

    def on_validation(self, row: dict[str, Any]) -> None:
        """Does nothing: the only validation is after the last step."""

    def on_end(self, folder: Path) -> None:
        """Does nothing."""


def _task(sizes: Sizes) -> Task:
    """Regression onto noise: only the time counts."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(2, 4 * sizes.batch, sizes.dim)).astype(np.float32)
    arrays = {"x": values[0], "y": values[1]}
    shape = (sizes.layers, sizes.dim, sizes.dim)
    scale = 1.0 / sizes.dim**0.5
    num_steps = sizes.warmup + sizes.steps + 1

    def layer_losses(params: jax.Array, batch: Any) -> jax.Array:
        def layer(z: jax.Array, W: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.tanh(z @ W), jnp.mean((z - batch["y"]) ** 2, -1)

        last, losses = jax.lax.scan(layer, batch["x"], params)
        return jnp.stack([*losses, jnp.mean((last - batch["y"]) ** 2, -1)], axis=-1)

    return own_task(
        lambda key: scale * jax.random.normal(key, shape),
        layer_losses,
        train=arrays,
        validation={name: array[: sizes.batch] for name, array in arrays.items()},
        config=OwnConfig(
            steps=num_steps,
            validate_every=num_steps,
            batch_size=sizes.batch,
            mesh="data=1",
        ),
    )


def _bare(sizes: Sizes) -> float:
    """Steps per second of the compiled step on one batch, without waits between."""
    task = _task(sizes)
    plan = make_plan(task)
    state = init_state(task, plan, 0)
    batch = put(next(task.batches(0, 0, None)), plan.mesh)
    step = jit_step(task, plan).lower(state, batch).compile()
    for _ in range(sizes.warmup):
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    began = time.perf_counter()
    for _ in range(sizes.steps):
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    return sizes.steps / (time.perf_counter() - began)
