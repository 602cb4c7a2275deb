"""Measures of the states of loops."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.spectral import inner, unit

__all__ = ["path_independence", "step_sizes"]


def path_independence(states: Any, *, batch_ndim: int = 1) -> Float[Array, "*batch"]:
    """Agreement of the states that loops reach from different starts.

    It is the mean cosine with the first state, in [-1, 1]. It is 1 for an example whose
    limit does not depend on the start, and about 0 for unrelated states.

    Args:
      states: arrays (starts, *batch, ...) after equally many loops from two starts or
        more, else a ValueError.
      batch_ndim: number of batch axes.

    Source: Anil et al. (2022), Section 4, the asymptotic alignment score.

    Example:
      >>> import jax.numpy as jnp
      >>> first = jnp.array([[1.0, 0.0], [1.0, 0.0]])
      >>> second = jnp.array([[2.0, 0.0], [0.0, 1.0]])
      >>> path_independence(jnp.stack([first, second])).tolist()
      [1.0, 0.0]
    """
    leaves = jax.tree.leaves(states)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    several = all(len(shape) > batch_ndim and shape[0] >= 2 for shape in shapes)
    allowed = f"be (starts, *batch, ...) with 2 starts or more, {batch_ndim=}"
    require(leaves and several, "states", allowed, shapes)
    directions = unit(states, 1 + batch_ndim)
    first = jax.tree.map(lambda leaf: leaf[:1], directions)
    cosines = inner(first, directions, 1 + batch_ndim)
    return jnp.mean(cosines[1:], axis=0)


def step_sizes(
    states: Float[Array, "loops_and_one *rest"], *, batch_ndim: int = 1
) -> Float[Array, "loops *batch"]:
    """Root mean square of the step of each loop.

    A penalty on the mean size of late steps brings states to rest.

    Args:
      states: (loops + 1, *batch, ...), as of ``record``. Fewer than two are a
        ValueError.
      batch_ndim: number of batch axes.

    Returns:
      Sizes of the steps of loops 1..L. Their gradients are finite at rest too.

    Source: ours.

    Example:
      >>> import jax.numpy as jnp
      >>> step_sizes(jnp.array([[[1.0, 7.0]], [[3.0, 5.0]]])).tolist()
      [[2.0]]
    """
    shape = jnp.shape(states)
    several = len(shape) > batch_ndim and shape[0] >= 2
    allowed = f"be (loops + 1, *batch, ...) of a loop or more, {batch_ndim=}"
    require(several, "states", allowed, shape)
    squares = jnp.diff(states, axis=0) ** 2
    means = jnp.mean(squares, axis=tuple(range(1 + batch_ndim, squares.ndim)))
    return jnp.sqrt(means + 1e-12)  # finite slope at rest
