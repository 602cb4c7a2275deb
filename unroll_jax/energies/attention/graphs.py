"""Graphs of neighbouring tokens, described by their structure, so that no n x n array is formed."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from unroll_jax.arguments import SIZE, checked, require
from unroll_jax.arrays import check_known

__all__ = ["Graph", "Layout", "band", "check_mask", "complete"]

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


def complete() -> Graph:
    """Every token is a neighbour of every other: the same as ``mask=None``."""
    return Graph("the complete graph", None, lambda u, v: u != v, _all_columns)


@checked(width=SIZE)
def band(width: int) -> Graph:
    """Tokens at most ``width`` places apart are neighbours: a sliding window, n (2 width + 1) pairs.

    Args:
      width: the reach to either side, at least 1.

    Returns:
      A graph to pass as ``mask``, for any number of tokens.

    Source: the sliding window of Beltagy, Peters, Cohan (2020), "Longformer".

    Example:
      >>> import unroll_jax
      >>> local = unroll_jax.attention(form="softmax", mask=band(128))
    """
    return Graph(f"band({width})", None, lambda u, v: abs(u - v) <= width, functools.partial(_windows, width))


def check_mask(mask: Any) -> Graph | None:
    """The graph of a mask, None of the complete graph; a ValueError unless a mask is symmetric and boolean, (n, n)."""
    if mask is None or isinstance(mask, Graph):
        return mask
    check_known("mask", mask)
    table = np.asarray(mask)
    square = table.dtype == np.bool_ and table.ndim == 2 and table.shape[0] == table.shape[1]
    require(square, "mask", "be a boolean (n, n) array", f"{table.dtype} of shape {table.shape}")
    if not np.array_equal(table, table.T):
        u, v = np.argwhere(table != table.T)[0]
        raise ValueError(
            f"mask must be symmetric (an undirected graph), but mask[{u}, {v}] differs from mask[{v}, {u}]"
        )

    def adjacent(u: Array, v: Array) -> Array:
        return jnp.asarray(table)[jnp.minimum(u, len(table) - 1), jnp.minimum(v, len(table) - 1)]

    return Graph(f"{table.shape}", len(table), adjacent, _all_columns)


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
