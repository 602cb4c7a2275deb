"""Constraints on layer losses: those of one size, relaxed ones, and their names."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, require
from unroll_jax.arrays import check_shape
from unroll_jax.constrained.losses import as_losses

__all__ = [
    "Constraints",
    "constraint_names",
    "initial_sizes",
    "named_figures",
    "optimal_slacks",
    "relaxed_violations",
    "scaled_constraints",
]

#: Violations of constraints on layer losses: losses (..., L + 1) to violations (..., C); positive is violated.
Constraints = Callable[[Float[Array, "*batch layers_and_one"]], Float[Array, "*batch constraints"]]


def initial_sizes(
    layer_losses: Float[Array, "layers_and_one"], constraints: Constraints
) -> Float[Array, "constraints"]:
    """The size of the loss that each constraint bounds: |f_l| for c_l and |f_0| for c_0; 1 for a loss of 0.

    Take it once, from the losses at the start of training, and keep it with the state of the run.

    Args:
      layer_losses: f_0..f_L.
      constraints: ``layer_losses -> violations``, such as `descent_constraints`.

    Returns:
      One positive number for each constraint, in units of the losses.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> initial_sizes(jnp.array([4.0, 2.0, 0.5]), unroll_jax.descent_constraints(0.25)).tolist()
      [2.0, 0.5]
    """
    losses = as_losses("layer_losses", layer_losses)
    sizes = jnp.abs(losses[losses.size - constraints(losses).size :])
    return jnp.where(sizes > 0.0, sizes, 1.0)


def scaled_constraints(constraints: Constraints, sizes: Float[Array, "constraints"]) -> Constraints:
    """The same constraints with every violation divided by a size; what satisfies one satisfies the other.

    A multiplier of the scaled constraint is that of the plain one times its size, so report with the plain constraints
    and ``multipliers / sizes``. Under resilience the slack of a scaled constraint is a share of its size.

    Args:
      constraints: ``layer_losses -> violations``, also of every sample's losses (`sample_constraints`).
      sizes: one for each constraint, positive and finite, as `initial_sizes` gives them.

    Returns:
      ``layer_losses -> violations``, unitless.

    Raises:
      ValueError: if sizes are known (not traced) and not all positive and finite; while tracing, if there is not one
        for each constraint.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> plain = unroll_jax.descent_constraints(0.25)
      >>> losses = jnp.array([400.0, 200.0, 0.5])
      >>> scaled_constraints(plain, initial_sizes(losses, plain))(losses).tolist()
      [-0.5, -299.0]
    """
    sound = isinstance(sizes, Tracer) or np.all((np.asarray(sizes) > 0.0) & np.isfinite(sizes))
    require(sound, "sizes", "be positive and finite", sizes)

    def violations(layer_losses: Float[Array, "*batch layers_and_one"]) -> Float[Array, "*fewer constraints"]:
        plain = constraints(layer_losses)
        check_shape("sizes", sizes, plain.shape[-1:], ", one a constraint")
        return plain / jnp.asarray(sizes, plain.dtype)

    return violations


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
