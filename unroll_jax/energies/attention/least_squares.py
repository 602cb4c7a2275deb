"""Least squares of every token against weights that all tokens share."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.numerics import over

__all__ = ["least_squares"]

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
    trace = jnp.sum(root**2 * jnp.sum(W**2, axis=0), axis=-1, keepdims=True)
    trace = jax.lax.stop_gradient(trace)
    lift = jnp.where(trace == 0.0, 1.0, jnp.sqrt(jnp.finfo(W.dtype).eps) * trace)

    # Dual: x = W S c with S W^T W S c = S offset, S = diag(root).
    # Primal: W S^2 W^T x = W S^2 offset.
    right = root * offset if dual else (root**2 * offset) @ W.T

    # The backward pass keeps c, and computes the products again.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def product(c: Array) -> Array:
        if dual:
            return root * ((root * c) @ W.T @ W)
        return (root**2 * (c @ W)) @ W.T

    def lifted_product(c: Array) -> Array:
        return product(c) + lift * c

    def solve(_: Any, left: Array) -> Array:
        size = jnp.max(jnp.abs(left), axis=-1, keepdims=True)
        left = over(left, size)  # NaN stays NaN, and reaches the result
        solved, *_ = continue_conjugate_gradient(
            lifted_product,
            jnp.zeros_like(left),
            left,
            bound=ACCURACY**2 * jnp.sum(left**2, axis=-1),
            max_steps=2 * min(dim, columns),
        )
        return size * solved

    def proximal_step(solution: Array, _: None) -> tuple[Array, None]:
        change = jax.lax.custom_linear_solve(
            lifted_product, right - product(solution), solve, symmetric=True
        )
        return solution + change, None

    start = jnp.zeros_like(right)
    solution, _ = jax.lax.scan(proximal_step, start, length=PROXIMAL_STEPS)
    return (root * solution) @ W.T if dual else solution
