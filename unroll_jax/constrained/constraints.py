"""Descent constraints: every layer must lower the loss by a given factor."""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.constrained.numbers import as_losses, as_numbers

__all__ = ["Constraints", "descent_constraints"]

Constraints = Callable[[Float[Array, "*batch layers_and_one"]], Float[Array, "*batch constraints"]]


@typed
def descent_constraints(alpha: float | Sequence[float] | np.ndarray, *, reference: float | None = None) -> Constraints:
    r"""Violations of the layerwise descent constraints.

    .. math:: c_l = f_l - (1 - \alpha_l) f_{l-1} \le 0 , \; l = 1..L ; \qquad c_0 = f_0 - f_{ref} \le 0 .

    :math:`f_{l-1}` keeps its gradient. The bound of each constraint is ``layer_losses - violations``.

    Args:
      alpha: the share of the loss every layer must remove, in (0, 1): one number, or one for each layer 1..L; numbers,
        not traced values.
      reference: f_ref > 0, bound on the loss at the embedded input; None leaves c_0 out.

    Returns:
      ``violations(layer_losses)``: layer losses f_0..f_L on the last axis, (..., L + 1), give (..., L), or (..., L + 1)
      with c_0 first when there is a reference. Positive entries are violated.

    Raises:
      ValueError: if alpha or reference is outside what is stated here; while tracing, if layer_losses has fewer than
        two entries or their number does not fit the schedule.
      TypeError: if alpha is traced; while tracing, if layer_losses does not hold real numbers.

    Source: Porras-Valenzuela, Hadou, Ribeiro, problem (4) and Section 4. The fraction printed in its Tables 1, 2
    and 5 is 1 - alpha.

    Example:
      >>> import jax.numpy as jnp
      >>> descent_constraints(0.25, reference=4.0)(jnp.array([4.0, 2.0, 2.0])).tolist()
      [0.0, -1.0, 0.5]
    """
    schedule = as_numbers("alpha", alpha)
    if schedule.ndim > 1 or schedule.size == 0 or not np.all((schedule > 0.0) & (schedule < 1.0)):
        raise ValueError(f"alpha must be in (0, 1), one number or one for each layer, got {alpha}")
    if reference is not None and not (reference > 0.0 and math.isfinite(reference)):
        raise ValueError(f"reference must be positive and finite, or None, got {reference}")

    def violations(layer_losses: Float[Array, "*batch layers_and_one"]) -> Float[Array, "*batch constraints"]:
        losses = as_losses("layer_losses", layer_losses)
        if losses.ndim == 0 or losses.shape[-1] < 2:
            raise ValueError(f"layer_losses must hold f_0..f_L with L >= 1, got shape {losses.shape}")
        if schedule.ndim == 1 and schedule.size != losses.shape[-1] - 1:
            raise ValueError(f"alpha has {schedule.size} entries, but layer_losses has L={losses.shape[-1] - 1} layers")
        descent = losses[..., 1:] - (1.0 - schedule).astype(losses.dtype) * losses[..., :-1]
        if reference is None:
            return descent
        return jnp.concatenate([losses[..., :1] - float(reference), descent], axis=-1)

    return violations
