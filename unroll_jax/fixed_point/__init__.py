"""Fixed points of steps: solvers, adjoints, and the equilibrium they make differentiable.

Example:
  >>> import jax.numpy as jnp
  >>> step, options = lambda w, z, x: w * z + x, {"solver": "anderson", "adjoint": "gmres"}
  >>> z, info = equilibrium(step, 0.5, jnp.zeros(3), jnp.ones(3), **options)
  >>> [round(value, 3) for value in z.tolist()], STATUS[int(info.status)]
  ([2.0, 2.0, 2.0], 'converged')
  >>> "anderson" in SOLVERS, "gmres" in ADJOINTS, ON_FAILURE, sorted(SPLITTINGS)
  (True, True, ('error', 'warn', 'accept'), ['forward_backward', 'peaceman_rachford'])
"""

from unroll_jax.fixed_point.adjoints import (
    ADJOINTS,
    conjugate_gradient,
    gmres,
    neumann,
    neumann_gcr,
    one_step,
)
from unroll_jax.fixed_point.backward import Probe, zero_probe
from unroll_jax.fixed_point.checks import ON_FAILURE, ConvergenceError, ConvergenceWarning
from unroll_jax.fixed_point.differentiated_steps import phantom, reversible, unrolled
from unroll_jax.fixed_point.implicit import EquilibriumInfo, equilibrium
from unroll_jax.fixed_point.jaxopt_loops import jaxopt_solver
from unroll_jax.fixed_point.monotone_operator import (
    MonotoneParams,
    monotone_init,
    monotone_product,
    monotone_resolvent,
    monotone_weight,
)
from unroll_jax.fixed_point.optimality import implicit_argmin, implicit_root
from unroll_jax.fixed_point.problem import STATUS, Adjoint, Point, Problem, SolveInfo, Solver, Unrolled
from unroll_jax.fixed_point.quasi_newton import anderson
from unroll_jax.fixed_point.solvers import (
    SOLVERS,
    accelerated_gradient,
    averaged,
    damped,
    picard,
    picard_anderson,
)
from unroll_jax.fixed_point.splitting import SPLITTINGS, forward_backward, monotone_equilibrium, peaceman_rachford

__all__ = [
    "ADJOINTS",
    "ON_FAILURE",
    "SOLVERS",
    "SPLITTINGS",
    "STATUS",
    "Adjoint",
    "ConvergenceError",
    "ConvergenceWarning",
    "EquilibriumInfo",
    "MonotoneParams",
    "Point",
    "Probe",
    "Problem",
    "SolveInfo",
    "Solver",
    "Unrolled",
    "accelerated_gradient",
    "anderson",
    "averaged",
    "conjugate_gradient",
    "damped",
    "equilibrium",
    "forward_backward",
    "gmres",
    "implicit_argmin",
    "implicit_root",
    "jaxopt_solver",
    "monotone_equilibrium",
    "monotone_init",
    "monotone_product",
    "monotone_resolvent",
    "monotone_weight",
    "neumann",
    "neumann_gcr",
    "one_step",
    "peaceman_rachford",
    "phantom",
    "picard",
    "picard_anderson",
    "reversible",
    "unrolled",
    "zero_probe",
]
