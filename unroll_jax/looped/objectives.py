"""Losses and constraints on the losses of loops, and measures of their states."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked, require
from unroll_jax.constrained import LayerConstraints

__all__ = ["all_loops_loss", "never_rise", "path_independence", "step_sizes"]

Losses = Float[Array, "*batch loops_and_one"]


@checked(floor=POSITIVE)
def never_rise(floor: float) -> LayerConstraints:
    r"""Violations of "no loop of a window is worse than its start", :math:`f_{n+l} / \max(f_n, \text{floor}) - 1`.

    The first loss of a window is its reference, a constant in gradients: the bounds do not depend on the number of
    loops before it, and no start is rewarded for a larger loss. On the worst samples:
    ``sample_constraints(never_rise(0.02), tail_mean(0.9))``.

    Args:
      floor: positive, in units of the losses; smaller losses are not bound.

    Returns:
      ``violations(losses)``: f_n..f_(n + L) on the last axis, (..., L + 1), give (..., L).

    Raises:
      ValueError: if the floor is not positive; while tracing, if losses have fewer than two entries.

    Source: ours; the reference of Porras-Valenzuela, Hadou, Ribeiro is the layer before.

    Example:
      >>> import jax.numpy as jnp
      >>> never_rise(0.5)(jnp.array([2.0, 1.0, 3.0])).tolist(), never_rise(0.5)(jnp.array([0.1, 0.25])).tolist()
      ([-0.5, 0.5], [-0.5])
    """

    def bounds(losses: Losses) -> Float[Array, "*batch constraints"]:
        first = jax.lax.stop_gradient(losses[..., :1])
        return jnp.broadcast_to(jnp.maximum(first, floor), losses[..., 1:].shape)

    return LayerConstraints(bounds, "ratio")


def all_loops_loss(losses: Float[Array, "loops_and_one"]) -> Float[Array, ""]:
    """Deep supervision: the mean of the losses of loops 1..L.

    Args:
      losses: f_0..f_L, of at least one loop.

    Returns:
      The mean.

    Raises:
      ValueError: if there are fewer than two losses.

    Example:
      >>> import jax.numpy as jnp
      >>> float(all_loops_loss(jnp.array([8.0, 2.0, 1.0])))
      1.5
    """
    shape = jnp.shape(losses)
    require(len(shape) == 1 and shape[0] >= 2, "losses", "be f_0..f_L of a loop or more, (loops + 1,)", shape)
    return jnp.mean(jnp.asarray(losses)[1:])


def path_independence(states: Any, *, batch_ndim: int = 1) -> Float[Array, "*batch"]:
    """Agreement of the states that loops reach from different starts: the mean cosine with the first of them.

    1 for each example where the limit does not depend on the start; about 0 for states that have nothing in common.

    Args:
      states: arrays (starts, *batch, ...) of at least two starts, such as zeros, noise, and the states of other
        examples, each after the same number of loops.
      batch_ndim: number of batch axes.

    Returns:
      A number in [-1, 1] for each example.

    Raises:
      ValueError: if there are fewer than two starts.

    Source: Anil et al. (2022), Section 4, the asymptotic alignment score.

    Example:
      >>> import jax.numpy as jnp
      >>> path_independence(jnp.array([[[1.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]]])).tolist()
      [1.0, 0.0]
    """
    leaves = jax.tree.leaves(states)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    several = leaves and all(len(shape) > batch_ndim and shape[0] >= 2 for shape in shapes)
    require(several, "states", f"be (starts, *batch, ...) with 2 starts or more, batch_ndim={batch_ndim}", shapes)
    rows = [leaf.reshape(*leaf.shape[: 1 + batch_ndim], -1) for leaf in leaves]
    joined = jnp.concatenate(rows, axis=-1)
    norms = jnp.linalg.norm(joined, axis=-1, keepdims=True)
    unit = joined / jnp.maximum(norms, jnp.finfo(joined.dtype).tiny)
    return jnp.mean(jnp.sum(unit[:1] * unit[1:], axis=-1), axis=0)


def step_sizes(states: Float[Array, "loops_and_one *rest"], *, batch_ndim: int = 1) -> Float[Array, "loops *batch"]:
    """Root mean square of the step of each loop. A penalty on their mean on far windows brings states to rest.

    Args:
      states: (loops + 1, *batch, ...), such as the states that ``record`` returns.
      batch_ndim: number of batch axes.

    Returns:
      Sizes of the steps of loops 1..L. Their gradients are finite where a state rests.

    Raises:
      ValueError: if there are fewer than two states.

    Source: ours.

    Example:
      >>> import jax.numpy as jnp
      >>> step_sizes(jnp.array([[[1.0, 7.0]], [[3.0, 5.0]]])).tolist()
      [[2.0]]
    """
    shape = jnp.shape(states)
    several = len(shape) > batch_ndim and shape[0] >= 2
    require(several, "states", f"be (loops + 1, *batch, ...) of a loop or more, batch_ndim={batch_ndim}", shape)
    squares = jnp.diff(states, axis=0) ** 2
    return jnp.sqrt(jnp.mean(squares, axis=tuple(range(1 + batch_ndim, squares.ndim))) + 1e-12)
