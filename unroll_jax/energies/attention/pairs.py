"""Sums over the pairs of a graph: what attention energies and their steps are made of."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.energies.attention.graphs import Graph, Layout, complete
from unroll_jax.energies.attention.rho import Rho
from unroll_jax.energies.attention.sums import rectangle_energy, rectangle_sums, square_exponential_sums

__all__ = ["Neighbourhood", "centred", "neighbourhood", "pair_energy"]

# Pairs held at a time. All are taken at once while an example has no more than the first number and the batch no more
# than the second (32 MiB in float32); beyond, blocks of rows are taken in turn, as many as make the first (8 MiB: a
# block then stays in the cache, which beats all at once).
IN_A_BLOCK, ALL_AT_ONCE = 2**21, 2**23
FEWEST_ROWS = 16


class Neighbourhood(NamedTuple):
    """Sums over the pairs of a graph, with gamma_uv = rho'(|z_u - z_v|^2 / 2) on its edges and 0 elsewhere.

    Attributes:
      energy: (*batch,), the sum of rho over unordered pairs.
      log_degree: (*batch, n, 1), log sum_v gamma_uv; -inf for a token without neighbours.
      mean: (*batch, n, d), sum_v gamma_uv values_v / sum_v gamma_uv; 0 for a token without neighbours.
    """

    energy: Float[Array, "*batch"]
    log_degree: Float[Array, "*batch n 1"]
    mean: Float[Array, "*batch n d"]


def neighbourhood(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n d"],
    graph: Graph | None,
    present: Bool[Array, "..."] | None = None,
    *,
    block: int | None = None,
    bounded: bool = False,
) -> Neighbourhood:
    """The sums over all pairs of a graph, in one pass over their distances.

    Where there are more than `ALL_AT_ONCE` pairs, or `IN_A_BLOCK` in an example, blocks of tokens are taken in turn,
    and again in the backward pass: memory O(n block), in value and derivatives. What the caller does not use is not
    computed once compiled.

    Args:
      rho: a resolved `Rho`.
      z: the tokens that distances are taken between.
      values: the arrays averaged.
      graph: what `check_mask` returns, of as many tokens.
      present: boolean, broadcastable to (*batch, n): which tokens are there; None is all. The others have no edges.
      block: tokens in a block, taken one block at a time; None chooses.
      bounded: scale weights by the slope at 0 instead of each token's largest, which saves a pass. Then neighbours
        that are all far may underflow to none: for callers that give the token itself that slope as its weight.
    """
    _check_size(graph, z)
    sums = functools.partial(rectangle_sums, rho, bounded=bounded)
    square = square_exponential_sums if bounded and rho.exponential else None
    return Neighbourhood(*_by_blocks(sums, square, centred(z, present), values, graph or complete(), present, block))


def pair_energy(
    rho: Rho,
    z: Float[Array, "*batch n k"],
    graph: Graph | None,
    present: Bool[Array, "..."] | None = None,
    *,
    block: int | None = None,
) -> Float[Array, "*batch"]:
    """``neighbourhood(...).energy``, without the rest where nothing is compiled."""
    _check_size(graph, z)

    def sums(rows: Array, columns: Array, values: None, neighbours: Array) -> tuple[Array]:
        return (rectangle_energy(rho, rows, columns, neighbours),)

    return _by_blocks(sums, None, centred(z, present), None, graph or complete(), present, block)[0]


def _check_size(graph: Graph | None, z: Array) -> None:
    n = z.shape[-2]
    if graph is not None and graph.num_tokens not in (None, n):
        raise ValueError(f"mask is {graph.name}, but y has n={n} tokens (shape {z.shape})")


def centred(z: Array, present: Any) -> Array:
    """Distances do not feel a shift; taken from the mean they lose no digits to a large common offset."""
    if present is None:
        return z - jax.lax.stop_gradient(jnp.mean(z, axis=-2, keepdims=True))
    # Absent tokens are 0 and do not count; where none is present, the mean is 0 and not 0 / 0.
    kept = present[..., None]
    count = jnp.sum(jnp.broadcast_to(kept, (*z.shape[:-1], 1)), axis=-2, keepdims=True, dtype=z.dtype)
    total = jnp.sum(z, axis=-2, keepdims=True, where=kept)
    return z - jax.lax.stop_gradient(total / jnp.maximum(count, 1.0))


def _by_blocks(
    sums: Callable, square: Callable | None, z: Array, values: Any, graph: Graph, present: Any, block: int | None
) -> tuple[Array, ...]:
    """Energy summed over tokens and halved (each pair is met twice), then what else ``sums`` returns."""
    n, batch = z.shape[-2], z.shape[:-2]
    present = None if present is None else jnp.broadcast_to(present, z.shape[:-1])[..., None]
    layout = graph.layout(n, _rows_at_once(n, batch) if block is None else block)
    b, m = layout.rows.shape[1], n if layout.columns is None else layout.columns.shape[1]
    chunk = 1 if block is not None else max(1, IN_A_BLOCK // max(1, math.prod(batch) * b * m))
    energies, *others = _layout_sums(sums, square, z, values, graph, present, layout, chunk)
    return 0.5 * jnp.sum(energies, axis=-1), *(part[..., :n, :] for part in others)


def _rows_at_once(n: int, batch: tuple[int, ...]) -> int:
    examples = max(1, math.prod(batch))
    return (
        n
        if n * n <= IN_A_BLOCK and examples * n * n <= ALL_AT_ONCE
        else min(n, max(FEWEST_ROWS, IN_A_BLOCK // (examples * n)))
    )


def _layout_sums(
    sums: Callable,
    square: Callable | None,
    z: Array,
    values: Any,
    graph: Graph,
    present: Any,
    layout: Layout,
    chunk: int,
) -> tuple[Array, ...]:
    n, groups = z.shape[-2], len(layout.rows)

    def neighbours_of(u: Array, v: Array, there: Array | None, around: Array | None) -> Array:
        u, v = u[:, None], v[None, :]
        adjacency = (u != v) & (u >= 0) & (u < n) & (v >= 0) & (v < n) & graph.adjacent(u, v)
        return adjacency if there is None or around is None else adjacency & there & jnp.swapaxes(around, -1, -2)

    if groups == 1 and layout.columns is None:
        everyone = jnp.arange(n)
        neighbours = neighbours_of(everyone, everyone, present, present)
        return square(z, values, neighbours) if square is not None else sums(z, z, values, neighbours)

    def one(block: tuple) -> tuple[Array, ...]:
        u, v, rows, columns, shown, there, around = block
        if v is None:
            v, columns, shown, around = jnp.arange(n), z, values, present
        return sums(rows, columns, shown, neighbours_of(u, v, there, around))

    inputs = (
        jnp.asarray(layout.rows),
        None if layout.columns is None else jnp.asarray(layout.columns),
        _in_blocks(z, layout.rows),
        _taken(z, layout.columns),
        _taken(values, layout.columns),
        _in_blocks(present, layout.rows),
        _taken(present, layout.columns),
    )
    if groups == 1:
        return one(jax.tree.map(lambda array: array[0], inputs))
    if groups <= chunk:
        stacked = jax.vmap(one)(inputs)
    else:
        stacked = jax.lax.map(jax.checkpoint(one, prevent_cse=False), inputs, batch_size=chunk if chunk > 1 else None)
    energy, *others = stacked
    return _ungrouped(energy[..., None])[..., 0], *(_ungrouped(array) for array in others)


def _in_blocks(tokens: Any, rows: np.ndarray) -> Array | None:
    """(groups, *batch, size, d): the tokens in order, and zeros in place of padding."""
    if tokens is None:
        return None
    padding = [(0, 0)] * (tokens.ndim - 2) + [(0, rows.size - tokens.shape[-2]), (0, 0)]
    return jnp.moveaxis(jnp.pad(tokens, padding).reshape(*tokens.shape[:-2], *rows.shape, tokens.shape[-1]), -3, 0)


def _taken(tokens: Any, numbers: np.ndarray | None) -> Array | None:
    """(groups, *batch, size, d): the tokens of these numbers; any token in place of padding."""
    if tokens is None or numbers is None:
        return None
    taken = jnp.take(tokens, jnp.asarray(np.clip(numbers, 0, tokens.shape[-2] - 1)), axis=-2)
    return jnp.moveaxis(taken, -3, 0)


def _ungrouped(array: Array) -> Array:
    moved = jnp.moveaxis(array, 0, -3)
    return moved.reshape(*moved.shape[:-3], -1, moved.shape[-1])
