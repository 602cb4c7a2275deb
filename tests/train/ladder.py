"""A task of eight numbers in place of a network: steps under many options are
branches of one small program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.train.core.plan import make_plan
from unroll_jax.train.core.step import first_state, train_step
from unroll_jax.train.core.task import Plan, Task, Trial

__all__ = ["batches", "ladder", "planned", "train"]
WIDTH, LAYERS = 4, 2


def ladder(config: Any, dtype: Any = "float32") -> Task:
    """Layer l multiplies its input by w_l, entry by entry; f_l is half the squared
    norm. An epoch has two steps."""

    def losses(params: jax.Array, batch: jax.Array, trial: Trial) -> Any:
        outputs = [batch]
        for w in params:
            outputs.append(outputs[-1] * w)
        return jnp.stack([0.5 * jnp.sum(y**2, axis=-1) for y in outputs], axis=-1), {}

    return Task(
        options=config,
        num_layers=LAYERS,
        init=lambda key: jax.random.uniform(key, (LAYERS, WIDTH), dtype, 0.8, 1.2),
        batches=lambda seed, start_step, rows: iter(()),
        examples=lambda split, trial: (),
        losses=losses,
        make=ladder,
        predict=lambda params, inputs: inputs,
        summary=lambda evaluation: "",
        num_examples=2 * config.batch_size,
    )


def planned(config: Any, dtype: Any = "float32") -> tuple[Task, Plan]:
    task = ladder(config, dtype)
    return task, make_plan(task)


def batches(count: int, size: int, dtype: Any = "float32") -> np.ndarray:
    """(count, size, 4), with losses around 0.67 and of samples between 0.1 and 1.5."""
    return np.random.default_rng(0).uniform(size=(count, size, WIDTH)).astype(dtype)


def train(config: Any, data: Any, dtype: Any = "float32") -> Any:
    task, plan = planned(config, dtype)
    step = functools.partial(train_step, task, plan)
    return jax.lax.scan(step, first_state(task, plan, config.seed), jnp.asarray(data))
