"""Operations on states with examples as rows."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["dot", "largest", "per_row", "row_constant"]


def dot(a: Float[Array, "b m"], b: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Inner products of rows."""
    return jnp.sum(a * b, axis=-1)


def largest(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """The largest entry of each row, without its sign."""
    return jnp.max(jnp.abs(z), axis=-1, initial=0.0)


def per_row(
    condition: Bool[Array, " b"], yes: Float[Array, "b m"], no: Float[Array, "b m"]
) -> Float[Array, "b m"]:
    """`jnp.where` by rows."""
    return jnp.where(condition[:, None], yes, no)


def row_constant(z: Float[Array, "b ..."], value: Any) -> Array:
    """Returns an array of ``value``, one per row, with the sharding of the rows.

    Loop carries require it.
    """
    row = jnp.sum(z, axis=-1) if z.ndim > 1 else z
    mask = (row == row) & False
    if isinstance(value, bool):
        return mask | value

    dtype = jnp.int32 if isinstance(value, int) else z.dtype
    return mask.astype(dtype) + jnp.asarray(value, dtype)
