"""Training under constraints: violations, Lagrangian, multipliers, resilience and the report on held-out data."""

from unroll_jax.constrained.constraints import Constraints, descent_constraints
from unroll_jax.constrained.controllers import proportional_integral
from unroll_jax.constrained.duals import DualAscent, DualState, dual_ascent
from unroll_jax.constrained.feasibility import FeasibilityReport, feasibility_report
from unroll_jax.constrained.lagrangian import lagrangian, layer_weights
from unroll_jax.constrained.resilience import optimal_slacks, relaxed_violations

__all__ = [
    "Constraints",
    "DualAscent",
    "DualState",
    "FeasibilityReport",
    "descent_constraints",
    "dual_ascent",
    "feasibility_report",
    "lagrangian",
    "layer_weights",
    "optimal_slacks",
    "proportional_integral",
    "relaxed_violations",
]
