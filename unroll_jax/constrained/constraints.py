"""Constraints on layer losses: relaxed ones, and their names."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, require

__all__ = [
    "Constraints",
    "constraint_names",
    "named_figures",
    "optimal_slacks",
    "relaxed_violations",
]

#: Violations of constraints on layer losses: losses (..., L + 1) to violations (..., C); positive is violated.
Constraints = Callable[[Float[Array, "*batch layers_and_one"]], Float[Array, "*batch constraints"]]


@checked(resilience=POSITIVE)
def optimal_slacks(multipliers: Float[Array, "*constraints"], resilience: float) -> Float[Array, "*constraints"]:
    r"""Slacks :math:`s^* = \lambda / \beta`, the best relaxation :math:`c_l \le s_l` at cost :math:`\beta/2 |s|^2`.

    Args:
      multipliers: lambda, at least 0.
      resilience: beta, positive.

    Returns:
      Slacks, in units of the violations.

    Raises:
      ValueError: if resilience is not positive and finite.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 34 to 37.

    Example:
      >>> import jax.numpy as jnp
      >>> optimal_slacks(jnp.array([0.0, 2.0]), 4.0).tolist()
      [0.0, 0.5]
    """
    return multipliers / resilience


@checked(resilience=POSITIVE)
def relaxed_violations(
    violations: Float[Array, "*constraints"], multipliers: Float[Array, "*constraints"], resilience: float
) -> Float[Array, "*constraints"]:
    r"""Gradient of the resilient dual function, :math:`c - \lambda / \beta`: ascent along it decays the multipliers.

    Args:
      violations: c.
      multipliers: lambda, at least 0.
      resilience: beta, positive.

    Returns:
      One number for each constraint.

    Raises:
      ValueError: if resilience is not positive and finite.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 38.

    Example:
      >>> import jax.numpy as jnp
      >>> relaxed_violations(jnp.array([-1.0, 1.0]), jnp.array([0.0, 2.0]), 4.0).tolist()
      [-1.0, 0.5]
    """
    return violations - optimal_slacks(multipliers, resilience)


@checked(num_layers=at_least(1))
def constraint_names(num_layers: int, *, reference: bool | float | None = None) -> list[str]:
    """One name a constraint of `descent_constraints`, in its order.

    Args:
      num_layers: L.
      reference: whether c_0 is there; the reference itself will do.

    Raises:
      ValueError: if num_layers < 1.

    Example:
      >>> constraint_names(2, reference=4.0), constraint_names(2)
      (['f_0', 'layer 1', 'layer 2'], ['layer 1', 'layer 2'])
    """
    first = [] if reference is None or reference is False else ["f_0"]
    return [*first, *(f"layer {layer}" for layer in range(1, num_layers + 1))]


def named_figures(names: Sequence[str], **figures: Float[Array | np.ndarray, "constraints"] | None) -> dict[str, Any]:
    """Figures of every constraint as scalars under ``figure/constraint``; those that are None are left out.

    Args:
      names: of the constraints, as `constraint_names` gives them.
      **figures: violations, multipliers, slacks, ..., each (C,), on a device or fetched from it.

    Raises:
      ValueError: if a figure has not one value for each name.

    Example:
      >>> import jax.numpy as jnp
      >>> figures = named_figures(["f_0", "layer 1"], multiplier=jnp.array([0.0, 2.0]), slack=None)
      >>> {name: float(value) for name, value in figures.items()}
      {'multiplier/f_0': 0.0, 'multiplier/layer 1': 2.0}
    """
    vectors = {figure: values for figure, values in figures.items() if values is not None}
    for figure, values in vectors.items():
        require(values.shape == (len(names),), figure, f"have shape ({len(names)},), one a name", values.shape)
    return {f"{figure}/{name}": values[i] for figure, values in vectors.items() for i, name in enumerate(names)}
