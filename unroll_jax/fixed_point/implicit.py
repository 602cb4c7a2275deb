"""Equilibria of a step, differentiated implicitly."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, checked, in_interval, one_of
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.backward import Backward, Probe, as_problem, check_probe, corrected, differentiable
from unroll_jax.fixed_point.checks import ON_FAILURE, Reporting, report_outcome, report_rows
from unroll_jax.fixed_point.factored import step_info
from unroll_jax.fixed_point.iteration import unroll_solver
from unroll_jax.fixed_point.opened import open_step
from unroll_jax.fixed_point.plan import Plan, System, begin, choose, probed
from unroll_jax.fixed_point.problem import Adjoint, Limits, SolveInfo, Solver, Unrolled
from unroll_jax.fixed_point.reports import call_site
from unroll_jax.fixed_point.reversible_iteration import run_reversible
from unroll_jax.steps import full_precision

__all__ = ["EquilibriumInfo", "equilibrium"]

UNROLLED_REPORTS = {
    "solver": ("unrolled ", "raise num_steps"),
    "phantom": ("", "raise max_steps or tol"),
    "reversible": ("reversible ", "raise num_steps"),
}
LEAST_ADJOINT_STEPS = 200  # products with J^T are cheap next to Newton steps, for which a cap of a few is enough


class EquilibriumInfo(NamedTuple):
    """Diagnostics of the forward solve of `equilibrium`, per example.

    Attributes:
      residual: relative, |f(z) - z| / (|f(z)| + atol / tol) at the z that the state returned is f of; where |f(z)| has
        grown to more than 30 times the sizes of the first state and of the steps met, relative to that; where by
        default a state goes to 0 (see ``atol``), |f(z) - z| relative to these sizes, once it is at most ``tol``.
      steps: evaluations of the step until the example ended.
      status: how it ended, an index into `unroll_jax.fixed_point.STATUS`.
      converged: whether it met the tolerance or stalled at round-off.

    Example:
      >>> import jax.numpy as jnp
      >>> z, info = equilibrium(lambda w, z, x: w * z + 1.0, 0.5, jnp.zeros(()), batch_ndim=0)
      >>> round(float(z), 3), bool(info.converged), bool(info.residual <= 1e-5)
      (2.0, True, True)
    """

    residual: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    status: Int[Array, "*batch"]
    converged: Bool[Array, "*batch"]


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
    adjoint: str | Adjoint | Unrolled | None = None,
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
) -> tuple[Any, ...]:
    r"""The fixed point z = f(z) of a step, and its gradient by the implicit function theorem.

    The forward solve runs under ``stop_gradient``, each example until it has converged by itself; one step y = f(z) is
    then taken from its best state, through which params, x and closed-over values are differentiated; the
    cotangent v of that step is replaced by

    .. math:: w = (I - J^T)^{-1} v , \qquad J = \partial f / \partial z ,

    solved with vector products alone. Memory does not depend on the number of iterations. Cotangents are normalised
    before the solve, an example at a time, so that tiny ones keep their accuracy.

    Products of float32 are taken in full precision, as tolerances below 1e-3 need it, where GPUs and TPUs would not by
    default; your setting of `jax.default_matmul_precision` is left alone.

    **Error bounds.** Let f contract with c < 1 (in the Euclidean norm), and let r = |f(z) - z|, at most ``tol`` |y|
    where ``info.converged``. Then

    .. math:: |y - z^*| \le c\, e , \qquad |z - z^*| \le e = r / (1 - c) .

    Let rho be the residual of the adjoint, at most ``adjoint_tol`` |v|; beta bound the derivative B of f with respect
    to params and x; L_J, L_B and L_v be Lipschitz constants in z of J, B and the loss's gradient. Then the
    gradient g is as near to the exact one as

    .. math:: |g - g^*| \le \frac{\beta}{1 - c} \Big( \rho + L_v c\, e + \frac{L_J\, e\, |v^*|}{1 - c} \Big)
              + \frac{L_B\, e\, |v^*|}{1 - c} ,

    linear in both tolerances.

    **Derivatives.** By default the reverse mode, once: only vector-Jacobian products of the step are taken, so the step
    may contain `custom_vjp` kernels. `jax.jvp` of it, or a second derivative, is an error. ``forward_mode=True`` gives
    forward mode, reverse mode and all their compositions, for a step that has both, with the same linear solver.

    Args:
      descent: a `Descent`, or a step ``(params, y, x) -> y'`` alone.
      params: parameters of the step: any pytree, such as a module of Equinox or flax.nnx. Leaves that are neither
        arrays nor floating numbers (functions, names, flags) are constants.
      y0: initial state, a pytree of floating arrays that share their batch axes, for a step alone also complex ones;
        receives no gradient. The equilibrium of an earlier call is a warm start. States below float32 are iterated on
        in float32, between steps that see their own dtype.
      x: the input the step sees, a pytree, or None.
      solver: a name of `SOLVERS`, or a `Solver`; None is semismooth Newton in the layer's own small space for a
        factored layer (`opteq`), plain steps if ``adjoint`` is unrolled, "accelerated_gradient" for a `Descent`
        with a symmetric Jacobian (`opteq_conv`), else "picard_anderson". Solvers and adjoints that need a symmetric
        Jacobian probe for it, at two products; without it, examples count as failed.
      adjoint: a name of `ADJOINTS`, an `Adjoint`, or ``unrolled(k)``: then k steps of the solver, differentiated by
        autodiff; `phantom` and `reversible` differentiate steps too. None is conjugate gradients for a factored or
        symmetric layer, in the small space of the former, else "neumann_gcr".
      tol: relative tolerance of the forward solve, |f(z) - z| <= atol + tol |f(z)| for every example. An example that
        cannot get there for round-off counts as converged, with its own status.
      max_steps: cap of the forward solve; of Newton steps where there are such.
      on_failure: "error", "warn" or "accept" where an example does not converge, in the forward and the backward pass.
        In compiled code the error is ``jax.errors.JaxRuntimeError``, raised when the results are waited for. Programs
        of `jax.export` report by ``info`` alone.
      adjoint_tol: relative tolerance of the adjoint solve; None is ``tol``.
      adjoint_max_steps: cap of the adjoint solve; None is ``max_steps``, and 200 at least.
      batch_ndim: how many leading axes of the state are batch axes. None asks the energy of a `Descent`, and is 0 for a
        step alone: then all of the state is one example, with a warning where rows of its first axis are far from their
        own fixed points, as small examples next to large ones would be.
      probe: zeros from `unroll_jax.fixed_point.zero_probe`; its cotangent is the statistics of the backward solve.
      forward_mode: whether derivatives beyond one reverse pass are wanted.
      atol: absolute tolerance of the forward solve, at least 0. None is 0, except for states that go to 0, where a
        relative residual tells nothing. Let s be the size of an example's first state or, if larger, of its steps. If
        |f(z)| shrinks as |f(z) - z| does, the example ends where |f(z) - z| <= min(tol, epsilon / 2) s, with the
        epsilon of the state's dtype, or after ``max_steps``, converged if |f(z) - z| <= tol s. Pass ``atol=0.0`` for
        fixed points smaller than that. Unrolled solves and jaxopt's loops use a number given, but not this default.
      has_aux: whether the step returns ``(y', aux)``; not for a `Descent`.

    Returns:
      ``(y, info)``: the equilibrium, and an `EquilibriumInfo`; with ``has_aux`` ``(y, info, aux)``, where aux is that
      of the step at the equilibrium, differentiable too.

    Raises:
      ValueError: if an option is out of range, the step changes the state's structure, shapes or dtypes,
        y0 is not finite or an OptEq layer has |W| > 1 (where their values are known; see `opteq`).
      TypeError: if a state leaf is not floating, or the step takes other arguments than (params, y, x), such as those
        of jaxopt, where their number or names tell.
      ConvergenceError: if ``on_failure="error"`` and an example does not converge.

    Source: Bai, Kolter, Koltun (2019), Theorem 1; Xie et al. (2021), Section 4.1. The bounds are ours.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> step = lambda weight, z, x: jnp.tanh(z @ weight + x)
      >>> weight, x = 0.1 * jnp.eye(3), jnp.ones((8, 3))
      >>> z, info = unroll_jax.equilibrium(step, weight, jnp.zeros((8, 3)), x, batch_ndim=1)
      >>> bool(info.converged.all()), bool(jnp.allclose(z, step(weight, z, x), atol=1e-5))
      (True, True)
    """
    descent, params, y0, x, close = open_step(descent, params, y0, x, has_aux)
    inferred = batch_ndim is None and not isinstance(descent, Descent)
    system = begin(descent, params, y0, x, batch_ndim)
    check_probe(probe, system.batch)
    plan = choose(system, descent, solver, adjoint, params, x)
    if probe is not None and (forward_mode or isinstance(plan.adjoint, Unrolled)):
        raise ValueError('probe needs the reverse mode: drop it, or forward_mode and adjoint="unrolled"')
    limits, reporting = Limits(tol, atol, max_steps), Reporting(on_failure, tol, call_site())
    if isinstance(plan.adjoint, Unrolled):
        y, info = _unrolled(plan, plan.adjoint, system, limits, reporting)
        name, advice = UNROLLED_REPORTS[plan.adjoint.kind]
        y, info = report_outcome((y, info), info, f"{name}equilibrium", f"{advice}{system.hint}", reporting)
    else:
        cap = adjoint_max_steps or max(max_steps, LEAST_ADJOINT_STEPS)
        backward = Backward(
            plan.adjoint, cap, reporting._replace(tol=adjoint_tol or tol), system.epsilon, system.hint, plan.structured
        )
        y, info, z = _implicit(plan, backward, system, limits, probe, forward_mode)
        y, info = report_outcome((y, info), info, "equilibrium", f"raise max_steps or tol{system.hint}", reporting)
        if inferred and on_failure != "accept":
            states = system.restore(z), system.restore(jax.lax.stop_gradient(y))
            y = report_rows(y, *states, atol=atol or 0.0, epsilon=system.epsilon, reporting=reporting)
    return close(system.restore(y), _shaped(info, system.batch))


def _implicit(
    plan: Plan, backward: Backward, system: System, limits: Limits, probe: Probe | None, forward_mode: bool
) -> tuple[Array, SolveInfo, Array]:
    """One differentiable step from the solution, how the solve ended, and the solution itself."""
    problem = as_problem(system.rows, jax.lax.stop_gradient(system.operands), system.epsilon)
    solution = jax.lax.stop_gradient(plan.solve(problem, plan.start, limits))
    if forward_mode:
        y = differentiable(system.rows, backward, system.operands, solution.z)
    else:
        y = corrected(system.rows, backward, system.operands, solution.z, probe, solution.residuals)
    return y, step_info(solution, jax.lax.stop_gradient(y), limits, system.epsilon), solution.z


def _unrolled(
    plan: Plan, adjoint: Unrolled, system: System, limits: Limits, reporting: Reporting
) -> tuple[Array, SolveInfo]:
    """The last state of a fixed number of differentiated steps, and how the solve ended."""
    assert plan.unroll is not None
    tol, atol, _ = limits
    rows, operands, epsilon, count = system.rows, system.operands, system.epsilon, adjoint.num_steps
    if adjoint.kind == "reversible":
        options = {"num_steps": count, "share": adjoint.share, "epsilon": epsilon, "reporting": reporting}
        return run_reversible(rows, operands, plan.start, **options)
    moving, fixed = (as_problem(rows, o, epsilon) for o in (operands, jax.lax.stop_gradient(operands)))
    if adjoint.kind == "phantom":
        solution = jax.lax.stop_gradient(plan.solve(fixed, plan.start, limits))
        y, _ = unroll_solver(moving, solution.z, plan.unroll, num_steps=count, tol=tol)
        return y, step_info(solution, fixed.apply(solution.z), limits, epsilon)
    y, info = unroll_solver(moving, plan.start, plan.unroll, num_steps=count, tol=tol, atol=atol or 0.0)
    return y, probed(plan.unroll, fixed, y, info)


def _shaped(info: SolveInfo, batch: tuple[Any, ...]) -> EquilibriumInfo:
    return EquilibriumInfo(*(leaf.reshape(batch) for leaf in (info.residual, info.steps, info.status, info.converged)))
