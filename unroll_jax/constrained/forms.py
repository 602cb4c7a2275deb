"""The forms of a constraint loss <= bound: as a difference, a ratio or its logarithm."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from unroll_jax.arguments import checked, one_of

__all__ = ["FORMS", "constraint_bounds", "relative_excess"]

Losses = Float[Array, "*batch constraints"]
Numbers = Float[Array | np.ndarray, "*batch constraints"]


LEAST_BOUND = 1e-9  # denominator of an excess where a bound is 0


def _ratio(losses: Numbers, bounds: Numbers) -> Losses:
    return jnp.where(_binds(bounds), losses / _above_zero(bounds) - 1.0, 0.0)


def _log_ratio(losses: Numbers, bounds: Numbers) -> Losses:
    return jnp.where(_binds(bounds), jnp.log(_above_zero(losses)) - jnp.log(_above_zero(bounds)), 0.0)


def _binds(bounds: Numbers) -> Bool[Array, "*batch constraints"]:
    """Returns where constraints bind: a bound of 0 leaves no share to remove."""
    return jnp.asarray(bounds) > _least(bounds)


def _above_zero(losses: Numbers) -> Losses:
    return jnp.maximum(losses, _least(losses))


def _least(losses: Numbers) -> float:
    # The fourth root of the smallest number, 3e-10 in float32: no gradient of a quotient overflows.
    return float(jnp.finfo(losses.dtype).tiny) ** 0.25


#: Forms of `descent_constraints` by name: how a loss is compared with its bound.
FORMS: dict[str, Callable[[Numbers, Numbers], Any]] = {
    "difference": lambda losses, bounds: losses - bounds,
    "ratio": _ratio,
    "log_ratio": _log_ratio,
}


@checked(form=one_of(FORMS))
def constraint_bounds(losses: Numbers, violations: Numbers, *, form: str = "difference") -> Losses:
    """The bounds that ``losses`` had to stay under, from their violations in a form.

    Args:
      losses: that a constraint bounds, (*batch, constraints).
      violations: of the same shape.
      form: "difference", "ratio" or "log_ratio", as of the violations.

    Returns:
      The bounds, of the same shape.

    Raises:
      ValueError: if the form is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([3.0])  # under a bound of 2
      >>> constraint_bounds(losses, jnp.array([1.0])).tolist()
      [2.0]
      >>> constraint_bounds(losses, jnp.array([0.5]), form="ratio").tolist()
      [2.0]
    """
    losses, violations = jnp.asarray(losses), jnp.asarray(violations)
    if form == "difference":
        return losses - violations
    return losses / (1.0 + violations if form == "ratio" else jnp.exp(violations))


@checked(form=one_of(FORMS))
def relative_excess(violations: Numbers, bounds: Numbers, *, form: str = "difference") -> Losses:
    """The share of its bound by which each constraint is exceeded, at least -1. A bound may be 0.

    Args:
      violations: in the form named, (*batch, constraints).
      bounds: of the same shape.
      form: "difference", "ratio" or "log_ratio".

    Returns:
      Shares, unitless, of the same shape.

    Raises:
      ValueError: if the form is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> relative_excess(jnp.array([1.0, -2.0]), jnp.array([2.0, 2.0])).tolist()  # losses of 3 and 0
      [0.5, -1.0]
    """
    violations, bounds = jnp.asarray(violations), jnp.asarray(bounds)
    if form == "difference":
        return jnp.maximum(violations / jnp.maximum(jnp.abs(bounds), LEAST_BOUND), -1.0)
    return violations if form == "ratio" else jnp.expm1(violations)
