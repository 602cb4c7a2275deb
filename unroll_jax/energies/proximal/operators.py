"""Penalties phi and their proximal operators, the nonlinearities of a layer."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unroll_jax.arguments import at_least, checked, look_up, require
from unroll_jax.energies.proximal.activations import ACTIVATIONS
from unroll_jax.energies.proximal.penalty import Proximal
from unroll_jax.numerics import compute_dtype
from unroll_jax.spectral import norm

__all__ = [
    "PROXIMALS",
    "box",
    "group_shrinkage",
    "identity",
    "nonnegative_soft_threshold",
    "relu",
    "resolve_proximal",
    "soft_threshold",
]


# Activations that a name is likely to ask for, and why they are not proximal operators.
NOT_MONOTONE = ("gelu", "mish", "silu", "swish")


def identity() -> Proximal:
    """phi = 0: no nonlinearity.

    Example: see `relu`.
    """
    return Proximal(penalty=lambda y: jnp.zeros(y.shape[:-2], compute_dtype(y)), prox=lambda y, step_size: y)


def relu() -> Proximal:
    """phi = 0 where every entry is at least 0, else infinite; prox = max(y, 0).

    Source: Yang, Huang, Wipf (2022), Section 5.

    Example:
      >>> import jax.numpy as jnp
      >>> y = jnp.array([[3.0, -2.0]])
      >>> relu().prox(y, 0.5).tolist(), float(relu().penalty(y)), float(identity().penalty(y))
      ([[3.0, 0.0]], inf, 0.0)
    """
    return Proximal(penalty=lambda y: _indicator(y, lower=0.0), prox=lambda y, step_size: jax.nn.relu(y))


@checked(threshold=at_least(0.0))
def soft_threshold(threshold: float = 1.0) -> Proximal:
    """phi = threshold |y|_1; prox = sign(y) max(|y| - step_size threshold, 0).

    Args:
      threshold: at least 0, in units of y over the step size.

    Raises:
      ValueError: if threshold is negative or not finite.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> y = jnp.array([[3.0, 0.5, -2.0]])
      >>> phis = soft_threshold(1.0), nonnegative_soft_threshold(1.0), box(0.0, 1.0)
      >>> [phi.prox(y, 0.5).tolist()[0] for phi in phis]
      [[2.5, 0.0, -1.5], [2.5, 0.0, 0.0], [1.0, 0.5, 0.0]]
    """
    return Proximal(
        penalty=lambda y: threshold * jnp.sum(jnp.abs(y), axis=(-2, -1), dtype=compute_dtype(y)),
        prox=lambda y, step_size: jnp.sign(y) * jax.nn.relu(jnp.abs(y) - step_size * threshold),
    )


@checked(threshold=at_least(0.0))
def nonnegative_soft_threshold(threshold: float = 1.0) -> Proximal:
    """phi = threshold sum(y) where every entry is at least 0, else infinite; prox = max(y - step_size threshold, 0).

    Example: see `soft_threshold`.
    """
    return Proximal(
        penalty=lambda y: _indicator(y, lower=0.0) + threshold * jnp.sum(y, axis=(-2, -1), dtype=compute_dtype(y)),
        prox=lambda y, step_size: jax.nn.relu(y - step_size * threshold),
    )


@checked()
def box(lower: float = 0.0, upper: float = 1.0) -> Proximal:
    """phi = 0 where every entry is in [lower, upper], else infinite; prox clips. A ValueError unless lower < upper.

    Example: see `soft_threshold`.
    """
    require(lower < upper, "lower", "be below upper", f"lower={lower}, upper={upper}")
    return Proximal(penalty=lambda y: _indicator(y, lower, upper), prox=lambda y, step_size: jnp.clip(y, lower, upper))


@checked(threshold=at_least(0.0))
def group_shrinkage(threshold: float = 1.0) -> Proximal:
    """phi = threshold sum_i |y_i|_2 over tokens; prox shortens each by step_size threshold, to 0 at the least.

    Source: Parikh and Boyd (2014), "Proximal algorithms", Section 6.5.

    Example:
      >>> import jax.numpy as jnp
      >>> group_shrinkage(1.0).prox(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 2.5).tolist()
      [[1.5, 2.0], [0.0, 0.0]]
    """

    def prox(y: Array, step_size: float) -> Array:
        lengths = _lengths(y)[..., None]
        shares = jax.nn.relu(1.0 - step_size * threshold / jnp.where(lengths == 0.0, 1.0, lengths))
        return (shares * y).astype(y.dtype)

    return Proximal(penalty=lambda y: threshold * jnp.sum(_lengths(y), axis=-1), prox=prox)


#: Proximal operators by name, with their penalties: what follows a gradient step as a layer's nonlinearity.
PROXIMALS: dict[str, Callable[..., Proximal]] = {
    "identity": identity,
    "relu": relu,
    "soft_threshold": soft_threshold,
    "nonnegative_soft_threshold": nonnegative_soft_threshold,
    "box": box,
    "group_shrinkage": group_shrinkage,
    **ACTIVATIONS,
}


def resolve_proximal(phi: str | Proximal, step_size: float = 1.0) -> Proximal:
    """The `Proximal` of a name of `PROXIMALS` (with its default numbers), or the `Proximal` given.

    The name of an activation gives the pair whose prox at ``step_size`` is that activation.

    Raises:
      ValueError: if the name is not in `PROXIMALS`.
      TypeError: if it is neither a name nor a `Proximal`.
    """
    if isinstance(phi, str) and phi in NOT_MONOTONE:
        raise ValueError(
            f"phi must be one of {sorted(PROXIMALS)} or a Proximal, got {phi!r}, which falls somewhere: every proximal "
            "operator of one variable is nondecreasing, so no penalty has it; softplus, elu and relu are near it"
        )
    entry = look_up("phi", phi, PROXIMALS, Proximal)
    if isinstance(entry, Proximal):
        return entry
    return entry(step_size=step_size) if phi in ACTIVATIONS else entry()


def _indicator(y: Array, lower: float, upper: float = math.inf) -> Array:
    """0 where every entry is in [lower, upper], else infinite, also for NaN.

    Of the extremes: compared entry by entry, outputs of a prox are known to XLA, which may fold a constant of their
    size as it compiles.
    """
    inside = jnp.min(y, axis=(-2, -1)) >= lower
    if upper < math.inf:
        inside &= jnp.max(y, axis=(-2, -1)) <= upper
    return jnp.where(inside, 0.0, jnp.inf).astype(compute_dtype(y))


def _lengths(y: Array) -> Array:
    """Norms of the tokens."""
    return norm(y.astype(compute_dtype(y)), y.ndim - 1)
