"""Flax modules: they own parameters and call the pure functions of the floors below."""

from unroll_jax.models.initializers import dct, scaled_identity
from unroll_jax.models.unrolled_transformer import UnrolledTransformer

__all__ = ["UnrolledTransformer", "dct", "scaled_identity"]
