"""A small encoder with an embedding, a readout and a loss at every layer: what a mesh must not change."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.constrained import Bounds
from train.sharding import keep_rows
from train.video.task import Task
from unroll_jax.constrained import descent_constraints

LAYERS, VOCABULARY, TOKENS, DIM, HIDDEN, HEADS, CLASSES, BATCH = 6, 64, 12, 32, 64, 4, 8, 32


def encoder_task(dtype: str) -> Task:
    """Classification of token sequences; every layer is read out by one head, and must lower the cross entropy."""
    constraints = descent_constraints([0.05] * LAYERS, reference=2.0)

    def init(key: jax.Array) -> Any:
        shapes = {
            "query": (DIM, DIM),
            "key": (DIM, DIM),
            "value": (DIM, DIM),
            "output": (DIM, DIM),
            "up": (DIM, HIDDEN),
            "down": (HIDDEN, DIM),
        }
        keys = iter(jax.random.split(key, len(shapes) + 2))
        draw = lambda shape: jax.random.normal(next(keys), shape, dtype) / shape[-2] ** 0.5  # noqa: E731
        layers = {name: {"kernel": draw((LAYERS, *shape))} for name, shape in shapes.items()}
        layers["up"]["bias"] = jnp.zeros((LAYERS, HIDDEN), dtype)
        return {"embedding": draw((VOCABULARY, DIM)), "layers": layers, "readout": {"kernel": draw((DIM, CLASSES))}}

    def outputs(params: Any, tokens: jax.Array, record: Any) -> Any:
        start = keep_rows(params["embedding"][tokens])

        def advance(y: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            y = keep_rows(_layer(layer, y))
            return y, record(y)

        _, recorded = jax.lax.scan(advance, start, params["layers"])
        return jnp.concatenate([record(start)[None], recorded])

    def sample_losses(params: Any, batch: Any) -> jax.Array:
        tokens, labels = batch

        def loss(y: jax.Array) -> jax.Array:
            logits = jax.nn.log_softmax(jnp.mean(y, axis=1) @ params["readout"]["kernel"])
            return -jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]

        return outputs(params, tokens, loss).T

    return Task(
        init=init,
        outputs=outputs,
        draw=lambda batch, key: batch,  # nothing is random here
        sample_losses=sample_losses,
        bounds=Bounds(constraints, constraints, LAYERS + 1),
    )


def encoder_batches() -> Iterator[Any]:
    """Random tokens, and the class of the first of them."""
    rng = np.random.default_rng(0)
    while True:
        tokens = rng.integers(0, VOCABULARY, (BATCH, TOKENS), dtype=np.int32)
        yield tokens, tokens[:, 0] % CLASSES


def _layer(layer: Any, y: jax.Array) -> jax.Array:
    kernel = {name: layer[name]["kernel"] for name in layer}
    x = _normalised(y)
    query, key, value = (
        (x @ kernel[name]).reshape(*x.shape[:2], HEADS, DIM // HEADS) for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(jnp.einsum("buhk,bvhk->bhuv", query, key) / (DIM // HEADS) ** 0.5)
    y = y + jnp.einsum("bhuv,bvhk->buhk", weights, value).reshape(x.shape) @ kernel["output"]
    return y + jax.nn.gelu(_normalised(y) @ kernel["up"] + layer["up"]["bias"]) @ kernel["down"]


def _normalised(y: jax.Array) -> jax.Array:
    return y / jnp.sqrt(jnp.mean(y**2, axis=-1, keepdims=True) + 1e-6)
