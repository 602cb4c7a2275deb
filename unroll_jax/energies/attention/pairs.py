"""Sums over the pairs of a graph: what attention energies and their steps are made
of."""

import functools
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

__all__ = ["Neighbourhood", "by_rows", "centred", "neighbourhood", "pair_energy"]

# Pairs held at a time. All are taken at once up to the first number in an example and
# the second in the batch (32 MiB in float32); beyond, blocks of rows are taken in turn,
# as many as make the first (8 MiB, which fit a cache).
IN_A_BLOCK, ALL_AT_ONCE = 2**21, 2**23
FEWEST_ROWS = 16


class Neighbourhood(NamedTuple):
    """Sums over the pairs of a graph, with gamma_uv = rho'(|z_u - z_v|^2 / 2) on its
    edges and 0 elsewhere.

    Attributes:
      energy: (*batch,), the sum of rho over unordered pairs.
      log_degree: (*batch, n, 1), log sum_v gamma_uv; -inf for a token without
        neighbours.
      mean: (*batch, n, d), sum_v gamma_uv values_v / sum_v gamma_uv; 0 for a token
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
    """The sums over all pairs of a graph, in one pass over their distances.

    Beyond `ALL_AT_ONCE` pairs, or `IN_A_BLOCK` in an example, blocks of tokens are
    taken in turn, and again in the backward pass: memory O(n block), in value and
    derivatives. Compiled code computes only the results used.

    Args:
      rho: a resolved `Rho`.
      z, values: the tokens that distances are taken between, and the arrays averaged.
      graph: what `check_mask` returns, of as many tokens.
      present: boolean, broadcastable to (*batch, n): which tokens are there; None is
        all. The others have no edges.
      block: tokens in a block, taken one block at a time; None chooses.
      bounded: scale weights by the slope at 0 instead of each token's largest, which
        saves a pass. Then neighbours that are all far may underflow to none: for
        callers that give the token itself that slope as its weight.
    """
    z, size = centred(z, present), _rows_at_once(z, block)
    sums: Callable[..., tuple[Array, ...]] = functools.partial(
        rectangle_sums, rho, bounded=bounded
    )
    if bounded and rho.exponential and size == z.shape[-2]:
        sums = lambda rows, *others: square_exponential_sums(*others)
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
    """``neighbourhood(...).energy``, without the rest where nothing is compiled."""

    def sums(
        rows: Array, columns: Array, values: None, neighbours: Array
    ) -> tuple[Array]:
        return (rectangle_energy(rho, rows, columns, neighbours),)

    z = centred(z, present)
    energy = by_rows(
        sums, z, z, None, _adjacent(graph, z), present, _rows_at_once(z, block)
    )[0]
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
    """``sums`` of all rows z against all columns, ``size`` rows at a time, and again in
    the backward pass.

    Args:
      sums: ``(rows, columns, values, neighbours) -> arrays (*batch, rows, k)``.
      z, columns, values: the rows, as many columns, and the values of the columns.
      adjacent: ``(u, v) -> bool``, elementwise on numbers of tokens: whether v is a
        neighbour of u.
      present: boolean, broadcastable to (*batch, n), or None.
      size: rows at a time.
    """
    n = z.shape[-2]
    there = (
        None if present is None else jnp.broadcast_to(present, z.shape[:-1])[..., None]
    )

    def some(block: tuple[Array, Array, Array | None]) -> tuple[Array, ...]:
        u, rows, shown = block
        neighbours = adjacent(u[:, None], jnp.arange(n))
        if shown is not None and there is not None:
            neighbours = neighbours & shown & jnp.swapaxes(there, -1, -2)
        return sums(rows, columns, values, neighbours)

    if size >= n:
        return list(some((jnp.arange(n), z, there)))
    # the surplus is cut off again
    numbers = jnp.minimum(jnp.arange(-(-n // size) * size).reshape(-1, size), n - 1)
    blocks = (
        numbers,
        _in_blocks(z, size),
        None if there is None else _in_blocks(there, size),
    )
    parts = jax.lax.map(jax.checkpoint(some, prevent_cse=False), blocks)
    joined = [jnp.moveaxis(part, 0, -3) for part in parts]
    return [
        part.reshape(*part.shape[:-3], -1, part.shape[-1])[..., :n, :]
        for part in joined
    ]


def centred(z: Array, present: Any) -> Array:
    """Distances do not feel a shift; taken from the mean they lose no digits to a
    large common offset."""
    if present is None:
        return z - jax.lax.stop_gradient(jnp.mean(z, axis=-2, keepdims=True))
    # Absent tokens are 0 and do not count; where none is present, the mean is 0 and not
    # 0 / 0.
    kept = present[..., None]
    count = jnp.sum(
        jnp.broadcast_to(kept, (*z.shape[:-1], 1)),
        axis=-2,
        keepdims=True,
        dtype=z.dtype,
    )
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
    n, examples = z.shape[-2], max(1, math.prod(z.shape[:-2]))
    if block is not None or (n * n <= IN_A_BLOCK and examples * n * n <= ALL_AT_ONCE):
        return min(n, block or n)
    return min(n, max(FEWEST_ROWS, IN_A_BLOCK // (examples * n)))


def _in_blocks(tokens: Array, size: int) -> Array:
    """(blocks, *batch, size, d): the tokens in order, and zeros after them."""
    *batch, n, d = tokens.shape
    padded = jnp.pad(tokens, [(0, 0)] * len(batch) + [(0, -n % size), (0, 0)])
    return jnp.moveaxis(padded.reshape(*batch, -1, size, d), -3, 0)
