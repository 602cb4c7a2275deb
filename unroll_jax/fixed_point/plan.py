"""The step and the methods of one call of `equilibrium`, prepared once from the layer and the options."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array

from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.adjoints import resolve_adjoint
from unroll_jax.fixed_point.backward import Function
from unroll_jax.fixed_point.checks import check_start
from unroll_jax.fixed_point.factored import factored_form
from unroll_jax.fixed_point.opened import check_result
from unroll_jax.fixed_point.problem import Adjoint, Solver, Unrolled
from unroll_jax.fixed_point.solvers import resolve_solver
from unroll_jax.steps import check_state, settle

__all__ = ["Plan", "begin_step", "check_layer", "choose", "close_step"]

# Solver and adjoint, by name.
GENERAL = ("picard_anderson", "neumann_gcr")
SYMMETRIC = ("accelerated_gradient", "conjugate_gradient")
UNROLLED = "picard"

CONTRACTING = ", or keep |W| < 1 (certificates.spectral_normalise)"  # advice for layers with such weights


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


def begin_step(descent: Any, params: Params, y0: Any, x: Any) -> tuple[Callable[..., Any], Any]:
    """The step, and the initial state where the step leaves it."""
    step = descent.step if isinstance(descent, Descent) else descent
    if not callable(step):
        raise TypeError(f"descent must be a Descent or a step (params, y, x) -> y', got {descent!r}")
    check_state("y0", y0)
    y0 = jax.tree.map(lambda leaf: jax.lax.stop_gradient(jnp.asarray(leaf)), y0)
    check_start(y0)
    return step, settle(lambda y: step(params, y, x), y0)


def check_layer(descent: Any, params: Params, y: Any) -> str:
    """Runs the layer's parameter check; returns a hint for the failure message."""
    if not isinstance(descent, Descent):
        return ""
    if descent.check is not None:
        descent.check(params, y)
    return CONTRACTING if descent.check is not None or descent.factored is not None else ""


def close_step(step: Callable[..., Any], params: Params, y: Any, x: Any) -> tuple[Function, Any]:
    """The step with everything it closes over as operands, so that no tracer of the caller outlives its trace."""
    closed, after = jax.make_jaxpr(step, return_shape=True)(params, y, x)
    check_result(params, y, after)
    structure = jax.tree.structure(after)

    def function(operands: Any, y: Any) -> Any:
        params, x, consts = operands
        leaves = jax.tree.leaves((params, y, x))
        return jax.tree.unflatten(structure, jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*leaves))

    return function, (params, x, closed.consts)
