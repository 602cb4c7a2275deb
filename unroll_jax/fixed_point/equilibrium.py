"""Equilibria of a step, differentiated implicitly."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, checked, in_interval, one_of
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.adjoints import (
    Adjoint,
    flag_asymmetric,
    resolve_adjoint,
    unroll_solver,
)
from unroll_jax.fixed_point.compiled import call_compiled
from unroll_jax.fixed_point.dependence import check_examples
from unroll_jax.fixed_point.derivatives import (
    Backward,
    Probe,
    check_probe,
    with_gradient,
)
from unroll_jax.fixed_point.factored import (
    FactoredSolver,
    factored_adjoint,
    factored_form,
)
from unroll_jax.fixed_point.loop import iterate
from unroll_jax.fixed_point.program import Problem, Program, prepare
from unroll_jax.fixed_point.reports import (
    ON_FAILURE,
    Reporting,
    call_site,
    report_failures,
    report_rows,
)
from unroll_jax.fixed_point.solver import Solver
from unroll_jax.fixed_point.solvers import resolve_solver
from unroll_jax.fixed_point.status import EquilibriumInfo
from unroll_jax.fixed_point.stopping import StopRule, row_info
from unroll_jax.numerics import full_precision

__all__ = ["equilibrium"]

# Default solver and adjoint, by name, and the solver of unrolled steps.
GENERAL = ("anderson", "gmres")
SYMMETRIC = ("accelerated_gradient", "conjugate_gradient")
UNROLLED = "picard"
# Products with J^T are cheap next to Newton steps, for which a cap of a few is enough.
MIN_ADJOINT_STEPS = 200


@checked(
    tol=in_interval("(0, 1)"),
    atol=at_least(0.0),
    max_steps=at_least(1),
    on_failure=one_of(ON_FAILURE),
    adjoint_tol=in_interval("(0, 1)"),
    adjoint_max_steps=at_least(1),
)
@full_precision()
def equilibrium(
    descent: Descent | Callable[[Params, Any, Any], Any],
    params: Params,
    y0: Any,
    x: Any = None,
    *,
    solver: str | Solver | None = None,
    adjoint: str | Adjoint | None = None,
    tol: float = 1e-5,
    max_steps: int = 200,
    on_failure: str = "warn",
    adjoint_tol: float | None = None,
    adjoint_max_steps: int | None = None,
    batch_ndim: int | None = None,
    probe: Probe | None = None,
    forward_mode: bool = False,
    atol: float | None = None,
    has_aux: bool = False,
    check: bool = False,
) -> tuple[Any, ...]:
    r"""The fixed point z = f(z) of a step, with its implicit gradient.

    Each example is solved until it converges, separately and without a gradient. The
    result is y = f(z) of its last state, or of its best one where it fails. The
    cotangent v of y is replaced by

    .. math:: w = (I - J^T)^{-1} v , \qquad J = \partial f / \partial z ,

    solved with vector products, and pulled back through one step at y to params, x and
    closures. Memory does not grow with iterations. Errors of y and of the gradient have
    bounds linear in the tolerances, see Equilibria in the documentation. Products of
    float32 have full precision unless `jax.default_matmul_precision` is set.

    **Failed examples** keep their best state, with the gradient of the formula above
    there, which need not be small or right: mask their losses,
    ``jnp.where(info.converged, losses, 0.0)``. A failed adjoint solve gives its best w.

    **Derivatives.** By default the reverse mode, once: only vector-Jacobian products of
    the step are taken, so the step may contain `custom_vjp` kernels. `jax.jvp` of it,
    or a second derivative, is an error. ``forward_mode=True`` gives forward mode,
    reverse mode and all their compositions, for a step that has both, with the same
    linear solver.

    **Outside of `jax.jit`** a later call with a step that does the same is not compiled
    again. Numbers in its closure are part of it: pass changing ones as arrays. The
    functions of your own `Solver` or `Adjoint` are traced at every call.

    Args:
      descent: a `Descent`, or a step ``(params, y, x) -> y'``.
      params: parameters of the step: any pytree, such as a module of Equinox or
        flax.nnx. Leaves that are neither arrays nor floating numbers (functions, names,
        flags) are constants.
      y0: initial state, without gradient, such as an earlier equilibrium: a pytree of
        floating arrays that share their batch axes, for a step also complex ones.
        States below float32 iterate in float32; steps see their dtype.
      x: the input the step sees, a pytree, or None.
      solver: a name of `SOLVERS`, or a `Solver`; None is semismooth Newton in the
        layer's small space for a factored layer (`opteq`), plain steps if ``adjoint``
        is unrolled, "accelerated_gradient" for a `Descent` with a symmetric Jacobian
        (`opteq_conv`), else "anderson". Solvers and adjoints that need a symmetric
        Jacobian probe for it, at two products; without it, examples count as failed.
      adjoint: a name of `ADJOINTS`, an `Adjoint`, or ``unrolled(k)``: k steps of the
        solver under autodiff. None is conjugate gradients for a symmetric or (in its
        small space) factored layer, else "gmres".
      tol: relative tolerance of the forward solve, |f(z) - z| <= atol + tol |f(z)| for
        every example. An example that stops improving at round-off counts as
        converged, with its own status.
      max_steps: cap of the forward solve; of Newton steps where there are such.
      on_failure: "error", "warn" or "accept" where an example does not converge, in the
        forward and the backward pass. Compiled code raises
        ``jax.errors.JaxRuntimeError`` when waited for; `jax.export` gives only
        ``info``.
      adjoint_tol, adjoint_max_steps: of the adjoint solve; None is ``tol`` and
        ``max_steps``, at least 200.
      batch_ndim: how many leading axes of the state are batch axes. None asks the
        energy of a `Descent`, and is 0 for a bare step: the whole state is then one
        example, with a warning where its rows are far from their own fixed points.
        Examples must not mix, as in a batch norm: outside of `jax.jit` each solve
        checks it, at three products.
      probe: zeros from `unroll_jax.fixed_point.zero_probe`; its cotangent is the
        statistics of the backward solve.
      forward_mode: enables `jax.jvp` and higher-order derivatives.
      atol: absolute tolerance of the forward solve, at least 0. None is 0, except for
        states that go to 0. There |f(z) - z| relative to the first state counts, see
        Your own step at equilibrium in the documentation. Unrolled solves and jaxopt's
        loops use a number given, but not this default.
      has_aux: True if the step returns ``(y', aux)``; not for a `Descent`.
      check: checks inside of `jax.jit` too that examples do not depend on each other,
        at the cost of three products.

    Returns:
      ``(y, info)`` or ``(y, info, aux)``: equilibrium, `EquilibriumInfo` and the step's
      aux there, differentiable.

    Raises:
      ValueError: if the step changes the state's structure, shapes or dtypes, examples
        depend on each other, y0 is not finite or an OptEq layer has |W| > 1 (where
        their values are known).
      TypeError: if a state leaf is not floating, or the step takes other arguments than
        (params, y, x).
      ConvergenceError: if ``on_failure="error"`` and an example does not converge.

    Source: Bai, Kolter, Koltun (2019), Theorem 1; Xie et al. (2021), Section 4.1.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> step = lambda weight, z, x: jnp.tanh(z @ weight + x)
      >>> weight, x, start = 0.1 * jnp.eye(3), jnp.ones((8, 3)), jnp.zeros((8, 3))
      >>> z, info = unroll_jax.equilibrium(step, weight, start, x, batch_ndim=1)
      >>> bool(info.converged.all())
      True
      >>> bool(jnp.allclose(z, step(weight, z, x), atol=1e-5))
      True
    """
    problem = prepare(descent, params, y0, x, batch_ndim, has_aux)
    program = problem.program
    forward, backward, layer = _choose_methods(
        problem, descent, params, x, solver, adjoint
    )
    unrolled = backward.num_steps is not None
    check_probe(probe, program.batch, reverse=not (forward_mode or unrolled))
    spacings = tuple(zip(program.widths, program.epsilons, strict=True))
    rule = StopRule(
        tol=float(tol),
        max_steps=int(max_steps),
        epsilon=program.epsilon,
        atol=None if atol is None else float(atol),
        spacings=spacings if len(set(program.epsilons)) > 1 else (),
    )
    reporting = Reporting(on_failure, tol, call_site())

    if unrolled:
        advice = "raise num_steps"
        rule = rule._replace(max_steps=backward.num_steps)
        y, info = _run_unrolled(problem, forward, rule)
    else:
        advice = "raise max_steps or tol"
        # Rows may be examples where nobody said how many batch axes there are.
        unstated = batch_ndim is None and not isinstance(descent, Descent)
        static = program, forward, rule, unstated and on_failure != "accept"
        constants = jax.lax.stop_gradient(problem.operands), layer, problem.start
        solved = call_compiled(_forward, static, *constants)
        y, info, rows = jax.lax.stop_gradient(solved)
        y = check_examples(problem, y, in_jit=check)
        accuracy = float(adjoint_tol or tol)
        cap = int(adjoint_max_steps or max(max_steps, MIN_ADJOINT_STEPS))
        y = with_gradient(
            Backward(program, backward, accuracy, cap),
            problem.operands,
            y,
            reporting,
            forward_mode=forward_mode,
            probe=probe,
            saved=layer,
        )
        if rows is not None:
            y = report_rows(y, rows, reporting)

    y, info = report_failures((y, info), info, "equilibrium", advice, reporting)
    info = EquilibriumInfo(*(leaf.reshape(program.batch) for leaf in info))
    state = program.state(y)
    if not has_aux:
        return state, info
    return state, info, descent(params, state, x)[1]  # pyright: ignore[reportCallIssue]


def _choose_methods(
    problem: Problem, descent: Any, params: Params, x: Any, solver: Any, adjoint: Any
) -> tuple[Solver | FactoredSolver, Adjoint, Any]:
    """The solver and adjoint given, or the defaults of the layer, see `equilibrium`.

    With them come W and c of a factored layer that is solved in its small space.
    """
    symmetric = isinstance(descent, Descent) and descent.symmetric
    defaults = SYMMETRIC if symmetric else GENERAL
    backward = resolve_adjoint(adjoint or defaults[1])
    if backward.num_steps is not None:
        return resolve_solver(solver or UNROLLED), backward, None

    layer = None
    if solver is None or adjoint is None:
        layer = factored_form(descent, params, problem, x)
    if layer is None:
        return resolve_solver(solver or defaults[0]), backward, None

    if adjoint is None:
        backward = factored_adjoint(layer.activation, layer.share)
    forward = FactoredSolver(layer.activation)
    if solver is not None:
        forward = resolve_solver(solver)
    return forward, backward, (layer.matrix, layer.offset)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
@full_precision()
def _forward(
    program: Program,
    solver: Any,
    rule: StopRule,
    by_rows: bool,
    operands: Any,
    layer: Any,
    start: Array,
) -> tuple[Array, EquilibriumInfo, EquilibriumInfo | None]:
    apply = functools.partial(program.apply, operands)
    if isinstance(solver, FactoredSolver):
        y, info = solver.run(layer, apply, start, rule)
    else:
        y, info = iterate(apply, start, solver, rule)
        info = _check_symmetry(solver, program, operands, y, info)
    rows = row_info(program, y, apply(y), rule) if by_rows else None
    return y, info, rows


def _check_symmetry(
    solver: Solver, program: Program, operands: Any, y: Array, info: EquilibriumInfo
) -> EquilibriumInfo:
    """``info`` with its own status where a solver needs a symmetric Jacobian."""
    if not solver.symmetric:
        return info
    transpose = program.transpose(operands, y)
    return flag_asymmetric(info, transpose, y, program.epsilon)


def _run_unrolled(
    problem: Problem, solver: Any, rule: StopRule
) -> tuple[Float[Array, "b m"], EquilibriumInfo]:
    """The last of a number of differentiated steps, and how the solve ended."""
    program, operands, start = problem
    apply = functools.partial(program.apply, operands)
    y, info = unroll_solver(apply, start, solver, rule)
    constants = jax.lax.stop_gradient((operands, y))
    return y, _check_symmetry(solver, program, *constants, info)
