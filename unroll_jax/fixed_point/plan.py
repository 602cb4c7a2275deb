"""The methods of one call of `equilibrium`, chosen once from the layer and the options."""

from typing import Any, NamedTuple

from jaxtyping import Array

from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.adjoints import resolve_adjoint
from unroll_jax.fixed_point.factored import factored_form
from unroll_jax.fixed_point.problem import Adjoint, Solver, Unrolled
from unroll_jax.fixed_point.solvers import resolve_solver

__all__ = ["Plan", "choose"]

# Solver and adjoint, by name.
GENERAL = ("picard_anderson", "bicgstab_gmres")
SYMMETRIC = ("accelerated_gradient", "conjugate_gradient")
UNROLLED = "picard"


class Plan(NamedTuple):
    """The methods of one call of `equilibrium`.

    Attributes:
      solver: the forward iteration; None is Newton's method in the space of the factored layer.
      adjoint: the linear solver of the backward pass, or `Unrolled`.
      factored: the layer on flat states, if it is factored and one direction uses that.
      structured: whether the backward pass is solved in the space of the factored layer.
    """

    solver: Solver | None
    adjoint: Adjoint | Unrolled
    factored: Factored | None
    structured: bool


def choose(
    descent: Any,
    solver: str | Solver | None,
    adjoint: str | Adjoint | Unrolled | None,
    params: Params,
    y: Any,
    x: Any,
    start: Array,
) -> Plan:
    """Returns the solver and adjoint given, or the defaults of the layer, see `equilibrium`.

    Args:
      descent: a `Descent` or a step.
      solver: as given to `equilibrium`.
      adjoint: as given to `equilibrium`.
      params: of the layer.
      y: the state.
      x: the input.
      start: the state as a matrix, a row an example.
    """
    factored = factored_form(descent, params, y, x, start) if solver is None or adjoint is None else None
    defaults = SYMMETRIC if isinstance(descent, Descent) and descent.symmetric else GENERAL
    backward = resolve_adjoint(adjoint or defaults[1])
    if isinstance(backward, Unrolled):
        return Plan(resolve_solver(solver or UNROLLED), backward, factored, structured=False)
    newton = solver is None and factored is not None
    forward = None if newton else resolve_solver(solver or defaults[0])
    return Plan(forward, backward, factored, structured=adjoint is None and factored is not None)
