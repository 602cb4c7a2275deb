"""Steps of layers in plain JAX, by the names of `unroll_jax.DESCENTS`.

They are those of the examples there, without arguments, checks or energies.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["PLAIN"]

RIDGE = 0.5  # of the example of attention
STEP_SIZE = 0.5  # of feedforward
SHARE = 0.7  # of the example of cross_attention
SKIP = 0.8  # of the example of opteq


def _softmax_attention(params: Any, y: Array, x: None) -> Array:
    scores = y @ y.mT - 0.5 * jnp.sum(y**2, -1)[..., None, :]
    return jax.nn.softmax(scores) @ y


def _attention(params: Any, y: Array, x: Array) -> Array:
    z = y @ params.W_a
    sizes = 0.5 * jnp.sum(z**2, -1)
    distances = sizes[..., :, None] + sizes[..., None, :] - z @ z.mT
    weights = jnp.exp(-distances) * (1.0 - jnp.eye(y.shape[-2]))
    degrees = jnp.sum(weights, -1, keepdims=True) + RIDGE
    return (weights @ y + RIDGE * x) / degrees


def _feedforward(params: Any, y: Array, x: Array) -> Array:
    W = 0.5 * (params.W_f + params.W_f.T)
    return y - STEP_SIZE * (y @ W + y - x)


def _hopfield(params: Any, y: Array, x: Array) -> Array:
    return jax.nn.softmax(2.0 * y @ params.S.T) @ params.S + x


def _cross_attention(params: Any, y: Array, x: Array) -> Array:
    return y + SHARE * (jax.nn.softmax(y @ x.mT) @ x - y)


def _opteq(params: Any, z: Array, x: Array) -> Array:
    hidden = jax.nn.relu(z @ params.W.T + x @ params.U.T + params.b)
    return z + SKIP * (hidden @ params.W - z)


PLAIN: dict[str, Callable[..., Array]] = {
    "softmax_attention": _softmax_attention,
    "attention": _attention,
    "feedforward": _feedforward,
    "hopfield": _hopfield,
    "cross_attention": _cross_attention,
    "opteq": _opteq,
}
