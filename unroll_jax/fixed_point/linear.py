"""Linear systems w - A w = v solved for many examples at once, each row stopping by itself."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONFINITE, Linear, SolveInfo, norm, per_example

__all__ = ["bicgstab", "conjugate_gradient", "linear_info", "neumann"]


def conjugate_gradient(
    operator: Linear, v: Float[Array, "b m"], *, tol: float | Float[Array, " b"], max_steps: int
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Solves w - A w = v for symmetric A with I - A positive definite, row by row to |residual| <= tol |v|.

    The v of a row should be of a size whose square is neither 0 nor infinite. Steps are products with A.

    Source: Hestenes and Stiefel (1952).
    """
    product = lambda w: w - operator(w)  # noqa: E731
    w, _, steps = continue_conjugate_gradient(
        product, jnp.zeros_like(v), v, bound=(tol * norm(v)) ** 2, max_steps=max_steps
    )
    return w, linear_info(operator, v, w, steps, tol)


def neumann(
    operator: Linear, v: Float[Array, "b m"], *, terms: int, tol: float
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """w = sum_{k < terms} A^k v: the series cut off, exact in the limit where A contracts."""
    w = jax.lax.fori_loop(0, terms - 1, lambda _, w: v + operator(w), v)
    return w, linear_info(operator, v, w, jnp.full(v.shape[0], terms - 1, jnp.int32), tol)


class _BiCG(NamedTuple):
    number: Int[Array, ""]
    w: Array
    residual: Array
    direction: Array
    shadow: Array
    rho: Array
    square: Array
    best: Array
    lowest: Array
    steps: Array


def bicgstab(
    operator: Linear, v: Float[Array, "b m"], *, tol: float, max_steps: int
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Solves w - A w = v for any A with I - A invertible, in short recurrences.

    A row that breaks down starts again from where it is. The residual may rise on the way: what is returned is the best
    iterate. Steps are products with A, two an iteration.

    Source: van der Vorst (1992).
    """
    bound = (tol * norm(v)) ** 2
    epsilon = jnp.finfo(v.dtype).eps
    dot = lambda a, b: jnp.sum(a * b, axis=-1)  # noqa: E731
    safe = lambda a: jnp.where(a == 0.0, 1.0, a)  # noqa: E731

    def unfinished(carry: _BiCG) -> Array:
        return jnp.any(carry.lowest > bound) & (carry.number < max_steps)

    def body(carry: _BiCG) -> _BiCG:
        active = carry.lowest > bound
        image = carry.direction - operator(carry.direction)
        below = dot(carry.shadow, image)
        alpha = jnp.where(active & (below != 0.0), carry.rho / safe(below), 0.0)[:, None]
        half = carry.residual - alpha * image
        half_image = half - operator(half)
        size = dot(half_image, half_image)
        omega = jnp.where(active & (size > 0.0), dot(half_image, half) / safe(size), 0.0)[:, None]
        w = carry.w + alpha * carry.direction + omega * half
        residual = half - omega * half_image
        square, rho = dot(residual, residual), dot(carry.shadow, residual)
        broken = (jnp.abs(rho) <= epsilon * norm(carry.shadow) * jnp.sqrt(square)) | (omega[:, 0] == 0.0)
        beta = rho / safe(carry.rho) * alpha[:, 0] / safe(omega[:, 0])
        direction = residual + jnp.where(broken, 0.0, beta)[:, None] * (carry.direction - omega * image)
        shadow = per_example(broken, residual, carry.shadow)
        better = active & (square < carry.lowest)
        return _BiCG(
            carry.number + 2,
            w,
            residual,
            direction,
            shadow,
            jnp.where(broken, square, rho),
            square,
            per_example(better, w, carry.best),
            jnp.where(better, square, carry.lowest),
            carry.steps + 2 * active,
        )

    zero, square = jnp.zeros_like(v), dot(v, v)
    none = jnp.zeros_like(square, jnp.int32)
    begin = _BiCG(jnp.zeros((), jnp.int32), zero, v, v, v, square, square, zero, square, none)
    end = jax.lax.while_loop(unfinished, body, begin)
    return end.best, linear_info(operator, v, end.best, end.steps, tol)


def linear_info(operator: Linear, v: Array, w: Array, steps: Array, tol: float | Array) -> SolveInfo:
    """The true residual, not the recurrence's, and what it means."""
    size = norm(v)
    residual = norm(v - (w - operator(w))) / jnp.where(size > 0.0, size, 1.0)
    status = jnp.where(residual <= tol, CONVERGED, MAX_STEPS)
    return SolveInfo(residual, steps, jnp.where(jnp.isfinite(residual), status, NONFINITE).astype(jnp.int32))
