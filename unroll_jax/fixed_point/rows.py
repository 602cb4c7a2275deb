"""Operations on states with examples as rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.numerics import over

__all__ = ["dot", "largest", "norm", "per_row", "row_constant", "zeros"]


def dot(a: Float[Array, "b m"], b: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Inner products of rows."""
    return jnp.sum(a * b, axis=-1)


def largest(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """The largest entry of each row, without its sign."""
    return jnp.max(jnp.abs(z), axis=-1, initial=0.0)


def norm(z: Float[Array, "b m"]) -> Float[Array, " b"]:
    """The norm of each row, whose squares may under- or overflow."""
    unit = largest(z)
    # The barrier keeps XLA from squaring entries before it divides them.
    scaled = jax.lax.optimization_barrier(over(z, unit[:, None]))
    return unit * jnp.sqrt(dot(scaled, scaled))


def per_row(condition: Bool[Array, " b"], yes: Any, no: Any) -> Any:
    """`jnp.where` by rows, of states or pytrees of them."""
    choose = functools.partial(jnp.where, condition[:, None])
    return jax.tree.map(choose, yes, no)


def row_constant(z: Float[Array, "b m"], value: Any) -> Array:
    """Returns an array of ``value``, one per row, with the sharding of the rows.

    Loop carries require it.
    """
    row = jnp.sum(z, axis=-1)
    dtype = {bool: bool, int: jnp.int32}.get(type(value), z.dtype)
    return ((row == row) & False).astype(dtype) + jnp.asarray(value, dtype)


def zeros(z: Float[Array, "b m"]) -> Float[Array, "b m"]:
    """Zeros with the sharding of z, and varying over the axes that z varies over."""
    return row_constant(z, 0.0)[:, None] + jnp.zeros_like(z)
