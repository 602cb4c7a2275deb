"""Sizes and draws that the examples of all systems share; each example is in the
file of its system."""

import jax
from jaxtyping import Array

from unroll_jax.descent import Descent

__all__ = ["DIM", "TOKENS", "Example", "normal"]

TOKENS, DIM = 5, 4  # small, for a quick conformance test

Example = tuple[Descent, Array, Array | None]


def normal(key: jax.Array, count: int, batch: tuple[int, ...]) -> Array:
    """``count`` draws of standard normal tokens."""
    return jax.random.normal(key, (count, *batch, TOKENS, DIM))
