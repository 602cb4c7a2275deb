"""Sizes and draws of the examples of all systems, which are in their systems' files."""

import jax
from jaxtyping import Array

from unroll_jax.descent import Descent

__all__ = ["DIM", "TOKENS", "Example", "normal"]

# Small, for a quick conformance test.
TOKENS = 5
DIM = 4

Example = tuple[Descent, Array, Array | None]


def normal(key: jax.Array, count: int, batch: tuple[int, ...]) -> Array:
    """``count`` draws of standard normal tokens."""
    return jax.random.normal(key, (count, *batch, TOKENS, DIM))
