"""The numbers that constraints are made of: real, floating, and multipliers at least 0."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

__all__ = ["as_losses", "as_multipliers", "as_numbers", "check_function"]


def as_losses(name: str, value: Any) -> Float[Array, "..."]:
    """``value`` as a floating array; integers become float32, which holds them exactly up to 2^24.

    Raises:
      TypeError: if it does not hold real numbers.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}") from error
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    return array


def as_numbers(name: str, value: Any) -> np.ndarray:
    """``value``, a number or several that are known, in float64.

    Raises:
      TypeError: if it is traced, or holds anything else.
    """
    if isinstance(value, Tracer):
        raise TypeError(f"{name} must be known beforehand, got a traced value; pass a Python number")
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "iuf" and value is not None:
            raise TypeError(given.dtype)
        return given.astype(float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, or several, got {value!r}") from error


def check_function(name: str, value: Any, example: str) -> None:
    """Checks that ``value`` can be called; ``example`` names one that can.

    Raises:
      TypeError: if it cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function such as {example}, got {value!r}")


def as_multipliers(value: Any, shape: tuple[int, ...]) -> Float[Array, "constraints"]:
    """``value`` as multipliers of violations of a shape.

    Raises:
      TypeError: if they are not real numbers.
      ValueError: if there is not one for each violation, or a value that is known is negative or not a number.
    """
    multipliers = as_losses("multipliers", value)
    if multipliers.shape != shape:
        raise ValueError(f"multipliers must have shape {shape}, one a constraint, got {multipliers.shape}")
    known = not isinstance(multipliers, Tracer) and multipliers.is_fully_addressable
    if known and not np.all(np.asarray(multipliers) >= 0.0):
        raise ValueError(f"multipliers must be at least 0, got {multipliers}")
    return multipliers
