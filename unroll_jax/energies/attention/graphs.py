"""Graphs of neighbouring tokens, described by their structure, so that no n x n array is formed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from unroll_jax.arguments import at_least, checked, require
from unroll_jax.arrays import check_known

__all__ = [
    "EdgeList",
    "Graph",
    "Layout",
    "band",
    "check_mask",
    "check_table",
    "complete",
    "edges",
]

# Rows of a band that are taken together where the width does not ask for more: enough to fill a matrix product.
BAND_BLOCK = 64
NOBODY = 2**30  # beyond every token, and numbers of tokens may be added to it in int32


class Layout(NamedTuple):
    """Blocks of tokens and, for each block, the tokens among which its neighbours are.

    Attributes:
      rows: (blocks, b), the numbers 0, ..., n - 1 in order; larger ones after them are padding.
      columns: (blocks, m), numbers of tokens; those below 0, or n and more, are padding. None is all tokens.
    """

    rows: Int[np.ndarray, "blocks b"]
    columns: Int[np.ndarray, "blocks m"] | None


class Graph(NamedTuple):
    """An undirected graph whose edges lie in few rectangles of the n x n table of pairs.

    Attributes:
      name: its name in messages.
      num_tokens: n, or None if it fits any number of tokens.
      adjacent: ``(u, v) -> bool``, elementwise on numbers of tokens, for u != v.
      layout: ``(n, block) -> Layout``, tokens in order; ``block`` is how many rows, of all columns, may be held at
        a time.
    """

    name: str
    num_tokens: int | None
    adjacent: Callable[[Int[Array, "..."], Int[Array, "..."]], Bool[Array, "..."]]
    layout: Callable[[int, int], Layout]


class EdgeList(NamedTuple):
    """An undirected graph as a list of edges, each in both directions and sorted by receiver.

    Attributes:
      name: its name in messages.
      num_tokens: n.
      receivers: (2 m,) the token that an edge leads to.
      senders: (2 m,) the token that it comes from.
    """

    name: str
    num_tokens: int
    receivers: Int[np.ndarray, " edges"]
    senders: Int[np.ndarray, " edges"]


def complete() -> Graph:
    """Every token is a neighbour of every other: the same as ``mask=None``."""
    return Graph("the complete graph", None, lambda u, v: u != v, _all_columns)


@checked(width=at_least(1))
def band(width: int) -> Graph:
    """Tokens at most ``width`` places apart are neighbours: a sliding window, n (2 width + 1) pairs.

    Args:
      width: the reach to either side, at least 1.

    Returns:
      A graph to pass as ``mask``, for any number of tokens.

    Raises:
      ValueError: if width is not at least 1.

    Source: the sliding window of Beltagy, Peters, Cohan (2020), "Longformer".

    Example:
      >>> import unroll_jax
      >>> local = unroll_jax.attention(form="softmax", mask=band(128))
    """
    return Graph(f"band({width})", None, lambda u, v: abs(u - v) <= width, functools.partial(_windows, width))


@checked(num_tokens=at_least(1))
def edges(pairs: Sequence[tuple[int, int]] | np.ndarray, num_tokens: int) -> EdgeList:
    """The graph of a list of edges; memory and time as their number, O(m d).

    Args:
      pairs: (m, 2) integers, each undirected edge once.
      num_tokens: n.

    Returns:
      A graph of n tokens, to pass as ``mask``.

    Raises:
      ValueError: if num_tokens is not at least 1; if pairs is not (m, 2) integers, names a token outside
        0..n-1, joins a token to itself, or has an edge twice, in either order.

    Example:
      >>> import unroll_jax
      >>> ring = edges([(0, 1), (1, 2), (2, 3), (3, 0)], num_tokens=4)
      >>> layer = unroll_jax.attention(mask=ring)
    """
    listed = np.asarray(pairs).reshape(-1, 2) if np.size(pairs) == 0 else np.asarray(pairs)
    integers = np.issubdtype(listed.dtype, np.integer) or listed.size == 0
    fits, got = listed.ndim == 2 and listed.shape[1] == 2 and integers, f"{listed.dtype} of shape {listed.shape}"
    require(fits, "pairs", "be (m, 2) integers", got)
    ordered = np.sort(listed.astype(np.int64), axis=1)
    for wrong, what in (
        ((ordered < 0) | (ordered >= num_tokens), f"tokens are 0 to {num_tokens - 1}"),
        (ordered[:, :1] == ordered[:, 1:], "a token is no neighbour of its own"),
    ):
        if wrong.any():
            place = int(np.argwhere(wrong)[0, 0])
            raise ValueError(f"pairs[{place}] is {tuple(listed[place].tolist())}, but {what}")
    _, first = np.unique(ordered, axis=0, return_index=True)
    if len(first) < len(ordered):
        place = int(np.setdiff1d(np.arange(len(ordered)), first)[0])
        raise ValueError(f"pairs[{place}] is {tuple(listed[place].tolist())}, an edge that pairs has already")
    both = np.concatenate([ordered, ordered[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))].astype(np.int32)
    return EdgeList(f"edges of {num_tokens} tokens", num_tokens, both[:, 0], both[:, 1])


def check_mask(mask: Any) -> Graph | EdgeList | None:
    """The graph of a mask, None of the complete graph; a ValueError unless a mask is symmetric and boolean, (n, n)."""
    if mask is None or isinstance(mask, Graph | EdgeList):
        return mask
    check_known("mask", mask)
    table = _symmetric_table("mask", mask)

    def adjacent(u: Array, v: Array) -> Array:
        return jnp.asarray(table)[jnp.minimum(u, len(table) - 1), jnp.minimum(v, len(table) - 1)]

    return Graph(f"{table.shape}", len(table), adjacent, _all_columns)


def check_table(name: str, table: np.ndarray) -> None:
    """A ValueError unless a mask is a boolean (n, n) array."""
    square = table.dtype == np.bool_ and table.ndim == 2 and table.shape[0] == table.shape[1]
    require(square, name, "be a boolean (n, n) array", f"{table.dtype} of shape {table.shape}")


def _symmetric_table(name: str, value: Any) -> np.ndarray:
    table = np.asarray(value)
    check_table(name, table)
    if not np.array_equal(table, table.T):
        u, v = np.argwhere(table != table.T)[0]
        raise ValueError(
            f"{name} must be symmetric (an undirected graph), but {name}[{u}, {v}] differs from {name}[{v}, {u}]"
        )
    return table


def _all_columns(n: int, block: int) -> Layout:
    return Layout(_in_blocks(n, min(block, n)), None)


def _windows(width: int, n: int, block: int) -> Layout:
    """Blocks of consecutive tokens, and the windows around them; places before the first token are negative."""
    size = min(n, block, max(BAND_BLOCK, width))
    rows = _in_blocks(n, size)
    columns = rows[:, :1] + np.arange(-width, size + width)
    return Layout(rows, np.where(columns < n, columns, n))


def _in_blocks(n: int, size: int) -> np.ndarray:
    """Returns 0, ..., n - 1 as (blocks, size), the last block padded with numbers of no token."""
    return np.concatenate([np.arange(n), np.full(-n % size, NOBODY)]).reshape(-1, size)
