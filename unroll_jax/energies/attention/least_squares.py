"""Least squares of every token against weights that all tokens share, by conjugate
gradients."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.numerics import over

__all__ = ["least_squares"]

PROXIMAL_STEPS = 3
ACCURACY = 1e-6  # relative, of each step's system


def least_squares(
    W: Float[Array, "d m"], root: Float[Array, "b m"], offset: Float[Array, "b m"]
) -> Float[Array, "b d"]:
    """The x of least sum_i root_i^2 (W^T x - offset)_i^2 nearest to 0, of each row, by
    the smaller of its two systems.

    A proximal step solves a system M x = g with M raised by t = sqrt(epsilon) times its
    trace, for the remaining g: after three of them x = (1 - (t / (M + t))^3) M^+ g.
    That is never more than M^+ g, so it keeps the step's bound; an eigenvalue of share
    e of the trace has relative error (sqrt(epsilon) / e)^3; and the round-off in
    directions that no head sees is not blown up. Conjugate gradients, not
    decompositions: those run badly in batches, and on some CPUs lock each other out
    when two of them run at the same time.
    """
    dim, columns = W.shape
    dual = columns <= dim
    trace = jax.lax.stop_gradient(
        jnp.sum(root**2 * jnp.sum(W**2, axis=0), axis=-1, keepdims=True)
    )
    lift = jnp.where(trace == 0.0, 1.0, jnp.sqrt(jnp.finfo(W.dtype).eps) * trace)
    # Dual: x = W S c with S W^T W S c = S offset, S = diag(root). Else: W S^2 W^T x = W
    # S^2 offset.
    right = root * offset if dual else (root**2 * offset) @ W.T

    def product(c: Array) -> Array:
        return root * ((root * c) @ W.T @ W) if dual else (root**2 * (c @ W)) @ W.T

    def raised(c: Array) -> Array:
        return product(c) + lift * c

    def solve(_: Any, left: Array) -> Array:
        size = jnp.max(jnp.abs(left), axis=-1, keepdims=True)
        left = over(left, size)  # NaN stays NaN, and reaches the result
        bound, steps = ACCURACY**2 * jnp.sum(left**2, axis=-1), 2 * min(dim, columns)
        return (
            size
            * continue_conjugate_gradient(
                raised, jnp.zeros_like(left), left, bound=bound, max_steps=steps
            )[0]
        )

    def proximal_step(solution: Array, _: None) -> tuple[Array, None]:
        return solution + jax.lax.custom_linear_solve(
            raised, right - product(solution), solve, symmetric=True
        ), None

    solution, _ = jax.lax.scan(
        proximal_step, jnp.zeros_like(right), length=PROXIMAL_STEPS
    )
    return (root * solution) @ W.T if dual else solution
