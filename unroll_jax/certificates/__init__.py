"""When a step is guaranteed to descend, and by which numbers."""

from unroll_jax.certificates.certify import Certificate, Outcome, certify
from unroll_jax.certificates.curvature import Curvature, curvature, hessian_product, spectral_norm, spectral_radius
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
from unroll_jax.certificates.smoothness import pairwise_smoothness, quadratic_smoothness

__all__ = [
    "Ball",
    "Certificate",
    "Curvature",
    "Outcome",
    "apollonian_ball",
    "certify",
    "curvature",
    "descent_constant",
    "gradient_ratio",
    "hessian_product",
    "in_descent_region",
    "in_proximal_region",
    "orthant_alignment",
    "pairwise_smoothness",
    "proximal_constant",
    "quadratic_smoothness",
    "spectral_norm",
    "spectral_radius",
]
