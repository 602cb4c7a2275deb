"""Sums over the pairs of a graph, for attention energies and their steps."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.energies.attention.rho import Rho
from unroll_jax.energies.attention.sums import (
    rectangle_energy,
    rectangle_sums,
    square_exponential_sums,
)
from unroll_jax.energies.blocks import join_rows, split_rows

__all__ = ["Neighbourhood", "by_rows", "centre", "neighbourhood", "pair_energy"]

# All pairs are held at once up to MAX_BLOCK_PAIRS in an example and MAX_DENSE_PAIRS in
# the batch (32 MiB in float32). Beyond, blocks of rows are taken in turn, with
# MAX_BLOCK_PAIRS pairs each (8 MiB, which fit a cache).
MAX_BLOCK_PAIRS = 2**21
MAX_DENSE_PAIRS = 2**23
MIN_BLOCK_ROWS = 16


class Neighbourhood(NamedTuple):
    """Sums over the pairs of a graph.

    gamma_uv is rho'(|z_u - z_v|^2 / 2) on the edges of the graph, and 0 elsewhere.

    Attributes:
      energy: (*batch,), the sum of rho over unordered pairs.
      log_degree: (*batch, n, 1), log sum_v gamma_uv, -inf for a token without
        neighbours.
      mean: (*batch, n, d), sum_v gamma_uv values_v / sum_v gamma_uv, 0 for a token
        without neighbours.
    """

    energy: Float[Array, "*batch"]
    log_degree: Float[Array, "*batch n 1"]
    mean: Float[Array, "*batch n d"]


def neighbourhood(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    graph: Bool[np.ndarray, "n n"] | None,
    present: Bool[Array, "..."] | None = None,
    *,
    block: int | None = None,
    bounded: bool = False,
) -> Neighbourhood:
    """Returns the sums over all pairs of a graph, in one pass over their distances.

    Beyond `MAX_DENSE_PAIRS` pairs, or `MAX_BLOCK_PAIRS` in an example, blocks of tokens
    are taken in turn, and again in the backward pass: memory O(n block), in value and
    derivatives. Compiled code computes only the results used.

    Args:
      rho: a resolved `Rho`.
      z, values: the tokens that distances are taken between, and the arrays averaged.
      graph: what `check_mask` returns, of as many tokens.
      present: boolean, broadcastable to (*batch, n), the tokens present. None is all.
        The others have no edges.
      block: tokens in a block, taken one block at a time. None chooses.
      bounded: scales weights by the slope at 0 instead of each token's largest, which
        saves a pass. Neighbours that are all far may then underflow to none. It is for
        callers that give the token itself that slope as its weight.
    """
    z = centre(z, present)
    size = _rows_at_once(z, block)
    all_at_once = size == z.shape[-2]

    def sums(rows: Array, *others: Array) -> tuple[Array, ...]:
        if bounded and rho.exponential and all_at_once:
            return square_exponential_sums(*others)  # whose columns are the rows
        return rectangle_sums(rho, rows, *others, bounded=bounded)

    energy, *others = by_rows(sums, z, z, values, _adjacent(graph, z), present, size)
    return Neighbourhood(0.5 * jnp.sum(energy, axis=(-2, -1)), *others)


def pair_energy(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    graph: Bool[np.ndarray, "n n"] | None,
    present: Bool[Array, "..."] | None = None,
    *,
    block: int | None = None,
) -> Float[Array, "*batch"]:
    """Returns ``neighbourhood(...).energy``, computing no more even without jit."""

    def sums(
        rows: Array, columns: Array, values: None, neighbours: Array
    ) -> tuple[Array]:
        return (rectangle_energy(rho, rows, columns, neighbours),)

    z = centre(z, present)
    size = _rows_at_once(z, block)
    (energy,) = by_rows(sums, z, z, None, _adjacent(graph, z), present, size)
    return 0.5 * jnp.sum(energy, axis=(-2, -1))


def by_rows(
    sums: Callable[..., tuple[Array, ...]],
    z: Float[Array, "*batch n k"],
    columns: Float[Array, "*batch n k"],
    values: Any,
    adjacent: Callable[[Array, Array], Array],
    present: Any,
    size: int,
) -> list[Array]:
    """Returns ``sums`` of all rows z against all columns, ``size`` rows at a time.

    The backward pass computes them again.

    Args:
      sums: ``(rows, columns, values, neighbours) -> arrays (*batch, rows, k)``.
      z, columns, values: the rows, as many columns, and the values of the columns.
      adjacent: ``(u, v) -> bool``, elementwise on numbers of tokens: True if v is a
        neighbour of u.
      present: boolean, broadcastable to (*batch, n), or None.
      size: rows at a time.
    """
    n = z.shape[-2]
    mask = None
    if present is not None:
        mask = jnp.broadcast_to(present, z.shape[:-1])[..., None]

    def sums_of(block: tuple[Array, Array, Array | None]) -> tuple[Array, ...]:
        u, rows, row_mask = block
        neighbours = adjacent(u[:, None], jnp.arange(n))
        if row_mask is not None and mask is not None:
            neighbours = neighbours & row_mask & mask.mT
        return sums(rows, columns, values, neighbours)

    if size >= n:
        return list(sums_of((jnp.arange(n), z, mask)))

    # Rows that fill the last block repeat the last token, and are cut off again.
    numbers = jnp.arange(-(-n // size) * size).reshape(-1, size)
    numbers = jnp.minimum(numbers, n - 1)
    mask_blocks = None if mask is None else split_rows(mask, size)
    blocks = numbers, split_rows(z, size), mask_blocks
    parts = jax.lax.map(jax.checkpoint(sums_of, prevent_cse=False), blocks)
    return [join_rows(part, n) for part in parts]


def centre(z: Array, present: Any) -> Array:
    """Subtracts the mean of the tokens present.

    Distances do not change with a common shift. From the mean they lose no digits to a
    large common offset.
    """
    if present is None:
        return z - jax.lax.stop_gradient(jnp.mean(z, axis=-2, keepdims=True))
    # Where no token is present the mean is 0, not 0 / 0.
    kept = jnp.broadcast_to(present[..., None], (*z.shape[:-1], 1))
    count = jnp.sum(kept, axis=-2, keepdims=True, dtype=z.dtype)
    total = jnp.sum(z, axis=-2, keepdims=True, where=kept)
    return z - jax.lax.stop_gradient(total / jnp.maximum(count, 1.0))


def _adjacent(graph: np.ndarray | None, z: Array) -> Callable[[Array, Array], Array]:
    n = z.shape[-2]
    if graph is None:
        return lambda u, v: u != v
    if len(graph) != n:
        raise ValueError(
            f"mask is {graph.shape}, but y has n={n} tokens (shape {z.shape})"
        )
    return lambda u, v: (u != v) & jnp.asarray(graph)[u, v]


def _rows_at_once(z: Array, block: int | None) -> int:
    n = z.shape[-2]
    examples = max(1, math.prod(z.shape[:-2]))
    if block is not None:
        return min(n, block)
    if n * n <= MAX_BLOCK_PAIRS and examples * n * n <= MAX_DENSE_PAIRS:
        return n
    return min(n, max(MIN_BLOCK_ROWS, MAX_BLOCK_PAIRS // (examples * n)))
