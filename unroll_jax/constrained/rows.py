"""Indexed multipliers: one for each data point, of which a step moves those of its batch."""

from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

__all__ = ["rows_of", "set_rows", "take_rows"]

Rows = Int[Array | np.ndarray, "batch"]


def take_rows(multipliers: PyTree, rows: Rows) -> PyTree:
    """Multipliers of the data points of a batch, for `lagrangian`.

    Args:
      multipliers: any pytree of arrays whose first axis runs over data points.
      rows: indices of the points, (batch,).

    Returns:
      The same tree with (batch, ...) leaves.

    Example:
      >>> import jax.numpy as jnp
      >>> take_rows({"margin": jnp.array([0.0, 1.0, 2.0])}, jnp.array([2, 0]))["margin"].tolist()
      [2.0, 0.0]
    """
    return jax.tree.map(lambda leaf: leaf[rows], multipliers)


def rows_of(state: Any, rows: Rows, transformation: optax.GradientTransformation) -> Any:
    """The `DualState` of some rows; counters and other leaves without an entry for each row are shared."""
    return jax.tree.map(lambda by_row, leaf: leaf[rows] if by_row else leaf, _by_row(state, transformation), state)


def set_rows(state: Any, rows: Rows, part: Any, transformation: optax.GradientTransformation) -> Any:
    """The state with the rows of ``part`` in their places; of an index that occurs twice, one entry is kept."""

    def put(by_row: bool, leaf: Array, new: Array) -> Array:
        return leaf.at[rows].set(new) if by_row else new

    return jax.tree.map(put, _by_row(state, transformation), state, part)


def _by_row(state: Any, transformation: optax.GradientTransformation) -> Any:
    """Marks the leaves of a `DualState` that have an entry for each row: they grow with the number of rows."""
    longer = jax.tree.map(lambda m: jax.ShapeDtypeStruct((m.shape[0] + 1, *m.shape[1:]), m.dtype), state.multipliers)
    now, then = (jax.eval_shape(transformation.init, tree) for tree in (state.multipliers, longer))
    opt_state = jax.tree.map(lambda one, other: one.shape != other.shape, now, then)
    every = jax.tree.map(lambda _: True, state)
    return every._replace(opt_state=opt_state, skipped=False)
