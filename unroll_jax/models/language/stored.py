"""Products with parameters that are stored in fewer bits than they are multiplied in.

On CPUs the time of a few tokens is that of reading the parameters. They are converted piece by piece, as XLA would
write a converted copy of all of them to memory and read it again.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.numerics import linear
from unroll_jax.steps import vary_like

__all__ = ["is_narrow", "stored_linear", "stored_rows"]

MAX_SUMMED_TOKENS = 3  # up to which sums of scaled rows are quicker than a matrix product of a converted kernel
MIN_CONVERTED_TOKENS = 64  # from which the conversion of a head is a small part of the product
UNROLLED = 8  # rows of a kernel that are read together
BLOCK = 512  # rows of a head, which fit a core's cache


def is_narrow(parameter: Array, dtype: Any) -> bool:
    """True for a parameter of fewer bits than the dtype that it is multiplied in."""
    return jnp.dtype(parameter.dtype).itemsize < jnp.dtype(dtype).itemsize


def stored_linear(y: Float[Array, "*batch n d"], kernel: Float[Array, "d k"]) -> Float[Array, "*batch n k"]:
    """``y @ kernel`` in the dtype of y."""

    def converted(y: Array, kernel: Array) -> Array:
        return linear(y, kernel.astype(y.dtype))

    few = 0 < y.size <= MAX_SUMMED_TOKENS * y.shape[-1] and len(kernel) % UNROLLED == 0
    if not (few and is_narrow(kernel, y.dtype)):
        return converted(y, kernel)
    return jax.lax.platform_dependent(y, kernel, cpu=_summed, default=converted)


def _summed(y: Array, kernel: Array) -> Array:
    columns = jnp.moveaxis(y.reshape(-1, len(kernel) // UNROLLED, UNROLLED), 0, -1)

    def add(total: Array, both: tuple[Array, Array]) -> tuple[Array, None]:
        scales, rows = both
        return total + sum(scales[row][:, None] * rows[row].astype(y.dtype) for row in range(UNROLLED)), None

    start = vary_like(jnp.zeros((columns.shape[-1], kernel.shape[-1]), y.dtype), (y, kernel))
    total, _ = jax.lax.scan(add, start, (columns, kernel.reshape(len(columns), UNROLLED, -1)))
    return total.reshape(*y.shape[:-1], kernel.shape[-1])


def stored_rows(y: Float[Array, "*batch d"], rows: Float[Array, "k d"]) -> Float[Array, "*batch k"]:
    """``y @ rows.T`` in the dtype of y, of rows that have fewer bits."""

    def converted(y: Array, rows: Array) -> Array:
        return y @ rows.astype(y.dtype).T

    if y.size == 0 or y.size >= MIN_CONVERTED_TOKENS * y.shape[-1] or len(rows) < BLOCK:
        return converted(y, rows)
    return jax.lax.platform_dependent(y, rows, cpu=_by_blocks, default=converted)


def _by_blocks(y: Array, rows: Array) -> Array:
    columns = y.reshape(-1, y.shape[-1]).T

    def product(block: Array) -> Array:
        return block.astype(y.dtype) @ columns

    whole = len(rows) // BLOCK * BLOCK
    # Each block is read in place: a slice of whole blocks would be a copy of the head.
    starts = vary_like(jnp.arange(0, whole, BLOCK), (y, rows))
    blocks = jax.lax.map(lambda start: product(jax.lax.dynamic_slice_in_dim(rows, start, BLOCK)), starts)
    products = jnp.concatenate([blocks.reshape(whole, columns.shape[-1]), product(rows[whole:])])
    return products.T.reshape(*y.shape[:-1], len(rows))
