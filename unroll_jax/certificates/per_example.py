"""Gradients of energies of states that hold many examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["Energy", "batch_rank", "gradient"]

# of the state only, one number per example
Energy = Callable[[Any], Float[Array, "*batch"]]


def batch_rank(f: Energy, y: Any) -> int:
    """Returns the number of batch axes of ``y``, which lead: the rank of ``f(y)``."""
    return jax.eval_shape(f, y).ndim


def gradient(f: Energy, y: Any) -> Any:
    """The gradient of each example's own energy, shaped as ``y``."""
    return jax.grad(lambda state: jnp.sum(f(state)))(y)
