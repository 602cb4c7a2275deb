"""Least squares of every token against weights that all tokens share."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.numerics import over

__all__ = ["SOLUTIONS", "least_squares"]

# Name of the solutions for policies of `jax.checkpoint`.
SOLUTIONS = "solutions_of_least_squares"

# The error of three steps is the cube of the error of one, see below.
PROXIMAL_STEPS = 3
ACCURACY = 1e-6  # relative, of each step's system


def least_squares(
    W: Float[Array, "d m"], root: Float[Array, "b m"], offset: Float[Array, "b m"]
) -> Float[Array, "b d"]:
    """Solves the minimum-norm weighted least-squares problem of each row.

    x minimises sum_i root_i^2 (W^T x - offset)_i^2. It comes from the primal system or
    the dual one, whichever is smaller.

    A proximal step solves M x = g for the remaining g, with t = sqrt(epsilon) times the
    trace of M added to its diagonal. After three steps x = (1 - (t / (M + t))^3) M^+ g.
    This is never more than M^+ g, so the bound of the attention step holds. At an
    eigenvalue of e times the trace the relative error is (sqrt(epsilon) / e)^3.
    Round-off in directions that no head sees is not amplified.
    """
    # Not by decompositions: they are slow in batches, and on some CPUs two of them at
    # the same time block each other.
    dim, columns = W.shape
    dual = columns <= dim

    # Dual: x = W S c with S W^T W S c = S offset, S = diag(root).
    # Primal: W S^2 W^T x = W S^2 offset.
    right = root * offset if dual else (root**2 * offset) @ W.T
    solution = _proximal_steps(dual, W, root, right)[-1]
    return (root * solution) @ W.T if dual else solution


def _product(dual: bool, W: Array, root: Array, c: Array) -> Array:
    if dual:
        return root * ((root * c) @ W.T @ W)
    return (root**2 * (c @ W)) @ W.T


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _proximal_steps(
    dual: bool, W: Array, root: Array, right: Array
) -> Float[Array, "k b m"]:
    """The solutions after one, two and three proximal steps."""
    none = jnp.zeros((PROXIMAL_STEPS, *right.shape), right.dtype)
    return _solve_in_steps(dual, W, root, right + none)


@_proximal_steps.defjvp
def _(dual: bool, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """M dx_k + t dx_k = dg - dM x_k + t dx_{k-1}: the same steps, for another g each.

    All products of dM are taken at once, outside of the loop over the steps.
    """
    W, root, right = primals
    dW, droot, dright = tangents
    solutions = checkpoint_name(_proximal_steps(dual, W, root, right), SOLUTIONS)
    _, change = jax.jvp(
        lambda W, root: _product(dual, W, root, solutions), (W, root), (dW, droot)
    )
    return solutions, _solve_in_steps(dual, W, root, dright - change)


def _solve_in_steps(
    dual: bool, W: Array, root: Array, rights: Float[Array, "k b m"]
) -> Float[Array, "k b m"]:
    """Proximal steps from 0, each for its own right-hand side; linear in these."""
    limits = jnp.finfo(W.dtype)
    trace = jnp.sum(root**2 * jnp.sum(W**2, axis=0), axis=-1, keepdims=True)
    trace = jax.lax.stop_gradient(trace)
    lift = jnp.where(trace == 0.0, 1.0, limits.eps**0.5 * trace)

    def lifted_product(c: Array) -> Array:
        return _product(dual, W, root, c) + lift * c

    def solve(_: Any, left: Array) -> Array:
        size = jnp.max(jnp.abs(left), axis=-1, keepdims=True)
        left = over(left, size)  # NaN stays NaN, and reaches the result
        solved, *_ = continue_conjugate_gradient(
            lifted_product,
            jnp.zeros_like(left),
            left,
            bound=ACCURACY**2 * jnp.sum(left**2, axis=-1),
            max_steps=2 * min(W.shape),
        )
        return size * solved

    def proximal_step(solution: Array, right: Array) -> tuple[Array, Array]:
        left = right - _product(dual, W, root, solution)
        change = jax.lax.custom_linear_solve(
            lifted_product, left, solve, symmetric=True
        )
        return solution + change, solution + change

    return jax.lax.scan(proximal_step, jnp.zeros_like(rights[0]), rights)[1]
