"""Resilience: constraints that may be relaxed at a quadratic cost."""

import math

from jaxtyping import Array, Float

from unroll_jax.arguments import typed

__all__ = ["check_resilience", "optimal_slacks", "relaxed_violations"]


@typed
def optimal_slacks(multipliers: Float[Array, "constraints"], resilience: float) -> Float[Array, "constraints"]:
    r"""Slacks :math:`s^* = \lambda / \beta`, the best relaxation :math:`c_l \le s_l` at cost :math:`\beta/2 |s|^2`.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 34 to 37.
    """
    check_resilience(resilience)
    return multipliers / resilience


@typed
def relaxed_violations(
    violations: Float[Array, "constraints"], multipliers: Float[Array, "constraints"], resilience: float
) -> Float[Array, "constraints"]:
    r"""Gradient of the resilient dual function, :math:`c - \lambda / \beta`: ascent along it decays the multipliers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 38.
    """
    return violations - optimal_slacks(multipliers, resilience)


def check_resilience(resilience: float) -> None:
    """Raises ValueError unless beta is positive and finite."""
    if not (resilience > 0.0 and math.isfinite(resilience)):
        raise ValueError(f"resilience (beta, the cost of slack) must be positive and finite, or None, got {resilience}")
