"""Penalties of the augmented Lagrangian: constant ones, and rules that raise them while violations persist."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from unroll_jax.arguments import POSITIVE, Rule, at_least, checked, in_interval
from unroll_jax.constrained.groups import broadcast_option, check_known, check_penalty

__all__ = [
    "PenaltyRule",
    "bertsekas_penalty",
    "constant_penalty",
    "growing_penalty",
    "violation_sizes",
]

MAX_PENALTY = 1e6
ABOVE_ONE = Rule("finite and above 1", lambda value: 1.0 < value < float("inf"))


class PenaltyRule(NamedTuple):
    """A rule by which penalties start and change, constraint by constraint.

    Attributes:
      init: ``multipliers -> penalty``, of their structure and shapes.
      update: ``(penalty, sizes, previous_sizes) -> penalty``; sizes are [c]_+ of inequalities, |c| of equalities.

    Example:
      >>> import jax.numpy as jnp
      >>> growing_penalty(2.0).init({"gap": jnp.zeros(2)})["gap"].tolist()
      [2.0, 2.0]
    """

    init: Callable[[PyTree[Array]], PyTree[Array]]
    update: Callable[[Any, PyTree[Array], Any], PyTree[Array]]


def constant_penalty(penalty: Any) -> PenaltyRule:
    """Penalties that never change.

    Args:
      penalty: rho > 0, one number or a prefix tree of numbers or arrays.

    Returns:
      A `PenaltyRule`.

    Raises:
      ValueError: if penalty is not positive and finite; when called, if it does not fit the groups.

    Example:
      >>> import jax.numpy as jnp
      >>> constant_penalty({"gap": 3.0}).init({"gap": jnp.zeros(2)})["gap"].tolist()
      [3.0, 3.0]
    """
    check_penalty(penalty)

    def init(multipliers: PyTree[Array]) -> PyTree[Array]:
        # Buffers of their own: a caller may donate the state.
        full = broadcast_option("penalty", penalty, multipliers)
        return jax.tree.map(
            lambda m, rho: jnp.array(jnp.broadcast_to(rho, m.shape), m.dtype, copy=True), multipliers, full
        )

    return PenaltyRule(init, lambda rho, sizes, previous: rho)


@checked(factor=at_least(1.0), increment=at_least(0.0), tolerance=at_least(0.0), maximum=POSITIVE)
def growing_penalty(
    penalty: Any,
    *,
    factor: float = 2.0,
    increment: float = 0.0,
    tolerance: float = 1e-4,
    maximum: float = MAX_PENALTY,
) -> PenaltyRule:
    r"""Penalties that grow, :math:`\rho \leftarrow k \rho + d`, at every step at which their constraint is violated.

    Args:
      penalty: rho > 0 at the start, one number or a prefix tree.
      factor: k, at least 1.
      increment: d, at least 0; with ``factor=1`` growth is linear.
      tolerance: largest violation that counts as met, in units of the violations.
      maximum: largest penalty.

    Returns:
      A `PenaltyRule` for `dual_ascent`.

    Raises:
      ValueError: if an option is out of range.

    Source: Nocedal and Wright (2006), "Numerical optimization", Framework 17.1.

    Example:
      >>> import jax.numpy as jnp
      >>> growing_penalty(1.0).update(jnp.ones(2), jnp.array([0.5, 0.0]), None).tolist()
      [2.0, 1.0]
    """
    _check_maximum(penalty, maximum)

    def grown(rho: Array, size: Array) -> Array:
        return jnp.where(size > tolerance, jnp.minimum(rho * factor + increment, maximum), rho)

    return PenaltyRule(constant_penalty(penalty).init, lambda rhos, sizes, previous: jax.tree.map(grown, rhos, sizes))


@checked(factor=ABOVE_ONE, shrinkage=in_interval("(0, 1]"), tolerance=at_least(0.0), maximum=POSITIVE)
def bertsekas_penalty(
    penalty: Any,
    *,
    factor: float = 10.0,
    shrinkage: float = 0.25,
    tolerance: float = 1e-4,
    maximum: float = MAX_PENALTY,
) -> PenaltyRule:
    """Penalties that grow where a violation did not shrink enough since the last step of the multipliers.

    Args:
      penalty: rho > 0 at the start, one number or a prefix tree.
      factor: growth, above 1.
      shrinkage: share of its last size below which a violation must come for its penalty to stay.
      tolerance: largest violation that counts as met, in units of the violations.
      maximum: largest penalty.

    Returns:
      A `PenaltyRule` for `dual_ascent`.

    Raises:
      ValueError: if an option is out of range.

    Source: Bertsekas (1999), "Nonlinear programming", Section 4.2.

    Example:
      >>> import jax.numpy as jnp
      >>> rule = bertsekas_penalty(1.0)
      >>> rule.update(jnp.ones(2), jnp.array([0.5, 0.1]), jnp.array([1.0, 1.0])).tolist()
      [10.0, 1.0]
    """
    _check_maximum(penalty, maximum)

    def grown(rho: Array, size: Array, last: Array) -> Array:
        stalled = (size > tolerance) & (size > shrinkage * last)
        return jnp.where(stalled, jnp.minimum(rho * factor, maximum), rho)

    return PenaltyRule(
        constant_penalty(penalty).init, lambda rhos, sizes, previous: jax.tree.map(grown, rhos, sizes, previous)
    )


def _check_maximum(penalty: Any, maximum: float) -> None:
    check_known("penalty", penalty, lambda rho: rho <= maximum, f"at most maximum={maximum:g}")


def violation_sizes(violations: PyTree[Array], kinds: PyTree[str]) -> PyTree[Array]:
    """Sizes of violations: [c]_+ of inequalities, |c| of equalities."""
    return jax.tree.map(lambda c, kind: jnp.abs(c) if kind == "equal" else jnp.maximum(c, 0.0), violations, kinds)
