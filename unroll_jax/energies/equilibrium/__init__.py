"""Layers with tied weights, whose fixed points minimise a convex function: OptEq, deep OptEq and the unit layer."""

from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq, deep_opteq_example, multi_block
from unroll_jax.energies.equilibrium.monotone import MONOTONES, Monotone
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv, opteq_conv_example, opteq_example, opteq_potential
from unroll_jax.energies.equilibrium.opteq_objective import deep_opteq_objective, opteq_objective
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.energies.equilibrium.regularisers import (
    REGULARISERS,
    Regulariser,
    absolute,
    decorrelation,
    half_square,
    inverse_square,
    regularised,
)
from unroll_jax.energies.equilibrium.unit_layer import UnitLayerParams, unit_layer, unit_layer_example

__all__ = [
    "MONOTONES",
    "REGULARISERS",
    "Monotone",
    "OptEqParams",
    "Regulariser",
    "UnitLayerParams",
    "absolute",
    "decorrelation",
    "deep_opteq",
    "deep_opteq_example",
    "deep_opteq_objective",
    "half_square",
    "inverse_square",
    "multi_block",
    "opteq",
    "opteq_conv",
    "opteq_conv_example",
    "opteq_example",
    "opteq_objective",
    "opteq_potential",
    "regularised",
    "unit_layer",
    "unit_layer_example",
]
