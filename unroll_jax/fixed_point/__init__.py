"""Fixed points of steps: solvers, adjoints, and differentiable equilibria.

Example:
  >>> import jax.numpy as jnp
  >>> step, start = lambda w, z, x: w * z + 1.0, jnp.zeros(3)
  >>> z, info = equilibrium(step, 0.5, start, solver="anderson", adjoint="gmres")
  >>> [round(value, 3) for value in z.tolist()], STATUS[int(info.status)]
  ([2.0, 2.0, 2.0], 'converged')
  >>> "anderson" in SOLVERS, "gmres" in ADJOINTS, ON_FAILURE
  (True, True, ('error', 'warn', 'accept'))
"""

from unroll_jax.fixed_point.adjoints import (
    ADJOINTS,
    Adjoint,
    conjugate_gradient,
    gmres,
    neumann,
    one_step,
    unrolled,
)
from unroll_jax.fixed_point.derivatives import Probe, zero_probe
from unroll_jax.fixed_point.equilibrium import equilibrium
from unroll_jax.fixed_point.monotone import (
    MonotoneParams,
    monotone_equilibrium,
    monotone_init,
    monotone_weight,
)
from unroll_jax.fixed_point.optimality import implicit_argmin, implicit_root
from unroll_jax.fixed_point.reports import (
    ON_FAILURE,
    ConvergenceError,
    ConvergenceWarning,
)
from unroll_jax.fixed_point.solver import Point, Solver
from unroll_jax.fixed_point.solvers import (
    SOLVERS,
    accelerated_gradient,
    anderson,
    averaged,
    damped,
    jaxopt_solver,
    picard,
)
from unroll_jax.fixed_point.status import STATUS, EquilibriumInfo

__all__ = [
    "ADJOINTS",
    "ON_FAILURE",
    "SOLVERS",
    "STATUS",
    "Adjoint",
    "ConvergenceError",
    "ConvergenceWarning",
    "EquilibriumInfo",
    "MonotoneParams",
    "Point",
    "Probe",
    "Solver",
    "accelerated_gradient",
    "anderson",
    "averaged",
    "conjugate_gradient",
    "damped",
    "equilibrium",
    "gmres",
    "implicit_argmin",
    "implicit_root",
    "jaxopt_solver",
    "monotone_equilibrium",
    "monotone_init",
    "monotone_weight",
    "neumann",
    "one_step",
    "picard",
    "unrolled",
    "zero_probe",
]
