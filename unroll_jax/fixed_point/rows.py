"""Operations on states with examples as rows."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from unroll_jax.numerics import over

__all__ = [
    "any_rows",
    "dot",
    "largest",
    "norm",
    "per_row",
    "row_constant",
    "squares",
    "zeros",
]


def any_rows(*conditions: Bool[Array, " b"]) -> tuple[Bool[Array, ""], ...]:
    """For each condition, whether it holds in some row.

    One reduction of several arrays: XLA compiles it, and what it reduces, as one
    kernel.
    """
    false = tuple(False for _ in conditions)
    return tuple(jax.lax.reduce(conditions, false, _each(operator.or_), (0,)))


def dot(a: Float[Array, "b m"], b: Float[Array, "b m"]) -> Float[Array, " b"]:
    """Inner products of rows."""
    return jnp.sum(a * b, axis=-1)


# Longer rows are summed one array at a time. XLA adds up the entries of a reduction of
# several arrays one after the other on a CPU, and rounding grows with their number.
LONGEST = 4096


@jax.custom_jvp
def squares(*states: Float[Array, "b m"]) -> tuple[Float[Array, " b"], ...]:
    """The squared norms of the rows of several states, of short rows in one
    reduction."""
    if states[0].shape[-1] > LONGEST:
        return tuple(dot(state, state) for state in states)
    zeros = tuple(state.dtype.type(0) for state in states)
    products = tuple(state * state for state in states)
    return tuple(jax.lax.reduce(products, zeros, _each(operator.add), (1,)))


@squares.defjvp
def _(states: Any, tangents: Any) -> tuple[Any, Any]:
    # JAX has no derivative of a reduction of several arrays.
    return squares(*states), tuple(
        2.0 * dot(state, tangent)
        for state, tangent in zip(states, tangents, strict=True)
    )


def _each(operation: Callable[[Any, Any], Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda left, right: tuple(map(operation, left, right))


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
