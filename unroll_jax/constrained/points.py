"""One multiplier for each data point, moved with the batches of its point."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Int, PyTree

from unroll_jax.arguments import require
from unroll_jax.constrained.trees import states_of

__all__ = ["check_rows", "rows_of", "set_rows", "take_rows"]

Rows = Int[Array | np.ndarray, "batch"]


def take_rows(multipliers: PyTree, rows: Rows) -> PyTree:
    """Multipliers of the data points of a batch, for `lagrangian`.

    Args:
      multipliers: any pytree of arrays whose first axis runs over data points.
      rows: indices of the points, (batch,), the new first axis; known ones out of range
        are errors, traced ones NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> take_rows({"margin": jnp.array([0.0, 1.0, 2.0])}, jnp.array([2, 0]))[
      ...     "margin"
      ... ].tolist()
      [2.0, 0.0]
    """
    check_rows(rows, multipliers)
    return jax.tree.map(lambda leaf: _taken(jnp.asarray(leaf), rows), multipliers)


def check_rows(rows: Any, multipliers: PyTree) -> None:
    """Checks that rows are indices of every group of multipliers; of traced ones the
    values are not checked."""
    if not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
        raise TypeError(f"rows must be integers, got {jnp.result_type(rows)}")
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(multipliers)]
    vector = np.ndim(rows) == 1 and () not in shapes
    require(
        vector, "rows", f"be a vector of indices along the first axis of {shapes}", rows
    )
    least = min(shape[0] for shape in shapes)
    inside = isinstance(rows, Tracer) or np.all(
        (np.asarray(rows) >= 0) & (np.asarray(rows) < least)
    )
    require(inside, "rows", f"be in 0..{least - 1}, the rows of the multipliers", rows)


def rows_of(
    state: Any, rows: Rows, transformation: optax.GradientTransformation
) -> Any:
    """The `DualState` of some rows; counters and other leaves without an entry for
    each row are shared."""
    means = states_of(optax.MultiStepsState, state.opt_state)
    require(
        not means,
        "rows",
        "not come with optax.MultiSteps",
        "one, which averages calls with other rows",
    )
    return jax.tree.map(
        lambda by_row, leaf: _taken(leaf, rows) if by_row else leaf,
        _by_row(state, transformation),
        state,
    )


def set_rows(
    state: Any, rows: Rows, part: Any, transformation: optax.GradientTransformation
) -> Any:
    """The state with the rows of ``part`` in their places; of an index that occurs
    twice, one entry is kept."""

    def put(by_row: bool, leaf: Array, new: Array) -> Array:
        return leaf.at[_in_range(leaf, rows)].set(new, mode="drop") if by_row else new

    return jax.tree.map(put, _by_row(state, transformation), state, part)


def _taken(leaf: Array, rows: Rows) -> Array:
    """Rows of an array, NaN for indices out of range."""
    return leaf.at[_in_range(leaf, rows)].get(mode="fill")


def _in_range(leaf: Array, rows: Rows) -> Array:
    """Indices with those below 0 beyond the end, as JAX counts them from there."""
    return jnp.where(jnp.asarray(rows) < 0, leaf.shape[0], jnp.asarray(rows))


def _by_row(state: Any, transformation: optax.GradientTransformation) -> Any:
    """Marks the leaves of a `DualState` that have an entry for each row: they grow
    with the number of rows."""
    longer = jax.tree.map(
        lambda m: jax.ShapeDtypeStruct((m.shape[0] + 1, *m.shape[1:]), m.dtype),
        state.multipliers,
    )
    now, then = (
        jax.eval_shape(transformation.init, tree)
        for tree in (state.multipliers, longer)
    )
    opt_state = jax.tree.map(lambda one, other: one.shape != other.shape, now, then)
    every = jax.tree.map(lambda _: True, state)
    return every._replace(opt_state=opt_state, skipped=False)
