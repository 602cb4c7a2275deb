"""Weight normalisation: weights by their directions and lengths, with a bound of their norm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.certificates.weights import map_weights

__all__ = ["WeightGains", "split_gains", "weight_normalise"]


class WeightGains(NamedTuple):
    """A weight W in two parts, to be trained in its place.

    Attributes:
      direction: V, of the shape of W; its length does not count.
      gain: g, the lengths of the columns of W, one for each output.

    Example:
      >>> import jax.numpy as jnp
      >>> weight_normalise(WeightGains(jnp.array([[3.0], [4.0]]), 10.0 * jnp.ones(1))).tolist()
      [[6.0], [8.0]]
    """

    direction: Array
    gain: Array


def split_gains(params: Any, *, where: Callable[[str], bool] | None = None) -> Any:
    """The parameters with `WeightGains` in place of their weights: the same weights, in other coordinates.

    Args:
      params: any pytree; its matrices (in, out) and kernels (height, width, in, out) are split, as flax has them.
      where: chooses weights by their path, as in ``lambda path: "recurrent" in path``; None takes all.

    Returns:
      The pytree to train; `weight_normalise` takes it back.

    Raises:
      TypeError: if there are none.

    Source: Salimans and Kingma (2016), Weight Normalization.

    Example:
      >>> import jax.numpy as jnp
      >>> split = split_gains({"W": jnp.array([[3.0, 0.0], [4.0, 1.0]])})
      >>> split["W"].gain.tolist(), weight_normalise(split)["W"].tolist()
      ([5.0, 1.0], [[3.0, 0.0], [4.0, 1.0]])
    """
    return map_weights(lambda W: WeightGains(W, _lengths(W)), params, where)


@checked(bound=POSITIVE)
def weight_normalise(params: Any, *, bound: float | None = None) -> Any:
    r"""The weights of `WeightGains`, with norms of at most ``bound``.

    .. math:: W_{:j} = g_j V_{:j} / |V_{:j}| , \qquad |W|_2 \le |W|_F = |g| .

    With a bound, g is scaled down, if it must be, to :math:`|g| \le bound`, for a kernel of T taps to
    :math:`\sqrt T |g| \le bound`, which bounds the norm of its zero-padded convolution on images of any size. That
    costs no products of matrices, but is above the norm by up to the square root of the rank: `spectral_normalise`
    leaves larger weights. Call it before the equilibrium is solved and not inside the step.

    Args:
      params: a pytree with `WeightGains`, of `split_gains`.
      bound: positive, or None.

    Returns:
      The parameters that the step takes.

    Raises:
      ValueError: if bound is not positive.

    Source: Salimans and Kingma (2016); the bound is ours.

    Example:
      >>> import jax.numpy as jnp
      >>> split = split_gains({"W": jnp.array([[3.0, 0.0], [4.0, 1.0]]), "b": jnp.ones(2)})
      >>> bool(jnp.linalg.norm(weight_normalise(split, bound=0.5)["W"], 2) <= 0.5)
      True
    """

    def weight(leaf: Any) -> Any:
        if not isinstance(leaf, WeightGains):
            return leaf
        V, gain = map(jnp.asarray, leaf)
        if bound is not None:
            size = jnp.sqrt(V.size / (V.shape[-2] * V.shape[-1]) * jnp.sum(gain**2))
            gain = gain * jnp.where(size > bound, bound / jnp.where(size > bound, size, 1.0), 1.0)
        length = _lengths(V)
        return V * (gain / jnp.where(length > 0.0, length, 1.0))

    return jax.tree.map(weight, params, is_leaf=lambda leaf: isinstance(leaf, WeightGains))


def _lengths(V: Array) -> Array:
    """Of the columns; with a derivative of 0 at 0."""
    square = jnp.sum(V**2, axis=tuple(range(V.ndim - 1)))
    return jnp.where(square > 0.0, jnp.sqrt(jnp.where(square > 0.0, square, 1.0)), 0.0)
