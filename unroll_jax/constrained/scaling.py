"""Constraints of one size, so that one dual rate fits all."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.constrained.constraints import Constraints
from unroll_jax.constrained.numbers import as_losses

__all__ = ["initial_sizes", "scaled_constraints"]


def initial_sizes(
    layer_losses: Float[Array, "layers_and_one"], constraints: Constraints
) -> Float[Array, "constraints"]:
    """The size of the loss that each constraint bounds: |f_l| for c_l and |f_0| for c_0; 1 for a loss of 0.

    Take it once, from the losses at the start of training, and keep it with the state of the run.

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
    if not isinstance(sizes, Tracer) and not np.all((np.asarray(sizes) > 0.0) & np.isfinite(sizes)):
        raise ValueError(f"sizes must be positive and finite, got {sizes}")

    def violations(layer_losses: Float[Array, "*batch layers_and_one"]) -> Float[Array, "*fewer constraints"]:
        plain = constraints(layer_losses)
        if jnp.shape(sizes) != plain.shape[-1:]:
            raise ValueError(f"sizes must have shape {plain.shape[-1:]}, one a constraint, got {jnp.shape(sizes)}")
        return plain / jnp.asarray(sizes, plain.dtype)

    return violations
