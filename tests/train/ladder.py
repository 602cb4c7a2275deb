"""A task of eight numbers in place of a network: steps under many options are branches of one small program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.constrained import init_state, make_step
from train.constrained.bounds import descent_bounds
from train.video.task import Task

__all__ = ["batches", "ladder", "train"]

WIDTH, LAYERS = 4, 2


def ladder(config: Any, dtype: Any = "float32") -> Task:
    """Layer l multiplies its input by w_l, entry by entry; f_l is half the squared norm. An epoch has two steps."""

    def sample_losses(params: Any, y: jax.Array) -> jax.Array:
        outputs = [y]
        for w in params:
            outputs.append(outputs[-1] * w)
        return jnp.stack([0.5 * jnp.sum(y**2, axis=-1) for y in outputs], axis=-1)

    def unused(*_: Any) -> Any:
        raise AssertionError

    return Task(
        init=lambda key: jax.random.uniform(key, (LAYERS, WIDTH), dtype, 0.8, 1.2),
        outputs=unused,
        draw=lambda batch, key: batch,
        sample_losses=sample_losses,
        bounds=descent_bounds(config.constraints, LAYERS),
        steps_an_epoch=2,
    )


def batches(count: int, size: int, dtype: Any = "float32") -> np.ndarray:
    """(count, size, 4), with losses around 0.67 and of samples between 0.1 and 1.5."""
    return np.random.default_rng(0).uniform(size=(count, size, WIDTH)).astype(dtype)


def train(config: Any, data: Any, dtype: Any = "float32") -> Any:
    """The state after a step on each batch, and the metrics of the steps, stacked; to be called under `jax.jit`."""
    task = ladder(config, dtype)
    return jax.lax.scan(make_step(config, task), init_state(config, task), jnp.asarray(data))
