"""When a step is guaranteed to descend, and by which numbers."""

from unroll_jax.certificates.regions import (
    Ball,
    apollonian_ball,
    descent_constant,
    gradient_ratio,
    in_descent_region,
    in_proximal_region,
    orthant_alignment,
    proximal_constant,
)

__all__ = [
    "Ball",
    "apollonian_ball",
    "descent_constant",
    "gradient_ratio",
    "in_descent_region",
    "in_proximal_region",
    "orthant_alignment",
    "proximal_constant",
]
