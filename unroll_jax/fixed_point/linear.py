"""Linear systems w - A w = v solved for many examples at once, each row stopping by itself."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.fixed_point.problem import CONVERGED, MAX_STEPS, NONFINITE, SolveInfo, norm, stalled_at, STALLED

__all__ = ["bicgstab", "conjugate_gradient", "gmres", "neumann"]

Linear = Callable[[Float[Array, "b m"]], Float[Array, "b m"]]


class _CG(NamedTuple):
    count: Int[Array, ""]
    w: Array
    residual: Array
    direction: Array
    square: Array
    steps: Array


def conjugate_gradient(
    operator: Linear, v: Float[Array, "b m"], *, tol: float, max_steps: int, start: Array | None = None
) -> tuple[Array, SolveInfo]:
    """Solves w - A w = v for symmetric A with I - A positive definite, row by row to |residual| <= tol |v|.

    Source: Hestenes and Stiefel (1952).
    """
    bound = (tol * norm(v)) ** 2
    w = jnp.zeros_like(v) if start is None else start
    residual = v if start is None else v - (w - operator(w))
    square = jnp.sum(residual**2, axis=-1)

    def unfinished(carry: _CG) -> Array:
        return jnp.any(carry.square > bound) & (carry.count < max_steps)

    def body(carry: _CG) -> _CG:
        active = carry.square > bound
        image = carry.direction - operator(carry.direction)
        curvature = jnp.sum(carry.direction * image, axis=-1)
        length = jnp.where(active & (curvature > 0.0), carry.square / jnp.where(curvature > 0.0, curvature, 1.0), 0.0)
        w = carry.w + length[:, None] * carry.direction
        residual = carry.residual - length[:, None] * image
        square = jnp.where(active, jnp.sum(residual**2, axis=-1), carry.square)
        ratio = jnp.where(active, square / jnp.where(carry.square > 0.0, carry.square, 1.0), 0.0)
        direction = residual + ratio[:, None] * carry.direction
        return _CG(carry.count + 1, w, residual, direction, square, carry.steps + active)

    begin = _CG(jnp.zeros((), jnp.int32), w, residual, residual, square, jnp.zeros(v.shape[0], jnp.int32))
    end = jax.lax.while_loop(unfinished, body, begin)
    return end.w, _info(operator, v, end.w, end.steps, tol)


def neumann(operator: Linear, v: Float[Array, "b m"], *, terms: int, tol: float) -> tuple[Array, SolveInfo]:
    """w = sum_{k < terms} A^k v: the series cut off, exact in the limit where A contracts."""
    w = jax.lax.fori_loop(0, terms - 1, lambda _, w: v + operator(w), v)
    return w, _info(operator, v, w, jnp.full(v.shape[0], terms - 1, jnp.int32), tol)


class _BiCG(NamedTuple):
    count: Int[Array, ""]
    w: Array
    residual: Array
    direction: Array
    rho: Array
    steps: Array
    square: Array


def bicgstab(operator: Linear, v: Float[Array, "b m"], *, tol: float, max_steps: int) -> tuple[Array, SolveInfo]:
    """Solves w - A w = v for any A with I - A invertible, in short recurrences; a row that breaks down starts again.

    Source: van der Vorst (1992).
    """
    bound = (tol * norm(v)) ** 2
    shadow = v
    dot = lambda a, b: jnp.sum(a * b, axis=-1)  # noqa: E731
    safe = lambda a: jnp.where(a == 0.0, 1.0, a)  # noqa: E731

    def unfinished(carry: _BiCG) -> Array:
        return jnp.any(carry.square > bound) & (carry.count < max_steps)

    def body(carry: _BiCG) -> _BiCG:
        active = carry.square > bound
        image = carry.direction - operator(carry.direction)
        below = dot(shadow, image)
        alpha = jnp.where(active & (below != 0.0), carry.rho / safe(below), 0.0)[:, None]
        half = carry.residual - alpha * image
        half_image = half - operator(half)
        size = dot(half_image, half_image)
        omega = jnp.where(active & (size > 0.0), dot(half_image, half) / safe(size), 0.0)[:, None]
        w = carry.w + alpha * carry.direction + omega * half
        residual = jnp.where(active[:, None], half - omega * half_image, carry.residual)
        rho = dot(shadow, residual)
        broken = jnp.abs(rho) < jnp.finfo(v.dtype).eps * norm(shadow) * norm(residual)
        beta = rho / safe(carry.rho) * alpha[:, 0] / safe(omega[:, 0])
        direction = residual + jnp.where(broken, 0.0, beta)[:, None] * (carry.direction - omega * image)
        square = jnp.where(active, dot(residual, residual), carry.square)
        return _BiCG(carry.count + 1, w, residual, direction, rho, carry.steps + active, square)

    begin = _BiCG(
        jnp.zeros((), jnp.int32), jnp.zeros_like(v), v, v, dot(v, v), jnp.zeros(v.shape[0], jnp.int32), dot(v, v)
    )
    end = jax.lax.while_loop(unfinished, body, begin)
    return end.w, _info(operator, v, end.w, end.steps, tol)


def gmres(
    operator: Linear, v: Float[Array, "b m"], *, tol: float, max_steps: int, restart: int = 20
) -> tuple[Array, SolveInfo]:
    """Solves w - A w = v for any A with I - A invertible: least residual over a Krylov space, restarted.

    Source: Saad and Schultz (1986).
    """
    size = norm(v)

    def cycle(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, w, residual, steps = carry
        active = norm(residual) > tol * size
        w_new = w + _krylov(operator, residual, restart)
        w = jnp.where(active[:, None], w_new, w)
        return count + restart, w, v - (w - operator(w)), steps + jnp.where(active, restart, 0)

    def unfinished(carry: tuple[Array, Array, Array, Array]) -> Array:
        return jnp.any(norm(carry[2]) > tol * size) & (carry[0] < max_steps)

    begin = (jnp.zeros((), jnp.int32), jnp.zeros_like(v), v, jnp.zeros(v.shape[0], jnp.int32))
    _, w, _, steps = jax.lax.while_loop(unfinished, cycle, begin)
    return w, _info(operator, v, w, steps, tol)


def _krylov(operator: Linear, residual: Float[Array, "b m"], restart: int) -> Float[Array, "b m"]:
    """The correction of least residual in the Krylov space of ``restart`` dimensions, by Arnoldi's process."""
    rows, width = residual.shape
    beta = norm(residual)
    basis = jnp.zeros((rows, restart + 1, width), residual.dtype)
    basis = basis.at[:, 0].set(residual / jnp.where(beta > 0.0, beta, 1.0)[:, None])
    hessenberg = jnp.zeros((rows, restart + 1, restart), residual.dtype)

    def grow(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, hessenberg = carry
        vector = basis[:, k] - operator(basis[:, k])
        column = jnp.zeros((rows, restart + 1), residual.dtype)
        for _ in range(2):  # twice is enough for orthogonality to round-off
            shares = jnp.einsum("bim,bm->bi", basis, vector)
            vector, column = vector - jnp.einsum("bi,bim->bm", shares, basis), column + shares
        length = norm(vector)
        fine = length > 4.0 * jnp.finfo(residual.dtype).eps * norm(column)
        basis = basis.at[:, k + 1].set(jnp.where(fine, 1.0, 0.0)[:, None] * vector / jnp.where(fine, length, 1.0)[:, None])
        return basis, hessenberg.at[:, :, k].set(column.at[:, k + 1].add(jnp.where(fine, length, 0.0)))

    basis, hessenberg = jax.lax.fori_loop(0, restart, grow, (basis, hessenberg))
    right = jnp.zeros((rows, restart + 1), residual.dtype).at[:, 0].set(beta)
    # Columns past a breakdown are zero; the pseudo-inverse gives them no weight.
    weights = jnp.einsum("bij,bj->bi", jnp.linalg.pinv(hessenberg), right)
    return jnp.einsum("bi,bim->bm", weights, basis[:, :restart])


def _info(operator: Linear, v: Array, w: Array, steps: Array, tol: float) -> SolveInfo:
    """The true residual, not the recurrence's, and what it means."""
    size = norm(v)
    residual = norm(v - (w - operator(w))) / jnp.where(size > 0.0, size, 1.0)
    growth = jnp.maximum(norm(w) / jnp.where(size > 0.0, size, 1.0), 1.0)
    status = jnp.where(residual <= stalled_at(v) * growth, STALLED, MAX_STEPS)
    status = jnp.where(residual <= tol, CONVERGED, status)
    return SolveInfo(residual, steps, jnp.where(jnp.isfinite(residual), status, NONFINITE))
