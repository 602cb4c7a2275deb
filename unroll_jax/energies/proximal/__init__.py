"""Nonlinearities as proximal operators of convex penalties; `PROXIMALS` names them."""

from unroll_jax.energies.proximal.activations import activation, elu, leaky_relu, sigmoid, softplus, softsign, tanh
from unroll_jax.energies.proximal.operators import (
    PROXIMALS,
    box,
    group_shrinkage,
    identity,
    nonnegative_soft_threshold,
    relu,
    soft_threshold,
)
from unroll_jax.energies.proximal.penalty import Proximal, moreau_envelope

__all__ = [
    "PROXIMALS",
    "Proximal",
    "activation",
    "box",
    "elu",
    "group_shrinkage",
    "identity",
    "leaky_relu",
    "moreau_envelope",
    "nonnegative_soft_threshold",
    "relu",
    "sigmoid",
    "soft_threshold",
    "softplus",
    "softsign",
    "tanh",
]
