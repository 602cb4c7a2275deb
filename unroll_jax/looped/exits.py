"""Exit by improvement: each example loops until a loop changes its state by less than a threshold."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import require
from unroll_jax.train.tasks.early_exit import choose_threshold, exit_layers, thresholds_of

__all__ = ["exit_loops", "exit_threshold", "loops_until_still", "state_changes"]


def state_changes(states: Any, *, batch_ndim: int = 1) -> Float[Array, "loops *batch"]:
    r"""The change of every loop, :math:`|h_l - h_{l-1}| / |h_l|`, over all that belongs to an example.

    Args:
      states: arrays (loops + 1, *batch, ...), such as the states that ``record`` returns.
      batch_ndim: number of batch axes: 1 for examples; 2 for tokens, each of which exits by itself.

    Returns:
      Changes of loops 1..L, (L, *batch).

    Raises:
      ValueError: if there are fewer than two states, or fewer axes.

    Example:
      >>> import jax.numpy as jnp
      >>> state_changes(jnp.array([[[8.0, 0.0]], [[4.0, 0.0]], [[4.0, 3.0]]])).tolist()
      [[1.0], [0.6000000238418579]]
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(states)]
    several = shapes and all(len(shape) > batch_ndim and shape[0] >= 2 for shape in shapes)
    require(several, "states", f"be (loops + 1, *batch, ...) of a loop or more, batch_ndim={batch_ndim}", shapes)
    states = jax.tree.map(jnp.asarray, states)
    before, after = jax.tree.map(lambda leaf: leaf[:-1], states), jax.tree.map(lambda leaf: leaf[1:], states)
    return _change(before, after, 1 + batch_ndim)


def exit_loops(changes: Any, threshold: float) -> Int[np.ndarray, "examples"]:
    """The first loop of each example that changes its state by less than the threshold, else the last one.

    Args:
      changes: of loops 1..L, (L, examples), of `state_changes`.
      threshold: as `run_loops` takes it.

    Returns:
      Loops, from 1 to L.

    Example:
      >>> exit_loops([[0.5, 0.5], [0.1, 0.3], [0.1, 0.2]], 0.2).tolist()
      [2, 3]
    """
    return exit_layers(_to_come(changes), threshold)


def exit_threshold(changes: Any, correct: Any) -> float:
    """The threshold of fewest loops that costs at most half a point of accuracy on validation examples.

    The cost is against the last loop, with its standard error, as for exits from layers of text models.

    Args:
      changes: of loops 1..L, (L, examples).
      correct: whether each loop's answer is right, or a share of right positions, (L + 1, examples), with that before
        the first loop.

    Returns:
      A threshold, for ``run_loops(..., gradient="none", threshold=...)``.

    Raises:
      ValueError: if the shapes do not fit each other.

    Example:
      >>> changes = [[0.9, 0.9, 0.9], [0.3, 0.2, 0.4], [0.1, 0.1, 0.1]]
      >>> threshold = exit_threshold(changes, [[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1]])
      >>> exit_loops(changes, threshold).tolist()
      [2, 2, 2]
    """
    changes, correct = np.asarray(changes), np.asarray(correct)
    fits = changes.ndim == 2 and correct.shape == (changes.shape[0] + 1, changes.shape[1])
    require(fits, "correct", f"be (L + 1, examples) to changes (L, examples)={changes.shape}", correct.shape)
    return choose_threshold(_to_come(changes), correct.T, thresholds_of(changes.T))


def loops_until_still(
    step: Callable[[Any], Any], state: Any, *, most: int, threshold: float, batch_ndim: int
) -> tuple[Any, Int[Array, "*batch"]]:
    """Runs a step until every example is still, see `run_loops`; returns the state and the loops of each example."""
    leaf = jax.tree.leaves(state)[0]
    require(leaf.ndim >= batch_ndim, "batch_ndim", f"be at most the rank of the state, {leaf.ndim}", batch_ndim)
    batch = leaf.shape[:batch_ndim]

    def moves(carried: Any) -> Any:
        _, taken, moving = carried
        return jnp.any(moving & (taken < most))

    def advance(carried: Any) -> Any:
        h, taken, moving = carried
        after = step(h)
        kept = jax.tree.map(lambda new, old: jnp.where(_as_wide(moving, new), new, old), after, h)
        return kept, taken + moving, moving & ~(_change(h, after, batch_ndim) < threshold)

    start = (state, jnp.zeros(batch, jnp.int32), jnp.ones(batch, bool))
    state, taken, _ = jax.lax.while_loop(moves, advance, start)
    return state, taken


def _to_come(changes: Any) -> np.ndarray:
    """Changes as `exit_layers` takes improvements to come, (examples, L): that before the first loop is infinite."""
    changes = np.asarray(changes)
    return np.concatenate([np.full((1, changes.shape[1]), np.inf), changes[:-1]]).T


def _change(before: Any, after: Any, batch_ndim: int) -> Float[Array, "*batch"]:
    """NaN where a state is not finite: it has diverged, and is not still."""
    pairs = [
        [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)).reshape(*leaf.shape[:batch_ndim], -1) for leaf in pair]
        for pair in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ]
    before, after = (jnp.concatenate(leaves, axis=-1) for leaves in zip(*pairs, strict=True))
    largest = jnp.max(jnp.maximum(jnp.abs(before), jnp.abs(after)), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0.0, largest, 1.0)  # squares of the states themselves may overflow or vanish
    moved, size = (jnp.linalg.norm(each, axis=-1) for each in (after / scale - before / scale, after / scale))
    return moved / jnp.maximum(size, jnp.finfo(size.dtype).tiny)


def _as_wide(moving: Array, leaf: Array) -> Array:
    return moving.reshape(*moving.shape, *[1] * (leaf.ndim - moving.ndim))
