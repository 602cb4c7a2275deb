"""Graphs of neighbouring tokens."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from unroll_jax.arguments import require
from unroll_jax.arrays import check_concrete

__all__ = ["check_mask"]


def check_mask(mask: Any) -> Bool[np.ndarray, "n n"] | None:
    """Returns the table of a mask. None stands for the complete graph.

    Raises:
      ValueError: if it is not symmetric, boolean and (n, n), or traced.
    """
    if mask is None:
        return None
    check_concrete("mask", mask)
    table = np.asarray(mask)
    is_square = table.ndim == 2 and table.shape[0] == table.shape[1]
    got = f"{table.dtype} of shape {table.shape}"
    fits = table.dtype == np.bool_ and is_square
    require(fits, "mask", "be a boolean (n, n) array", got)
    if asymmetric := np.argwhere(table != table.T).tolist():
        u, v = asymmetric[0]
        raise ValueError(
            f"mask must be symmetric (an undirected graph): mask[{u}, {v}] differs from"
            f" mask[{v}, {u}]"
        )
    return table
