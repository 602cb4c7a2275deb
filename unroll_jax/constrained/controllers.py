"""A controller for the multipliers beyond plain ascent."""

import math

import jax
import jax.numpy as jnp
import optax

__all__ = ["proportional_integral"]


def proportional_integral(integral_gain: float, proportional_gain: float) -> optax.GradientTransformation:
    r"""PI control of multipliers, for `dual_ascent`.

    .. math:: I \leftarrow [I + k_i c]_+ , \qquad \lambda = [I + k_p c]_+ .

    The integral is projected ascent; the proportional part answers a violation at once and is gone when the violation
    is, which damps the swings of the integral: a violated constraint does not wind its multiplier up for long after it
    is met. Without it (``proportional_gain=0``) this is ``optax.sgd(integral_gain)``.
    The multiplier includes the proportional part: it is the price of the moment, the integral is the lasting one.

    Args:
      integral_gain: k_i > 0, multiplier a step per unit of violation.
      proportional_gain: k_p >= 0, multiplier per unit of violation.

    Returns:
      An optax gradient transformation over multipliers, fed -c as `dual_ascent` does. Its update needs the multipliers
      (``params``).

    Raises:
      ValueError: if a gain is outside what is stated here.

    Source: Stooke, Achiam, Abbeel (2020), "Responsive safety in reinforcement learning by PID Lagrangian methods",
    Algorithm 2 without the derivative; Sohrabi et al. (2024), "On PI controllers for updating Lagrange multipliers".
    """
    if not (integral_gain > 0.0 and math.isfinite(integral_gain)):
        raise ValueError(f"integral_gain must be positive and finite, got {integral_gain}")
    if not (proportional_gain >= 0.0 and math.isfinite(proportional_gain)):
        raise ValueError(f"proportional_gain must be finite and at least 0, got {proportional_gain}")

    def init(multipliers: optax.Params) -> optax.Params:
        return jax.tree.map(jnp.copy, multipliers)

    def update(
        gradients: optax.Updates, integral: optax.Params, multipliers: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.Params]:
        if multipliers is None:
            raise ValueError("proportional_integral needs the multipliers: call update(gradients, state, multipliers)")
        grown = jax.tree.map(lambda i, g: jnp.maximum(i - integral_gain * g, 0.0), integral, gradients)
        target = jax.tree.map(lambda i, g: jnp.maximum(i - proportional_gain * g, 0.0), grown, gradients)
        return jax.tree.map(jnp.subtract, target, multipliers), grown

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]
