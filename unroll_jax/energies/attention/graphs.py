"""Graphs of neighbouring tokens."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from unroll_jax.arguments import require
from unroll_jax.arrays import check_concrete

__all__ = ["check_mask"]


def check_mask(mask: Any) -> Bool[np.ndarray, "n n"] | None:
    """The table of a mask, None of the complete graph; a ValueError unless it is
    symmetric and boolean, (n, n)."""
    if mask is None:
        return None
    check_concrete("mask", mask)
    table = np.asarray(mask)
    square = (
        table.dtype == np.bool_ and table.ndim == 2 and table.shape[0] == table.shape[1]
    )
    require(
        square,
        "mask",
        "be a boolean (n, n) array",
        f"{table.dtype} of shape {table.shape}",
    )
    if different := np.argwhere(table != table.T).tolist():
        u, v = different[0]
        raise ValueError(
            f"mask must be symmetric (an undirected graph): mask[{u}, {v}] differs from"
            f" mask[{v}, {u}]"
        )
    return table
