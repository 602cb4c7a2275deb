"""A task of eight numbers in place of a network: steps under many options are
branches of one small program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.train.objective import constrained_training
from unroll_jax.train.step import first_state, train_step
from unroll_jax.train.task import Task

__all__ = ["Ladder", "batches", "train"]
WIDTH, LAYERS = 4, 2


class Ladder(Task):
    """Layer l multiplies its input by w_l, entry by entry; f_l is half the squared
    norm. An epoch has two steps."""

    num_layers = LAYERS

    def __init__(self, config: Any, dtype: Any = "float32"):
        self._config, self._dtype = config, dtype
        self.training = constrained_training(
            config, num_layers=LAYERS, num_examples=2 * config.batch_size
        )

    @property
    def config(self) -> Any:
        return self._config

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (LAYERS, WIDTH), self._dtype, 0.8, 1.2)

    def losses(
        self, params: jax.Array, batch: jax.Array, probe: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        outputs = [batch]
        for w in params:
            outputs.append(outputs[-1] * w)
        return jnp.stack([0.5 * jnp.sum(y**2, axis=-1) for y in outputs], axis=-1), {}


def batches(count: int, size: int, dtype: Any = "float32") -> np.ndarray:
    """(count, size, 4), with losses around 0.67 and of samples between 0.1 and 1.5."""
    return np.random.default_rng(0).uniform(size=(count, size, WIDTH)).astype(dtype)


def train(config: Any, data: Any, dtype: Any = "float32") -> Any:
    task = Ladder(config, dtype)
    return jax.lax.scan(
        functools.partial(train_step, task), first_state(task), jnp.asarray(data)
    )
