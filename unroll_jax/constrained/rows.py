"""Indexed multipliers: one for each data point, of which a step moves those of its batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Int, PyTree

__all__ = ["check_rows", "rows_of", "set_rows", "take_rows"]

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
    check_rows(rows, multipliers)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], multipliers)


def check_rows(rows: Any, multipliers: PyTree) -> None:
    """Checks that rows are indices of every group of multipliers; of traced ones the values are not checked.

    Raises:
      TypeError: if they are not integers.
      ValueError: if a group has no rows, rows are not a vector, or a known one is out of range.
    """
    if not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
        raise TypeError(f"rows must be integers, got {jnp.result_type(rows)}")
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(multipliers)]
    if np.ndim(rows) != 1 or () in shapes:
        raise ValueError(f"rows must be a vector of indices along the first axis of {shapes}, got {rows!r}")
    least = min(shape[0] for shape in shapes)
    if not isinstance(rows, Tracer) and np.any((np.asarray(rows) < 0) | (np.asarray(rows) >= least)):
        raise ValueError(f"rows must be in 0..{least - 1}, the rows of the multipliers, got {rows}")


def rows_of(state: Any, rows: Rows, transformation: optax.GradientTransformation) -> Any:
    """The `DualState` of some rows; counters and other leaves without an entry for each row are shared.

    Raises:
      ValueError: if the optimiser steps once in several calls, as these have other rows.
    """
    parts = jax.tree.leaves(state.opt_state, is_leaf=_is_mean)
    if any(map(_is_mean, parts)):
        raise ValueError("rows must not come with every > 1 or optax.MultiSteps, which average calls with other rows")
    return jax.tree.map(lambda by_row, leaf: leaf[rows] if by_row else leaf, _by_row(state, transformation), state)


def set_rows(state: Any, rows: Rows, part: Any, transformation: optax.GradientTransformation) -> Any:
    """The state with the rows of ``part`` in their places; of an index that occurs twice, one entry is kept."""

    def put(by_row: bool, leaf: Array, new: Array) -> Array:
        return leaf.at[rows].set(new) if by_row else new

    return jax.tree.map(put, _by_row(state, transformation), state, part)


def _is_mean(part: Any) -> bool:
    return isinstance(part, optax.MultiStepsState)


def _by_row(state: Any, transformation: optax.GradientTransformation) -> Any:
    """Marks the leaves of a `DualState` that have an entry for each row: they grow with the number of rows."""
    longer = jax.tree.map(lambda m: jax.ShapeDtypeStruct((m.shape[0] + 1, *m.shape[1:]), m.dtype), state.multipliers)
    now, then = (jax.eval_shape(transformation.init, tree) for tree in (state.multipliers, longer))
    opt_state = jax.tree.map(lambda one, other: one.shape != other.shape, now, then)
    every = jax.tree.map(lambda _: True, state)
    return every._replace(opt_state=opt_state, skipped=False)
