"""Fixed points of steps: solvers, adjoints, and the equilibrium they make differentiable."""

from unroll_jax.fixed_point.adjoints import (
    Adjoint,
    Unrolled,
    anderson_adjoint,
    bicgstab,
    conjugate_gradient,
    gmres,
    neumann,
    one_step,
    unrolled,
)
from unroll_jax.fixed_point.averaging import averaged
from unroll_jax.fixed_point.backward import Probe, zero_probe
from unroll_jax.fixed_point.failure import ON_FAILURE, ConvergenceError, ConvergenceWarning
from unroll_jax.fixed_point.implicit import EquilibriumInfo, equilibrium
from unroll_jax.fixed_point.jaxopt_loops import jaxopt_adjoint, jaxopt_anderson, jaxopt_fixed_point
from unroll_jax.fixed_point.problem import STATUS, Problem, SolveInfo
from unroll_jax.fixed_point.quasi_newton import anderson, broyden
from unroll_jax.fixed_point.solvers import Point, Solver, damped, picard
from unroll_jax.fixed_point.symmetric import accelerated_gradient, newton_cg
from unroll_jax.fixed_point.tables import ADJOINTS, SOLVERS

__all__ = [
    "ADJOINTS",
    "ON_FAILURE",
    "SOLVERS",
    "STATUS",
    "Adjoint",
    "ConvergenceError",
    "ConvergenceWarning",
    "EquilibriumInfo",
    "Point",
    "Probe",
    "Problem",
    "SolveInfo",
    "Solver",
    "Unrolled",
    "accelerated_gradient",
    "anderson",
    "anderson_adjoint",
    "averaged",
    "bicgstab",
    "broyden",
    "conjugate_gradient",
    "damped",
    "equilibrium",
    "gmres",
    "jaxopt_adjoint",
    "jaxopt_anderson",
    "jaxopt_fixed_point",
    "neumann",
    "newton_cg",
    "one_step",
    "picard",
    "unrolled",
    "zero_probe",
]
