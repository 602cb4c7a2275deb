"""Gaps of rates between groups, by differentiable surrogates and strict values; and the losses of classes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, checked, in_interval
from unroll_jax.constrained.losses import as_losses

__all__ = ["ProxyConstraint", "demographic_parity", "worst_class_loss"]

Logits = Float[Array, "samples"]
Groups = Int[Array, "samples"]


class ProxyConstraint(NamedTuple):
    """A constraint whose exact value has no useful gradient, as two functions of the same arguments.

    Attributes:
      surrogate: the differentiable violation, for `lagrangian`.
      strict: the exact violation, for the update of the multipliers and for reports.

    Example:
      >>> import jax.numpy as jnp
      >>> constraint = demographic_parity(2, tolerance=0.25)
      >>> logits, groups = jnp.array([1.0, -1.0]), jnp.array([0, 1])
      >>> [round(gap, 3) for gap in constraint.surrogate(logits, groups)[0].tolist()]
      [-0.019, -0.481]
      >>> constraint.strict(logits, groups)[0].tolist()
      [0.25, -0.75]

    Source: Cotter et al., "Two-player games for efficient non-convex constrained optimization" (2019).
    """

    surrogate: Callable[..., Any]
    strict: Callable[..., Any]


def _wide(name: str, values: Any) -> Float[Array, "samples"]:
    """Values in float32 at least: float16 does not count beyond 2048 samples."""
    array = as_losses(name, values)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _soft(logits: Logits) -> Float[Array, "samples"]:
    """The probability of a positive prediction."""
    return jax.nn.sigmoid(logits)


def _hard(logits: Logits) -> Float[Array, "samples"]:
    """1 for a positive prediction, else 0."""
    return (logits > 0.0).astype(logits.dtype)


def _both(violations: Callable[..., Any]) -> ProxyConstraint:
    """The constraint of a function of predictions, with soft and with hard ones."""

    def of(predict: Callable[[Logits], Float[Array, "samples"]]) -> Callable[..., Any]:
        return lambda logits, *others: violations(predict(_wide("logits", logits)), *map(jnp.asarray, others))

    return ProxyConstraint(surrogate=of(_soft), strict=of(_hard))


@checked(num_groups=at_least(2), tolerance=in_interval("[0, 1]"))
def demographic_parity(num_groups: int, *, tolerance: float) -> ProxyConstraint:
    r"""Groups receive positive predictions at nearly equal rates.

    .. math:: |P(\hat y = 1 \mid g) - P(\hat y = 1)| \le \epsilon , \; g = 1..G ,

    as two inequalities for each group. A group without samples in the batch has the violation -epsilon.

    Args:
      num_groups: G, at least 2.
      tolerance: epsilon in [0, 1], a difference of rates.

    Returns:
      A `ProxyConstraint` of ``(logits (samples,), groups (samples,))`` with groups in 0..G - 1; violations are (2, G).

    Raises:
      ValueError: if an argument is out of range.

    Source: Dwork et al., "Fairness through awareness" (2012); as constraints Agarwal et al., "A reductions approach to
    fair classification" (2018), Example 1.

    Example:
      >>> import jax.numpy as jnp
      >>> constraint = demographic_parity(2, tolerance=0.25)
      >>> constraint.strict(jnp.array([1.0, 1.0, -1.0, -1.0]), jnp.array([0, 0, 1, 1])).tolist()
      [[0.25, -0.75], [-0.75, 0.25]]
    """
    return _both(lambda predictions, groups: _gaps(predictions, groups, num_groups, tolerance))


@checked(num_classes=at_least(2))
def worst_class_loss(num_classes: int, *, at_most: float) -> Callable[..., Float[Array, "classes"]]:
    r"""Every class has a mean loss below a bound, :math:`E[f \mid y = k] - b \le 0`: class balance.

    Args:
      num_classes: K, at least 2.
      at_most: b, in units of the loss.

    Returns:
      ``(losses (samples,), labels (samples,)) -> violations (K,)``; a class without samples has the violation 0.

    Raises:
      ValueError: if num_classes is below 2.

    Source: Sagawa et al., "Distributionally robust neural networks for group shifts" (2020), as constraints.

    Example:
      >>> import jax.numpy as jnp
      >>> worst_class_loss(2, at_most=1.0)(jnp.array([1.0, 3.0, 0.5]), jnp.array([0, 0, 1])).tolist()
      [1.0, -0.5]
    """

    def violations(losses: Any, labels: Any) -> Float[Array, "classes"]:
        means, counts = _group_means(_wide("losses", losses), jnp.asarray(labels), num_classes)
        return jnp.where(counts > 0, means - at_most, 0.0)

    return violations


def _gaps(
    predictions: Float[Array, "samples"],
    groups: Groups,
    num_groups: int,
    tolerance: float,
) -> Float[Array, "2 groups"]:
    """Rates of groups above and below the rate of all, less the tolerance."""
    rates, counts = _group_means(predictions, groups, num_groups)
    gaps = jnp.where(counts > 0, rates - jnp.mean(predictions), 0.0)
    return jnp.stack([gaps - tolerance, -gaps - tolerance])


def _group_means(
    values: Float[Array, "samples"], groups: Groups, num_groups: int
) -> tuple[Float[Array, "groups"], Float[Array, "groups"]]:
    """Mean of the values of each group, and its number of samples."""
    members = jax.nn.one_hot(groups, num_groups, dtype=values.dtype)
    counts = jnp.sum(members, axis=0)
    return values @ members / jnp.maximum(counts, 1.0), counts
