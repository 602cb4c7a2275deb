"""How the gradient of a fixed point is found: linear solves with the transposed Jacobian, or differentiating a loop."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import typed
from unroll_jax.fixed_point import krylov, linear
from unroll_jax.fixed_point.problem import Linear, Problem, SolveInfo, norm
from unroll_jax.fixed_point.quasi_newton import anderson
from unroll_jax.fixed_point.solvers import run

__all__ = [
    "Adjoint",
    "Unrolled",
    "anderson_adjoint",
    "bicgstab",
    "conjugate_gradient",
    "gmres",
    "neumann",
    "one_step",
    "unrolled",
]


class Adjoint(NamedTuple):
    """A solver of w - J^T w = v, for cotangents v of about unit norm in every row.

    Attributes:
      solve: ``(operator, v, tol, max_steps) -> (w, SolveInfo)``; ``operator`` is w -> J^T w.
      symmetric: whether it needs J symmetric.
      exact: whether it solves the system to ``tol``; an inexact one never counts as failed.
    """

    solve: Callable[[Linear, Float[Array, "b m"], float, int], tuple[Float[Array, "b m"], SolveInfo]]
    symmetric: bool = False
    exact: bool = True


class Unrolled(NamedTuple):
    """No adjoint system: ``num_steps`` steps of the solver in a scan, differentiated by autodiff."""

    num_steps: int


def conjugate_gradient() -> Adjoint:
    """Conjugate gradients: the quickest where J is symmetric, as of every layer that is a gradient."""
    return Adjoint(
        lambda operator, v, tol, max_steps: linear.conjugate_gradient(operator, v, tol=tol, max_steps=max_steps),
        symmetric=True,
    )


@typed
def gmres(restart: int = 20) -> Adjoint:
    """GMRES, restarted: for any J with I - J invertible; keeps restart + 1 vectors an example.

    Raises:
      ValueError: if restart is below 1.
    """
    if restart < 1:
        raise ValueError(f"restart must be at least 1, got {restart}")
    return Adjoint(
        lambda operator, v, tol, max_steps: krylov.gmres(operator, v, tol=tol, max_steps=max_steps, restart=restart)
    )


def bicgstab() -> Adjoint:
    """BiCGStab: for any J with I - J invertible, in little memory."""
    return Adjoint(lambda operator, v, tol, max_steps: linear.bicgstab(operator, v, tol=tol, max_steps=max_steps))


@typed
def anderson_adjoint(window: int = 5, *, ridge: float | None = None) -> Adjoint:
    """Anderson acceleration of w = v + J^T w."""
    solver = anderson(window, ridge=ridge)

    def solve(operator: Linear, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        epsilon = float(jnp.finfo(v.dtype).eps)
        problem = Problem(apply=lambda w: v + operator(w), pull=lambda w: operator, epsilon=epsilon)
        w, info = run(problem, v, solver, tol=tol, max_steps=max_steps, scale=norm(v))
        return w, linear.linear_info(operator, v, w, info.steps, tol)

    return Adjoint(solve)


@typed
def neumann(terms: int = 10) -> Adjoint:
    """The first ``terms`` terms of sum_k (J^T)^k v, the phantom gradient of a contraction.

    Raises:
      ValueError: if terms is below 1.

    Source: Geng et al. (2021), On Training Implicit Models, with damping 1.
    """
    if terms < 1:
        raise ValueError(f"terms must be at least 1, got {terms}")
    return Adjoint(lambda operator, v, tol, max_steps: linear.neumann(operator, v, terms=terms, tol=tol), exact=False)


def one_step() -> Adjoint:
    """w = v: the gradient of one step at the equilibrium, Jacobian-free.

    Source: Fung et al. (2022), JFB.
    """

    def solve(operator: Linear, v: Array, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
        rows = v.shape[0]
        unknown = jnp.full(rows, jnp.nan, v.dtype)  # not measured: that would cost the product that this one saves
        return v, SolveInfo(unknown, jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.int32))

    return Adjoint(solve, exact=False)


@typed
def unrolled(num_steps: int = 20) -> Unrolled:
    """Steps of the solver differentiated by autodiff, to any order and in both modes; memory grows with the steps.

    ``max_steps`` does not count here, and ``tol`` only says which examples count as converged.

    Raises:
      ValueError: if num_steps is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    return Unrolled(num_steps)
