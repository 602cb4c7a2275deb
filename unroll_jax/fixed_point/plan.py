"""The step and the methods of one call of `equilibrium`, prepared once from the layer and the options."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array

from unroll_jax.descent import Descent, Factored, Params
from unroll_jax.fixed_point.adjoints import resolve_adjoint
from unroll_jax.fixed_point.backward import Function
from unroll_jax.fixed_point.checks import check_start, flag_asymmetric, resolve_batch_ndim
from unroll_jax.fixed_point.factored import factored_adjoint, factored_form, factored_forward, factored_residuals
from unroll_jax.fixed_point.flat_states import epsilon_of, filled, flatten
from unroll_jax.fixed_point.iteration import run
from unroll_jax.fixed_point.opened import check_result
from unroll_jax.fixed_point.problem import Adjoint, Limits, Problem, Solution, SolveInfo, Solver, Unrolled
from unroll_jax.fixed_point.solvers import damped, resolve_solver
from unroll_jax.steps import check_state, settle

__all__ = ["Plan", "System", "begin", "begin_step", "check_layer", "choose", "close_step", "probed"]

# Solver and adjoint, by name.
GENERAL = ("picard_anderson", "neumann_gcr")
SYMMETRIC = ("accelerated_gradient", "conjugate_gradient")
UNROLLED = "picard"

CONTRACTING = ", or keep |W| < 1 (certificates.spectral_normalise)"  # advice for layers with such weights


class System(NamedTuple):
    """The step of one call of `equilibrium` as a map of rows.

    Attributes:
      rows: ``(operands, z (b, m)) -> f(z)``.
      operands: params, x and what the step closes over.
      y0: the initial state.
      start: the same as a matrix, a row an example.
      restore: takes such a matrix back to a state.
      batch: shape of the batch; sizes may be symbols of `jax.export`.
      epsilon: relative spacing of the coarsest dtype of the state.
      hint: further advice where a solve fails.
    """

    rows: Function
    operands: Any
    y0: Any
    start: Array
    restore: Callable[[Array], Any]
    batch: tuple[Any, ...]
    epsilon: float
    hint: str


class Plan(NamedTuple):
    """The methods of one call of `equilibrium`.

    Attributes:
      start: the initial state, sharded as the input is where the layer is factored.
      solve: ``(problem, start, limits) -> Solution``.
      unroll: the solver whose steps are differentiated, if the adjoint is `Unrolled`.
      adjoint: the linear solver of the backward pass, or `Unrolled`.
      structured: the backward solve in the space of a factored layer, see `Backward`.
    """

    start: Array
    solve: Callable[..., Solution]
    unroll: Solver | None
    adjoint: Adjoint | Unrolled
    structured: Callable[..., Any] | None


def choose(
    system: System,
    descent: Any,
    solver: str | Solver | None,
    adjoint: str | Adjoint | Unrolled | None,
    params: Params,
    x: Any,
) -> Plan:
    """Returns the solver and adjoint given, or the defaults of the layer, see `equilibrium`."""
    defaults = SYMMETRIC if isinstance(descent, Descent) and descent.symmetric else GENERAL
    backward = resolve_adjoint(adjoint or defaults[1])
    unroll = _unrolled_solver(backward, solver) if isinstance(backward, Unrolled) else None
    either = solver is None or adjoint is None
    factored = factored_form(descent, params, system.y0, x, system.start) if either else None
    if factored is None:
        forward = resolve_solver(solver or defaults[0])
        return Plan(system.start, functools.partial(iterated, forward), unroll, backward, None)
    start = system.start + filled(factored.offset, 0.0)[:, None]
    structured = functools.partial(factored_adjoint, factored) if adjoint is None else None
    if solver is None:
        return Plan(start, functools.partial(factored_forward, factored), unroll, backward, structured)
    forward = functools.partial(iterated, resolve_solver(solver), layer=factored)
    return Plan(start, forward, unroll, backward, structured)


def _unrolled_solver(adjoint: Unrolled, solver: str | Solver | None) -> Solver:
    """The solver whose steps are differentiated."""
    if adjoint.kind == "reversible" and solver not in (None, UNROLLED):
        raise ValueError(f"solver must be None with a reversible adjoint, which is an iteration, got {solver!r}")
    return resolve_solver(solver or UNROLLED) if adjoint.kind == "solver" else damped(adjoint.share)


def iterated(
    solver: Solver, problem: Problem, start: Array, limits: Limits, *, layer: Factored | None = None
) -> Solution:
    """The solution by a solver; with the residuals of the backward pass of ``layer``, if it is factored."""
    z, info = run(problem, start, solver, tol=limits.tol, max_steps=limits.max_steps, atol=limits.atol)
    residuals = factored_residuals(layer, start) if layer is not None else None
    return Solution(z, probed(solver, problem, z, info), residuals, None)


def probed(solver: Solver, problem: Problem, z: Array, info: SolveInfo) -> SolveInfo:
    """``info`` with its own status where a solver that needs a symmetric Jacobian met another."""
    z = jax.lax.stop_gradient(z)
    return flag_asymmetric(info, problem.pull(z), z, problem.epsilon) if solver.symmetric else info


def begin(descent: Any, params: Params, y0: Any, x: Any, batch_ndim: int | None) -> System:
    """The step as a map of rows, with its arguments checked."""
    step, y0 = begin_step(descent, params, y0, x)
    function, operands = close_step(step, params, y0, x)
    hint = check_layer(descent, params, y0)
    ndim = resolve_batch_ndim(descent, params, y0, x, batch_ndim)
    start, restore = flatten(y0, ndim)

    def rows(operands: Any, z: Array) -> Array:
        return flatten(function(operands, restore(z)), ndim)[0]

    batch = jax.tree.leaves(y0)[0].shape[:ndim]
    return System(rows, operands, y0, start, restore, batch, epsilon_of(y0), hint)


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
