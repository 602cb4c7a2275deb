"""A decoder with a readout and a task for every layer. A mesh must not change it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import Decoder, DecoderConfig
from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.task import Task
from unroll_jax.train.sharding import keep_rows
from unroll_jax.train.tasks.own.options import OwnConfig
from unroll_jax.train.tasks.own.task import own_task

VOCABULARY, TOKENS, CLASSES, BATCH = 64, 12, 8, 32
STEPS_AN_EPOCH = 4
SHAPE = DecoderConfig(
    VOCABULARY,
    dim=32,
    num_layers=6,
    num_heads=4,
    num_key_value_heads=4,
    hidden_dim=64,
    qkv_bias=True,
)


def decoder_task(dtype: str, constraints: ConstraintConfig, **options: Any) -> Task:
    bounds = {"alpha": (0.05,), "reference": 2.0, "margin": 0.0, "first_margin": 0.0}
    config = OwnConfig(
        constraints=dataclasses.replace(constraints, **bounds),
        batch_size=BATCH,
        **options,
    )
    decoder = Decoder(SHAPE, param_dtype=dtype)

    def init(key: jax.Array) -> Any:
        params = decoder.init(key, jnp.zeros((1, TOKENS), jnp.int32))["params"]
        readout = jax.random.normal(key, (SHAPE.dim, CLASSES), dtype)
        # from 0, biases would be sums of Adam's steps, which divide rounding by small
        # gradients
        start = lambda path, leaf: leaf + 1.0 if path[-1].key == "bias" else leaf
        params = jax.tree.map_with_path(start, params)
        return params | {"readout": {"kernel": readout}}

    def losses(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        def loss(y: jax.Array) -> jax.Array:
            pooled = jnp.mean(keep_rows(y), axis=1)
            logits = jax.nn.log_softmax(pooled @ params["readout"]["kernel"])
            return -jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]

        return decoder.apply({"params": params}, batch["tokens"], record=loss).T

    train, held_out = (_texts(seed) for seed in (0, 1))
    return own_task(init, losses, train=train, validation=held_out, config=config)


def _texts(seed: int) -> dict[str, np.ndarray]:
    size = (STEPS_AN_EPOCH * BATCH, TOKENS)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, size, dtype=np.int32)
    return {"tokens": tokens, "labels": tokens[:, 0] % CLASSES}
