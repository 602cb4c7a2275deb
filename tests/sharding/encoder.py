"""A small encoder with an embedding, a readout and a loss at every layer. A mesh
must not change them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.train.config.constrained import ConstraintConfig
from unroll_jax.train.core.task import Task
from unroll_jax.train.sharding import keep_rows
from unroll_jax.train.tasks.own.options import OwnConfig
from unroll_jax.train.tasks.own.task import own_task

LAYERS, VOCABULARY, TOKENS, DIM, HIDDEN, HEADS, CLASSES, BATCH = (
    6,
    64,
    12,
    32,
    64,
    4,
    8,
    32,
)
STEPS_AN_EPOCH = 4
SHAPES = dict.fromkeys(("query", "key", "value", "output"), (DIM, DIM)) | {
    "up": (DIM, HIDDEN),
    "down": (HIDDEN, DIM),
}


def encoder_task(dtype: str, constraints: ConstraintConfig, **options: Any) -> Task:
    bounds = {"alpha": (0.05,), "reference": 2.0, "margin": 0.0, "first_margin": 0.0}
    config = OwnConfig(
        constraints=dataclasses.replace(constraints, **bounds),
        batch_size=BATCH,
        **options,
    )
    train, held_out = (_texts(seed) for seed in (0, 1))
    return own_task(
        lambda key: _init(key, dtype),
        _losses,
        train=train,
        validation=held_out,
        config=config,
    )


def _texts(seed: int) -> dict[str, np.ndarray]:
    size = (STEPS_AN_EPOCH * BATCH, TOKENS)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, size, dtype=np.int32)
    return {"tokens": tokens, "labels": tokens[:, 0] % CLASSES}


def _init(key: jax.Array, dtype: str) -> Any:
    keys = iter(jax.random.split(key, len(SHAPES) + 2))
    draw = lambda shape: jax.random.normal(next(keys), shape, dtype) / shape[-2] ** 0.5
    layers = {
        name: {"kernel": draw((LAYERS, *shape))} for name, shape in SHAPES.items()
    }
    layers["up"]["bias"] = jnp.zeros((LAYERS, HIDDEN), dtype)
    return {
        "embedding": draw((VOCABULARY, DIM)),
        "layers": layers,
        "readout": {"kernel": draw((DIM, CLASSES))},
    }


def _losses(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    start = keep_rows(params["embedding"][batch["tokens"]])

    def loss(y: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(jnp.mean(y, axis=1) @ params["readout"]["kernel"])
        return -jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]

    def advance(y: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
        y = keep_rows(_layer(layer, y))
        return y, loss(y)

    _, losses = jax.lax.scan(advance, start, params["layers"])
    return jnp.concatenate([loss(start)[None], losses]).T


def _layer(layer: Any, y: jax.Array) -> jax.Array:
    kernel = {name: layer[name]["kernel"] for name in layer}
    x = _normalised(y)
    query, key, value = (
        (x @ kernel[name]).reshape(*x.shape[:2], HEADS, DIM // HEADS)
        for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(
        jnp.einsum("buhk,bvhk->bhuv", query, key) / (DIM // HEADS) ** 0.5
    )
    y = (
        y
        + jnp.einsum("bhuv,bvhk->buhk", weights, value).reshape(x.shape)
        @ kernel["output"]
    )
    return (
        y
        + jax.nn.gelu(_normalised(y) @ kernel["up"] + layer["up"]["bias"])
        @ kernel["down"]
    )


def _normalised(y: jax.Array) -> jax.Array:
    return y / jnp.sqrt(jnp.mean(y**2, axis=-1, keepdims=True) + 1e-6)
