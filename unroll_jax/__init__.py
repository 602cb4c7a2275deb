"""Layers that are descent steps on an energy."""

from unroll_jax import constrained, energies, fixed_point
from unroll_jax.constrained import (
    DualAscent,
    DualState,
    FeasibilityReport,
    descent_constraints,
    dual_ascent,
    feasibility_report,
    lagrangian,
    layer_weights,
)
from unroll_jax.descent import Anchor, Descent, Entry
from unroll_jax.energies import (
    DESCENTS,
    PROXIMALS,
    RHOS,
    OptEqParams,
    Proximal,
    Rho,
    attention,
    deep_opteq,
    feedforward,
    opteq,
    opteq_conv,
    transformer,
)
from unroll_jax.fixed_point import ADJOINTS, SOLVERS, EquilibriumInfo, anderson, equilibrium
from unroll_jax.unrolling import Trace, unroll

__version__ = "0.1.0"

__all__ = [
    "ADJOINTS",
    "DESCENTS",
    "PROXIMALS",
    "RHOS",
    "SOLVERS",
    "Anchor",
    "Descent",
    "DualAscent",
    "DualState",
    "Entry",
    "EquilibriumInfo",
    "FeasibilityReport",
    "OptEqParams",
    "Proximal",
    "Rho",
    "Trace",
    "anderson",
    "attention",
    "constrained",
    "deep_opteq",
    "descent_constraints",
    "dual_ascent",
    "energies",
    "equilibrium",
    "feasibility_report",
    "feedforward",
    "fixed_point",
    "lagrangian",
    "layer_weights",
    "opteq",
    "opteq_conv",
    "transformer",
    "unroll",
]
