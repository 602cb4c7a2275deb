"""Penalties phi and their proximal operators, the nonlinearities of a layer."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.descent import compute_dtype

__all__ = [
    "PROXIMALS",
    "Proximal",
    "box",
    "identity",
    "nonnegative_soft_threshold",
    "relu",
    "resolve_proximal",
    "soft_threshold",
]


class Proximal(NamedTuple):
    r"""A convex penalty phi, separable over entries, and its proximal operator.

    Attributes:
      penalty: ``y (*batch, n, d) -> phi(y) (*batch,)``; infinite outside phi's domain.
      prox: ``(y, step_size) -> argmin_z phi(z) + |z - y|^2 / (2 step_size)``, same shape and dtype as y.
    """

    penalty: Callable[[Float[Array, "*batch n d"]], Float[Array, "*batch"]]
    prox: Callable[[Float[Array, "*batch n d"], float], Float[Array, "*batch n d"]]


def identity() -> Proximal:
    """phi = 0: no nonlinearity."""
    return Proximal(penalty=lambda y: jnp.zeros(y.shape[:-2], compute_dtype(y)), prox=lambda y, step_size: y)


def relu() -> Proximal:
    """phi = 0 where every entry is at least 0, else infinite; prox = max(y, 0) (Yang et al. 2022, Section 5)."""
    return Proximal(penalty=lambda y: _indicator(y, y >= 0.0), prox=lambda y, step_size: jax.nn.relu(y))


def soft_threshold(threshold: float = 1.0) -> Proximal:
    """phi = threshold |y|_1; prox = sign(y) max(|y| - step_size threshold, 0).

    Raises:
      ValueError: if threshold is negative or not finite.
    """
    _check_threshold(threshold)
    return Proximal(
        penalty=lambda y: threshold * jnp.sum(jnp.abs(y), axis=(-2, -1), dtype=compute_dtype(y)),
        prox=lambda y, step_size: jnp.sign(y) * jax.nn.relu(jnp.abs(y) - step_size * threshold),
    )


def nonnegative_soft_threshold(threshold: float = 1.0) -> Proximal:
    """phi = threshold sum(y) where every entry is at least 0, else infinite; prox = max(y - step_size threshold, 0).

    Raises:
      ValueError: if threshold is negative or not finite.
    """
    _check_threshold(threshold)
    return Proximal(
        penalty=lambda y: _indicator(y, y >= 0.0) + threshold * jnp.sum(y, axis=(-2, -1), dtype=compute_dtype(y)),
        prox=lambda y, step_size: jax.nn.relu(y - step_size * threshold),
    )


def box(lower: float = 0.0, upper: float = 1.0) -> Proximal:
    """phi = 0 where every entry is in [lower, upper], else infinite; prox clips.

    Raises:
      ValueError: unless lower < upper.
    """
    if not lower < upper:
        raise ValueError(f"lower must be below upper, got lower={lower}, upper={upper}")
    return Proximal(
        penalty=lambda y: _indicator(y, (y >= lower) & (y <= upper)),
        prox=lambda y, step_size: jnp.clip(y, lower, upper),
    )


PROXIMALS: dict[str, Callable[..., Proximal]] = {
    "identity": identity,
    "relu": relu,
    "soft_threshold": soft_threshold,
    "nonnegative_soft_threshold": nonnegative_soft_threshold,
    "box": box,
}


def resolve_proximal(phi: str | Proximal) -> Proximal:
    """The `Proximal` that a name of `PROXIMALS` (with its default numbers) or a `Proximal` stands for.

    Raises:
      ValueError: if the name is not in `PROXIMALS`.
      TypeError: if it is neither a name nor a `Proximal`.
    """
    if isinstance(phi, Proximal):
        return phi
    if not isinstance(phi, str):
        raise TypeError(f"phi must be one of {sorted(PROXIMALS)} or a Proximal, got {type(phi).__name__}")
    if phi not in PROXIMALS:
        raise ValueError(f"phi must be one of {sorted(PROXIMALS)} or a Proximal, got {phi!r}")
    return PROXIMALS[phi]()


def _indicator(y: Array, inside: Array) -> Array:
    return jnp.where(jnp.all(inside, axis=(-2, -1)), 0.0, jnp.inf).astype(compute_dtype(y))


def _check_threshold(threshold: float) -> None:
    if not (threshold >= 0.0 and math.isfinite(threshold)):
        raise ValueError(f"threshold must be finite and at least 0, got {threshold}")
