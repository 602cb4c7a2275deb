"""What constraints and their figures are called in logs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from unroll_jax.arguments import typed

__all__ = ["constraint_names", "named_figures"]


@typed
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
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
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
    found = {figure: values for figure, values in figures.items() if values is not None}
    for figure, values in found.items():
        if values.shape != (len(names),):
            raise ValueError(f"{figure} must have shape ({len(names)},), one a name, got {values.shape}")
    return {f"{figure}/{name}": values[i] for figure, values in found.items() for i, name in enumerate(names)}
