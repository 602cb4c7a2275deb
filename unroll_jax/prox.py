"""Proximal operators as functions of the state and of its numbers, which may be traced, arrays and pytrees.

The prox of a penalty :math:`s \\phi` is :math:`\\arg\\min_u s \\phi(u) + \\tfrac12 |u - z|^2`. States are arrays or
pytrees; thresholds are numbers or arrays that broadcast to the state, one for all leaves or a pytree with one for each
leaf, and are differentiable. That of the indicator of a set is the projection onto it, for any s: use
`optax.projections`.

Example:
  >>> import jax.numpy as jnp, optax
  >>> from unroll_jax import prox
  >>> prox.lasso({"w": jnp.array([3.0, 0.5])}, jnp.array([1.0, 2.0]))["w"].tolist()
  [2.0, 0.0]
  >>> optax.projections.projection_simplex(jnp.array([2.0, 0.0])).tolist()
  [1.0, 0.0]
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from unroll_jax.arguments import require
from unroll_jax.steps import check_state

__all__ = ["elastic_net", "group_lasso", "lasso", "nonnegative_lasso", "nonnegative_ridge", "ridge"]


def lasso(z: Any, threshold: Any = 1.0, step_size: Any = 1.0) -> Any:
    r"""Soft thresholding, the prox of :math:`\sum_i t_i |z_i|`: sign(z) max(|z| - s t, 0).

    Args:
      z: the state, a pytree of arrays.
      threshold: t, at least 0; a number, an array or a pytree, see `unroll_jax.prox`.
      step_size: s, at least 0; likewise.

    Returns:
      A pytree as z.

    Raises:
      ValueError: if a known threshold or step size is negative, or z has no leaf.
      TypeError: if a leaf of z is not an array.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> lasso(jnp.array([3.0, 0.5, -2.0]), 1.0, 0.5).tolist()
      [2.5, 0.0, -1.5]
    """
    return _map(lambda z, cut: jnp.sign(z) * jax.nn.relu(jnp.abs(z) - cut), z, step_size, threshold=threshold)


def nonnegative_lasso(z: Any, threshold: Any = 1.0, step_size: Any = 1.0) -> Any:
    r"""The prox of :math:`\sum_i t_i z_i` on z >= 0: max(z - s t, 0).

    Args, Returns and Raises: as `lasso`.

    Example:
      >>> import jax.numpy as jnp
      >>> nonnegative_lasso(jnp.array([3.0, 0.5, -2.0]), 1.0, 0.5).tolist()
      [2.5, 0.0, 0.0]
    """
    return _map(lambda z, cut: jax.nn.relu(z - cut), z, step_size, threshold=threshold)


def ridge(z: Any, weight: Any = 1.0, step_size: Any = 1.0) -> Any:
    r"""The prox of :math:`\tfrac12 \sum_i w_i z_i^2`: z / (1 + s w).

    Args:
      z: the state, a pytree of arrays.
      weight: w, at least 0; as the threshold of `lasso`.
      step_size: s, as in `lasso`.

    Returns and Raises: as `lasso`.

    Example:
      >>> import jax.numpy as jnp
      >>> ridge(jnp.array([3.0, -1.0]), 1.0, 1.0).tolist()
      [1.5, -0.5]
    """
    return _map(lambda z, share: z / (1.0 + share), z, step_size, weight=weight)


def nonnegative_ridge(z: Any, weight: Any = 1.0, step_size: Any = 1.0) -> Any:
    r"""The prox of :math:`\tfrac12 \sum_i w_i z_i^2` on z >= 0: max(z, 0) / (1 + s w).

    Args, Returns and Raises: as `ridge`.

    Example:
      >>> import jax.numpy as jnp
      >>> nonnegative_ridge(jnp.array([3.0, -1.0]), 1.0, 1.0).tolist()
      [1.5, 0.0]
    """
    return _map(lambda z, share: jax.nn.relu(z) / (1.0 + share), z, step_size, weight=weight)


def elastic_net(z: Any, threshold: Any = 1.0, weight: Any = 1.0, step_size: Any = 1.0) -> Any:
    r"""The prox of :math:`\sum_i t_i |z_i| + \tfrac12 w_i z_i^2`: that of `lasso`, over 1 + s w.

    Args:
      z: the state, a pytree of arrays.
      threshold: t, at least 0; as in `lasso`.
      weight: w, at least 0; likewise. jaxopt's gamma is w / t.
      step_size: s, as in `lasso`.

    Returns and Raises: as `lasso`.

    Example:
      >>> import jax.numpy as jnp
      >>> elastic_net(jnp.array([3.0, 0.5, -2.0]), 1.0, 1.0).tolist()
      [1.0, 0.0, -0.5]
    """
    return ridge(lasso(z, threshold, step_size), weight, step_size)


def group_lasso(z: Any, threshold: Any = 1.0, step_size: Any = 1.0, *, axis: Any = None) -> Any:
    r"""The prox of :math:`t |z|_2`, of each group: z max(1 - s t / |z|, 0).

    Args:
      z: the state, a pytree of arrays.
      threshold: t, at least 0; broadcasts to the norms, whose axes in ``axis`` are of size 1.
      step_size: s, as in `lasso`.
      axis: axes that hold a group, of each leaf; None takes a leaf as one group.

    Returns and Raises: as `lasso`.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> group_lasso(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 2.5, axis=1).tolist()
      [[1.5, 2.0], [0.0, 0.0]]
    """

    def shorten(z: Array, cut: Array) -> Array:
        squares = jnp.sum(z**2, axis=axis, keepdims=True)
        length = jnp.sqrt(jnp.where(squares > 0.0, squares, 1.0))
        return z * jax.nn.relu(1.0 - cut / length)

    return _map(shorten, z, step_size, threshold=threshold)


def _map(function: Any, z: Any, step_size: Any, **number: Any) -> Any:
    """``function(leaf, step_size * number)`` over the leaves."""
    check_state("z", z)
    ((name, value),) = number.items()
    spread = []
    for label, entry in ((name, value), ("step_size", step_size)):
        for leaf in jax.tree.leaves(entry):
            known = not isinstance(leaf, Tracer)
            require(not known or bool(np.all(np.asarray(leaf) >= 0.0)), label, "be at least 0", leaf)
        spread.append(jax.tree.broadcast(entry, z))
    return jax.tree.map(lambda z, a, b: function(z := jnp.asarray(z), jnp.asarray(a * b, z.dtype)), z, *spread)
