"""Certificates of steps that descend, of equilibria and of predictions, with their
constants.

Example:
  >>> import jax.numpy as jnp
  >>> C = descent_constant(0.25, 0.5, 2.0)  # with delta(y) up to C the step descends
  >>> float(C), Outcome.GUARANTEED.value
  (1.0, 0)
"""

from unroll_jax.certificates.attacks import attack
from unroll_jax.certificates.certify import Certificate, Outcome, certify
from unroll_jax.certificates.contraction import (
    contraction_bound,
    equilibrium_lipschitz,
    error_bound,
    picard_steps,
)
from unroll_jax.certificates.curvature import Curvature, curvature
from unroll_jax.certificates.isometries import (
    orthonormal,
    pad_channels,
    pool,
    space_to_depth,
    unit_columns,
)
from unroll_jax.certificates.jacobians import jacobian_penalty, jacobian_radius
from unroll_jax.certificates.lipschitz_bound import LipschitzBound, lipschitz
from unroll_jax.certificates.margins import certified_radius, margin_loss
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
from unroll_jax.certificates.weights import (
    spectral_normalise,
    weight_norm,
    weight_norm_bound,
)
from unroll_jax.norm_bounds import conv_norm_bound, matrix_norm_bound
from unroll_jax.spectral import spectral_norm

__all__ = [
    "Ball",
    "Certificate",
    "Curvature",
    "LipschitzBound",
    "Outcome",
    "apollonian_ball",
    "attack",
    "certified_radius",
    "certify",
    "contraction_bound",
    "conv_norm_bound",
    "curvature",
    "descent_constant",
    "equilibrium_lipschitz",
    "error_bound",
    "gradient_ratio",
    "in_descent_region",
    "in_proximal_region",
    "jacobian_penalty",
    "jacobian_radius",
    "lipschitz",
    "margin_loss",
    "matrix_norm_bound",
    "orthant_alignment",
    "orthonormal",
    "pad_channels",
    "pairwise_smoothness",
    "picard_steps",
    "pool",
    "proximal_constant",
    "quadratic_smoothness",
    "space_to_depth",
    "spectral_norm",
    "spectral_normalise",
    "unit_columns",
    "weight_norm",
    "weight_norm_bound",
]
