"""Penalties phi and their proximal operators, of layers and of `prox_gradient`.

The numbers of a penalty are Python numbers or arrays that broadcast to the state. They
may be traced, and a prox is differentiable in them and in its step size. A known number
out of range is a ValueError. A traced one gives NaN. The prox of a set's indicator is
the projection onto it, for any step size, see also `optax.projections`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

from unroll_jax.arguments import look_up, require
from unroll_jax.energies.proximal.activations import ACTIVATIONS
from unroll_jax.energies.proximal.penalty import Proximal, check_number, nonnegative
from unroll_jax.numerics import compute_dtype, shrink
from unroll_jax.spectral import norm

__all__ = [
    "PROXIMALS",
    "box",
    "elastic_net",
    "group_shrinkage",
    "identity",
    "nonnegative_soft_threshold",
    "relu",
    "resolve_proximal",
    "soft_threshold",
]


# Activations that users may name, but that fall somewhere.
NOT_MONOTONE = ("gelu", "mish", "silu", "swish")


def identity() -> Proximal:
    """phi = 0: no nonlinearity.

    Example: see `relu`.
    """
    return Proximal(
        penalty=lambda y: jnp.zeros(y.shape[:-2], compute_dtype(y)),
        prox=lambda y, step_size: y,
    )


def relu() -> Proximal:
    """phi = 0 where every entry is at least 0, else infinite. prox = max(y, 0).

    Source: Yang, Huang, Wipf (2022), Section 5.

    Example:
      >>> import jax.numpy as jnp
      >>> phi, y = relu(), jnp.array([[3.0, -2.0]])
      >>> phi.prox(y, 0.5).tolist(), float(phi.penalty(y))
      ([[3.0, 0.0]], inf)
      >>> float(identity().penalty(y))
      0.0
    """
    return Proximal(
        penalty=lambda y: _indicator(y, lower=0.0),
        prox=lambda y, step_size: jax.nn.relu(y),
    )


def soft_threshold(threshold: ArrayLike = 1.0) -> Proximal:
    """phi = sum_i threshold_i |y_i|, prox = sign(y) max(|y| - step_size threshold, 0).

    Args:
      threshold: at least 0, in units of y over the step size. A number or an array that
        broadcasts to y.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> y = jnp.array([3.0, 0.5, -2.0])
      >>> soft_threshold(1.0).prox(y, 0.5).tolist()
      [2.5, 0.0, -1.5]
      >>> nonnegative_soft_threshold(1.0).prox(y, 0.5).tolist()
      [2.5, 0.0, 0.0]
      >>> box(0.0, 1.0).prox(y, 0.5).tolist()
      [1.0, 0.5, 0.0]
      >>> elastic_net(1.0, 2.0).prox(y, 0.5).tolist()
      [1.25, 0.0, -0.75]
    """
    threshold = nonnegative("threshold", threshold)
    return Proximal(
        penalty=lambda y: _weighted_sum(threshold, jnp.abs(y)),
        prox=lambda y, step_size: shrink(y, _scaled(y, threshold, step_size)),
    )


def nonnegative_soft_threshold(threshold: ArrayLike = 1.0) -> Proximal:
    """phi = sum_i threshold_i y_i where every entry is at least 0, else infinite.

    prox = max(y - step_size threshold, 0).

    Args: as `soft_threshold`.

    Example: see `soft_threshold`.
    """
    threshold = nonnegative("threshold", threshold)
    return Proximal(
        penalty=lambda y: _indicator(y, lower=0.0) + _weighted_sum(threshold, y),
        prox=lambda y, step_size: jax.nn.relu(y - _scaled(y, threshold, step_size)),
    )


def elastic_net(threshold: ArrayLike = 1.0, weight: ArrayLike = 1.0) -> Proximal:
    """phi = sum_i threshold_i |y_i| + weight_i y_i^2 / 2.

    Its prox is that of `soft_threshold`, over 1 + step_size weight.

    Args:
      threshold: as in `soft_threshold`. 0 gives ridge, whose prox is y / (1 + step_size
        weight).
      weight: likewise, in units of 1 over the step size. jaxopt's gamma is weight /
        threshold.

    Example: see `soft_threshold`.
    """
    lasso = soft_threshold(threshold)
    weight = nonnegative("weight", weight)

    def penalty(y: Array) -> Array:
        squares = y.astype(compute_dtype(y)) ** 2
        return lasso.penalty(y) + 0.5 * _weighted_sum(weight, squares)

    def prox(y: Array, step_size: Any) -> Array:
        return lasso.prox(y, step_size) / (1.0 + _scaled(y, weight, step_size))

    return Proximal(penalty, prox)


def box(lower: ArrayLike = 0.0, upper: ArrayLike = 1.0) -> Proximal:
    """phi = 0 where every entry is in [lower, upper], else infinite. prox clips.

    Args:
      lower, upper: numbers, or arrays that broadcast to y, rounded to its dtype. A
        ValueError unless known ones have lower < upper.

    Example: see `soft_threshold`.
    """
    check_number("lower", lower)
    check_number("upper", upper)
    least: Any = lower
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        least = jnp.where(jnp.less(lower, upper), lower, jnp.nan)
    else:
        got = f"lower={lower}, upper={upper}"
        require(np.all(np.less(lower, upper)), "lower", "be below upper", got)

    def prox(y: Array, step_size: Any) -> Array:
        return jnp.clip(y, jnp.asarray(least, y.dtype), jnp.asarray(upper, y.dtype))

    return Proximal(lambda y: _indicator(y, least, upper), prox)


def group_shrinkage(threshold: ArrayLike = 1.0) -> Proximal:
    """phi = sum_i threshold_i |y_i|_2 over tokens.

    The prox shortens each token by step_size threshold, to 0 at the least. A token is a
    row, the last axis of y. ``threshold`` broadcasts to the lengths, (*batch, n, 1).

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> group_shrinkage(1.0).prox(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 2.5).tolist()
      [[1.5, 2.0], [0.0, 0.0]]
    """
    threshold = nonnegative("threshold", threshold)

    def prox(y: Array, step_size: Any) -> Array:
        lengths = _lengths(y)
        cut = _scaled(lengths, threshold, step_size)
        kept = jax.nn.relu(1.0 - cut / jnp.where(lengths == 0.0, 1.0, lengths))
        return (kept * y.astype(kept.dtype)).astype(y.dtype)

    return Proximal(penalty=lambda y: _weighted_sum(threshold, _lengths(y)), prox=prox)


#: Proximal operators by name, with their penalties. One follows a gradient step as the
#: nonlinearity of a layer.
PROXIMALS: dict[str, Callable[..., Proximal]] = {
    "identity": identity,
    "relu": relu,
    "soft_threshold": soft_threshold,
    "nonnegative_soft_threshold": nonnegative_soft_threshold,
    "box": box,
    "elastic_net": elastic_net,
    "group_shrinkage": group_shrinkage,
    **ACTIVATIONS,
}


def resolve_proximal(phi: str | Proximal, step_size: float = 1.0) -> Proximal:
    """The `Proximal` given, or of a name of `PROXIMALS` with its default numbers.

    The name of an activation gives the pair whose prox at ``step_size`` is that
    activation. Another name is an error.
    """
    if isinstance(phi, str) and phi in NOT_MONOTONE:
        raise ValueError(
            f"phi must be one of {sorted(PROXIMALS)} or a Proximal, got {phi!r}, which"
            " falls somewhere: every proximal operator of one variable is"
            " nondecreasing, so no penalty has it; softplus and relu are near it"
        )
    entry = look_up("phi", phi, PROXIMALS, Proximal)
    if isinstance(entry, Proximal):
        return entry
    return entry(step_size=step_size) if phi in ACTIVATIONS else entry()


def _indicator(y: Array, lower: Any, upper: Any = math.inf) -> Array:
    """0 where every entry is in [lower, upper], NaN where one is NaN, else infinite."""
    dtype = compute_dtype(y)
    # to the dtype of y first, as the prox rounds them
    lower, upper = (jnp.asarray(bound, y.dtype) for bound in (lower, upper))
    missing = jnp.isnan(jnp.min(y, axis=(-2, -1)))
    if lower.ndim == upper.ndim == 0:
        # Extremes are compared, not entries: XLA knows the outputs of a prox entry by
        # entry, and may fold a constant of their size.
        inside = jnp.min(y, axis=(-2, -1)) >= lower
        inside &= jnp.max(y, axis=(-2, -1)) <= upper
    else:
        inside = jnp.all((y >= lower) & (y <= upper), axis=(-2, -1))
    outside = jnp.where(missing, jnp.nan, jnp.inf).astype(dtype)
    return jnp.where(inside, jnp.zeros((), dtype), outside)


def _lengths(y: Array) -> Array:
    """Norms of the tokens, (*batch, n, 1)."""
    return norm(y.astype(compute_dtype(y)), y.ndim - 1)[..., None]


def _weighted_sum(weight: Any, entries: Array) -> Array:
    """(*batch,) sums over the last two axes."""
    dtype = compute_dtype(entries)
    return jnp.sum(jnp.asarray(weight, dtype) * entries.astype(dtype), axis=(-2, -1))


def _scaled(y: Array, number: Any, step_size: Any) -> Array:
    """The number times the step size, in the dtype of y."""
    dtype = compute_dtype(y)
    step_size = jnp.asarray(nonnegative("step_size", step_size), dtype)
    return (step_size * jnp.asarray(number, dtype)).astype(y.dtype)
