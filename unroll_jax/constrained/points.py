"""One multiplier for each data point, moved with the batches of its point."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Integer, PyTree

from unroll_jax.arguments import require
from unroll_jax.constrained.trees import as_indices, states_of

__all__ = ["check_rows", "owners", "rows_of", "set_rows", "take_rows"]

Rows = Integer[Array | np.ndarray, "batch"]


def take_rows(multipliers: PyTree, rows: Rows) -> PyTree:
    """Multipliers of the data points of a batch, for `lagrangian`.

    Args:
      multipliers: any pytree of arrays whose first axis runs over data points.
      rows: indices of the points, (batch,), the new first axis. Known ones out of range
        are errors, traced ones NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> multipliers = {"margin": jnp.array([0.0, 1.0, 2.0])}
      >>> take_rows(multipliers, jnp.array([2, 0]))["margin"].tolist()
      [2.0, 0.0]
    """
    check_rows(rows, multipliers)
    return jax.tree.map(lambda leaf: _take(jnp.asarray(leaf), rows), multipliers)


def check_rows(rows: Any, multipliers: PyTree) -> None:
    """Checks that rows are indices of every group of multipliers."""
    if not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
        raise TypeError(f"rows must be integers, got {jnp.result_type(rows)}")
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(multipliers)]
    wanted = f"be a vector of indices along the first axis of {shapes}"
    require(np.ndim(rows) == 1 and () not in shapes, "rows", wanted, rows)
    as_indices("rows", rows, min(shape[0] for shape in shapes))


def rows_of(
    state: Any, rows: Rows, transformation: optax.GradientTransformation
) -> Any:
    """Returns the `DualState` of some rows.

    Leaves without an entry for each row, such as counters, are shared. Traced rows out
    of range give zeros, which `set_rows` drops.
    """
    require(
        not states_of(optax.MultiStepsState, state.opt_state),
        "rows",
        "not come with optax.MultiSteps",
        "one, which averages calls with other rows",
    )

    def take(by_row: bool, leaf: Array) -> Array:
        if not by_row:
            return leaf
        return leaf.at[_in_range(leaf, rows)].get(mode="fill", fill_value=0)

    return jax.tree.map(take, _by_row(state, transformation), state)


def set_rows(
    state: Any, rows: Rows, part: Any, transformation: optax.GradientTransformation
) -> Any:
    """Writes the rows of ``part`` into the state, one entry for repeated indices."""

    def put(by_row: bool, leaf: Array, new: Array) -> Array:
        return leaf.at[_in_range(leaf, rows)].set(new, mode="drop") if by_row else new

    return jax.tree.map(put, _by_row(state, transformation), state, part)


def owners(
    transformation: optax.GradientTransformation, multipliers: PyTree
) -> tuple[Any, PyTree[int]]:
    """Matches the leaves of an optimiser's state to the multipliers they belong to.

    Returns for each leaf of the state the number of a leaf of the multipliers, -1 for
    none, and the numbers of the latter.
    """
    leaves, structure = jax.tree.flatten(multipliers)
    numbers = jax.tree.unflatten(structure, range(len(leaves)))

    # A leaf belongs to the multipliers that it grows with, each in a way of its own.
    def grow(leaf: Any, number: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((number + 2, *leaf.shape), leaf.dtype)

    longer = jax.tree.map(grow, multipliers, numbers)
    now, then = (
        jax.eval_shape(transformation.init, tree) for tree in (multipliers, longer)
    )

    def owner(leaf: Any, grown: Any) -> int:
        same = len(grown.shape) > 0 and grown.shape[1:] == leaf.shape
        return grown.shape[0] - 2 if same and grown.shape != leaf.shape else -1

    return jax.tree.map(owner, now, then), numbers


def _take(leaf: Array, rows: Rows) -> Array:
    """Rows of an array, NaN for indices out of range."""
    return leaf.at[_in_range(leaf, rows)].get(mode="fill")


def _in_range(leaf: Array, rows: Rows) -> Array:
    """Indices with those below 0 beyond the end, as JAX counts them from there."""
    indices, _ = as_indices("rows", rows, leaf.shape[0])
    return jnp.where(indices < 0, leaf.shape[0], indices)


def _by_row(state: Any, transformation: optax.GradientTransformation) -> Any:
    """Marks the leaves of a `DualState` that have an entry for each row."""
    opt_state, _ = owners(transformation, state.multipliers)
    opt_state = jax.tree.map(lambda owner: owner >= 0, opt_state)
    every = jax.tree.map(lambda _: True, state)
    return every._replace(opt_state=opt_state, skipped=False)
