"""Dropout of the parts of a layer, drawn for each layer, part and row."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import check, in_interval, require
from unroll_jax.keys import threefry_keys
from unroll_jax.numerics import compute_dtype

__all__ = ["Drop", "dropout", "keep", "layer_keys"]

#: ``(part, values) -> values``: drops some of the values of one part of a layer.
Drop = Callable[[int, Array], Array]


def keep(part: int, values: Array) -> Array:
    """Returns the values: no dropout."""
    del part
    return values


def layer_keys(
    key: jax.Array | None, rate: float, num_layers: int, rows: tuple[int, ...]
) -> jax.Array | None:
    """Returns the keys of all layers, with a leading axis, or None without dropout.

    Args:
      key: one key, or one for each row of the batch, so that a row's dropout depends
        only on its key. None drops nothing.
      rate: probability of dropping a value, in [0, 1).
      num_layers: length of the leading axis.
      rows: the shape of the batch.
    """
    check("dropout", rate, in_interval("[0, 1)"))
    if key is None or rate == 0.0:
        return None
    keys = threefry_keys(key)
    allowed = f"be one key, or one for each row of the batch, whose shape is {rows}"
    is_known = keys.shape == rows[: keys.ndim]
    require(is_known, "dropout_key", allowed, f"keys of shape {keys.shape}")
    return jax.vmap(lambda layer: _fold(keys, layer))(jnp.arange(num_layers))


def dropout(key: jax.Array | None, rate: float, shape: tuple[int, ...]) -> Drop:
    """Returns the dropout of one layer, with values of a shape; `keep` for no key.

    A value is 0 with probability ``rate``, else divided by 1 - rate: its mean stays.

    Source: Srivastava et al. (2014), "Dropout". Vaswani et al. (2017), section 5.4, for
    its place: on the output of attention and of the feed-forward part, before each is
    added to its input. No weights of attention and no embeddings are dropped.
    """
    if key is None:
        return keep

    def drop(part: int, values: Array) -> Array:
        kept = _draw(_fold(key, part), 1.0 - rate, shape).reshape(values.shape)
        wide = values.astype(compute_dtype(values))
        return (wide * kept.astype(wide.dtype) / (1.0 - rate)).astype(values.dtype)

    return drop


def _fold(keys: jax.Array, number: int | Array) -> jax.Array:
    if keys.ndim:
        return jax.vmap(lambda row: _fold(row, number))(keys)
    return jax.random.fold_in(keys, number)


def _draw(keys: jax.Array, share: float, shape: tuple[int, ...]) -> Array:
    if keys.ndim:
        return jax.vmap(lambda row: _draw(row, share, shape[1:]))(keys)
    return jax.random.bernoulli(keys, share, shape)
