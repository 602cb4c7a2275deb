"""The Lagrangian of constrained training, one weighted sum of layer losses."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.constrained.constraints import Constraints
from unroll_jax.constrained.losses import as_losses, as_multipliers, check_function

__all__ = ["augmented_lagrangian", "lagrangian", "layer_weights"]


@checked()
def lagrangian(
    layer_losses: Float[Array, "*samples layers_and_one"],
    multipliers: Float[Array, "constraints"],
    constraints: Constraints,
    *,
    normalise: bool = False,
) -> Float[Array, ""]:
    r"""The Lagrangian :math:`L = f_L + \sum_l \lambda_l c_l`.

    Its gradient takes one backward pass: for descent constraints it is the weighted sum of layer losses
    :math:`w_l = [l = L] + \lambda_l - (1 - \alpha_{l+1}) \lambda_{l+1}` (see `layer_weights`).

    Args:
      layer_losses: f_0..f_L, means over the global batch; or those of every sample, (N, L + 1), for constraints that
        need them (`sample_constraints`), and f_L above is their mean.
      multipliers: lambda >= 0, one for each constraint; no gradient flows to them.
      constraints: ``layer_losses -> violations``.
      normalise: divide by 1 + sum(lambda), which leaves the minimiser alone and keeps the size of the gradient bounded
        when multipliers grow.

    Returns:
      A scalar.

    Raises:
      ValueError: while tracing, if there is not one multiplier for each constraint; if a known one is negative.
      TypeError: if losses or multipliers are not real numbers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 5.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.25)
      >>> float(lagrangian(jnp.array([4.0, 2.0, 2.0]), jnp.array([0.0, 2.0]), constraints))
      3.0
    """
    objective, violations, fixed = _parts(layer_losses, multipliers, constraints)
    value = objective + jnp.sum(fixed * violations)
    return value / (1.0 + jnp.sum(fixed)) if normalise else value


@checked(penalty=POSITIVE)
def augmented_lagrangian(
    layer_losses: Float[Array, "*samples layers_and_one"],
    multipliers: Float[Array, "constraints"],
    constraints: Constraints,
    *,
    penalty: float,
) -> Float[Array, ""]:
    r"""The augmented Lagrangian :math:`L = f_L + \frac{1}{2\rho} \sum_l ([\lambda_l + \rho c_l]_+^2 - \lambda_l^2)`.

    Its gradient is that of `lagrangian` at the multipliers :math:`[\lambda + \rho c]_+`: a violation weighs at once,
    before the multiplier has grown, which damps the swings of the two. With ``dual_ascent(optax.sgd(rho))`` after the
    primal problem is solved it is the method of multipliers; with multipliers frozen at 0 it is the quadratic penalty.

    Args:
      layer_losses: as in `lagrangian`.
      multipliers: lambda >= 0, one for each constraint; no gradient flows to them.
      constraints: ``layer_losses -> violations``.
      penalty: rho > 0, multiplier per unit of violation.

    Returns:
      A scalar.

    Raises:
      ValueError: if penalty is not positive and finite; while tracing, if there is not one multiplier for each
        constraint.

    Source: Rockafellar (1973), "The multiplier method of Hestenes and Powell applied to convex programming".

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.25)
      >>> float(augmented_lagrangian(jnp.array([4.0, 2.0, 2.0]), jnp.array([0.0, 2.0]), constraints, penalty=2.0))
      3.25
    """
    objective, violations, fixed = _parts(layer_losses, multipliers, constraints)
    pulled = jax.nn.relu(fixed + penalty * violations)
    return objective + jnp.sum(pulled**2 - fixed**2) / (2.0 * penalty)


@checked()
def layer_weights(
    multipliers: Float[Array, "constraints"], constraints: Constraints, num_layers: int
) -> Float[Array, "layers_and_one"]:
    """The weight each layer loss has in the Lagrangian, (num_layers + 1,), for constraints affine in the losses.

    Args:
      multipliers: lambda, one for each constraint, at least 0.
      constraints: ``layer_losses -> violations``, such as `descent_constraints`.
      num_layers: L.

    Returns:
      The weights of f_0..f_L; a negative one rewards a layer for its loss, see ``proxy`` of `descent_constraints`.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 5, differentiated in the losses.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.25)
      >>> layer_weights(jnp.array([0.0, 2.0]), constraints, num_layers=2).tolist()
      [0.0, -1.5, 3.0]
    """
    origin = jnp.zeros(num_layers + 1, jnp.result_type(multipliers))
    return jax.grad(lagrangian)(origin, multipliers, constraints)


def _parts(
    layer_losses: Float[Array, "*samples layers_and_one"],
    multipliers: Float[Array, "constraints"],
    constraints: Constraints,
) -> tuple[Float[Array, ""], Float[Array, "constraints"], Float[Array, "constraints"]]:
    """Objective, violations and detached multipliers, one multiplier a violation."""
    check_function("constraints", constraints, "descent_constraints(0.2)")
    losses = as_losses("layer_losses", layer_losses)
    violations = constraints(losses)
    return jnp.mean(losses[..., -1]), violations, jax.lax.stop_gradient(as_multipliers(multipliers, violations.shape))
