"""Inverses of symmetric positive definite matrices by matrix products."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["inverse"]

# Sides of blocks within blocks. LAPACK inverts the smallest alone: on more than 16 rows its threads and XLA's get in
# each other's way (20 ms for 32 rows were seen on two busy cores), and from 256 rows on products are quicker.
BLOCKS = (64, 16)
STRIP = 128  # rows changed at once, which bounds the memory beside the matrix


def inverse(matrix: Float[Array, "n n"], blocks: tuple[int, ...] = BLOCKS) -> Float[Array, "n n"]:
    """Gauss-Jordan elimination by blocks, in place, without pivots, which a positive definite matrix does not need.

    In 2 n^3 operations, nearly all of them in products; not finite where the matrix is not positive definite.

    Source: Golub and Van Loan (2013), Matrix Computations, Sections 3.2.11 and 4.2.
    """
    size, dtype = len(matrix), matrix.dtype
    if not blocks:
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), jnp.eye(size, dtype=dtype))
    block = blocks[0]
    if size <= block:
        return inverse(matrix, blocks[1:])
    strip = min(-(-size // block) * block, STRIP)
    whole = -(-size // strip) * strip
    padded = jnp.eye(whole, dtype=dtype).at[:size, :size].set(matrix) if whole > size else matrix

    def eliminate(index: Array, table: Array) -> Array:
        start = index * block
        rows = jax.lax.dynamic_slice_in_dim(table, start, block, 0)
        pivot = inverse(jax.lax.dynamic_slice_in_dim(rows, start, block, 1), blocks[1:])
        scaled = jax.lax.dynamic_update_slice_in_dim(pivot @ rows, pivot, start, 1)

        def subtract(number: Array, table: Array) -> Array:
            others = jax.lax.dynamic_slice_in_dim(table, number * strip, strip, 0)
            column = jax.lax.dynamic_slice_in_dim(others, start, block, 1)
            others = jax.lax.dynamic_update_slice_in_dim(others, jnp.zeros_like(column), start, 1)
            return jax.lax.dynamic_update_slice_in_dim(table, others - column @ scaled, number * strip, 0)

        table = jax.lax.fori_loop(0, whole // strip, subtract, table)
        return jax.lax.dynamic_update_slice_in_dim(table, scaled, start, 0)

    return jax.lax.fori_loop(0, whole // block, eliminate, padded)[:size, :size]
