"""The solvers and adjoints by name."""

from collections.abc import Callable

from unroll_jax.descent import look_up
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
from unroll_jax.fixed_point.jaxopt_loops import jaxopt_adjoint, jaxopt_anderson, jaxopt_fixed_point
from unroll_jax.fixed_point.quasi_newton import anderson, broyden
from unroll_jax.fixed_point.solvers import Solver, damped, picard
from unroll_jax.fixed_point.symmetric import accelerated_gradient, newton_cg

__all__ = ["ADJOINTS", "SOLVERS", "resolve_adjoint", "resolve_solver"]

SOLVERS: dict[str, Callable[..., Solver]] = {
    "picard": picard,
    "damped": damped,
    "anderson": anderson,
    "broyden": broyden,
    "averaged": averaged,
    "accelerated_gradient": accelerated_gradient,
    "newton_cg": newton_cg,
    "jaxopt_fixed_point": jaxopt_fixed_point,
    "jaxopt_anderson": jaxopt_anderson,
}

ADJOINTS: dict[str, Callable[..., Adjoint | Unrolled]] = {
    "conjugate_gradient": conjugate_gradient,
    "gmres": gmres,
    "bicgstab": bicgstab,
    "anderson": anderson_adjoint,
    "neumann": neumann,
    "one_step": one_step,
    "unrolled": unrolled,
    "jaxopt_normal_cg": lambda: jaxopt_adjoint("normal_cg"),
    "jaxopt_cg": lambda: jaxopt_adjoint("cg"),
    "jaxopt_gmres": lambda: jaxopt_adjoint("gmres"),
    "jaxopt_bicgstab": lambda: jaxopt_adjoint("bicgstab"),
}


def resolve_solver(solver: str | Solver) -> Solver:
    """The `Solver` that a name of `SOLVERS` or a `Solver` stands for.

    Raises:
      ValueError: if the name is not in `SOLVERS`.
      TypeError: if it is neither a name nor a `Solver`.
    """
    found = look_up("solver", solver, SOLVERS, Solver)
    return found if isinstance(found, Solver) else found()


def resolve_adjoint(adjoint: str | Adjoint | Unrolled) -> Adjoint | Unrolled:
    """The `Adjoint` or `Unrolled` that a name of `ADJOINTS` or either of them stands for.

    Raises:
      ValueError: if the name is not in `ADJOINTS`.
      TypeError: if it is none of these.
    """
    found = look_up("adjoint", adjoint, ADJOINTS, Adjoint, Unrolled)
    return found if isinstance(found, Adjoint | Unrolled) else found()
