"""Linear systems w - A w = v solved for many examples at once, each row stopping by itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.fixed_point.flat_states import norm, per_example, put
from unroll_jax.fixed_point.problem import Linear, SolveInfo, linear_info

__all__ = ["conjugate_gradient", "gmres", "neumann"]

# A restarted cycle that leaves more than this share of the residual will not end: the next ones are much like it.
STAGNANT = 0.999


def conjugate_gradient(
    operator: Linear, v: Float[Array, "b m"], *, tol: float | Float[Array, " b"], max_steps: int
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Solves w - A w = v for symmetric A with I - A positive definite, row by row to |residual| <= tol |v|.

    The v of a row should be of a size whose square is neither 0 nor infinite. Steps are products with A.

    Source: Hestenes and Stiefel (1952).
    """

    def product(w: Array) -> Array:
        return w - operator(w)

    w, _, steps = continue_conjugate_gradient(
        product, jnp.zeros_like(v), v, bound=(tol * norm(v)) ** 2, max_steps=max_steps
    )
    return w, linear_info(operator, v, w, steps, tol)


def neumann(
    operator: Linear, v: Float[Array, "b m"], *, terms: int, tol: float, damping: float = 1.0
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """w = d sum_{k < terms} ((1 - d) I + d A)^k v, d the damping: exact in the limit where that map contracts."""

    def add(_: Any, w: Array) -> Array:
        return v + operator(w) if damping == 1.0 else (1.0 - damping) * w + damping * (v + operator(w))

    w = jax.lax.fori_loop(0, terms - 1, add, damping * v)
    return w, linear_info(operator, v, w, jnp.full(v.shape[0], terms - 1, jnp.int32), tol)


class _Cycles(NamedTuple):
    number: Int[Array, ""]
    w: Array
    residual: Array
    going: Array
    steps: Array


def gmres(
    operator: Linear,
    v: Float[Array, "b m"],
    *,
    tol: float,
    max_steps: int | Int[Array, ""],
    restart: int = 20,
    start: Float[Array, "b m"] | None = None,
) -> tuple[Float[Array, "b m"], SolveInfo]:
    """Solves w - A w = v for any A with I - A invertible: least residual over a Krylov space, restarted.

    It begins at ``start``, None being 0. Memory is ``restart`` + 1 vectors a row. A row ends when it meets |residual|
    <= tol |v| or stagnates. Steps are products with A.

    Source: Saad and Schultz (1986).
    """
    bound = tol * norm(v)

    def unfinished(carry: _Cycles) -> Array:
        return jnp.any(carry.going) & (carry.number < max_steps)

    def cycle(carry: _Cycles) -> _Cycles:
        limit = jnp.minimum(restart, max_steps - carry.number)
        change, steps, taken = _krylov(operator, carry.residual, carry.going, bound, restart, limit)
        w = carry.w + change
        residual = v - (w - operator(w))
        before, after = norm(carry.residual), norm(residual)
        better = carry.going & (after < before)
        w, residual = per_example(better, (w, residual), (carry.w, carry.residual))
        going = carry.going & (after > bound) & (after < STAGNANT * before)
        return _Cycles(carry.number + taken, w, residual, going, carry.steps + steps)

    none = jnp.zeros_like(bound, jnp.int32)
    w, residual = (jnp.zeros_like(v), v) if start is None else (start, v - (start - operator(start)))
    begin = _Cycles(jnp.zeros((), jnp.int32), w, residual, norm(residual) > bound, none)
    end = jax.lax.while_loop(unfinished, cycle, begin)
    return end.w, linear_info(operator, v, end.w, end.steps, tol)


class _Arnoldi(NamedTuple):
    """An orthonormal basis V with (I - A) V_k = V_{k+1} H_k, and H = Q^T R built up by Givens rotations."""

    k: Int[Array, ""]
    basis: Float[Array, "b r1 m"]
    rotation: Float[Array, "b r1 r1"]
    triangle: Float[Array, "b r1 r"]
    estimate: Float[Array, " b"]
    steps: Int[Array, " b"]


def _krylov(
    operator: Linear, residual: Array, going: Array, bound: Array, restart: int, limit: Array
) -> tuple[Array, Array, Array]:
    """The correction of least residual in a Krylov space of up to ``restart`` dimensions; steps of each row, of all."""
    dtype, beta, places = residual.dtype, norm(residual), jnp.arange(restart + 1)
    zeros = jnp.zeros_like(beta)
    first = residual / jnp.where(beta > 0.0, beta, 1.0)[:, None]

    def unfinished(carry: _Arnoldi) -> Array:
        return jnp.any(going & (carry.estimate > bound)) & (carry.k < limit)

    def grow(carry: _Arnoldi) -> _Arnoldi:
        k = carry.k
        active = going & (carry.estimate > bound)
        vector = carry.basis[:, k] - operator(carry.basis[:, k])
        column = zeros[:, None] + jnp.zeros(restart + 1, dtype)
        for _ in range(2):  # twice is enough for orthogonality to round-off
            shares = jnp.einsum("bim,bm->bi", carry.basis, vector)
            vector, column = vector - jnp.einsum("bi,bim->bm", shares, carry.basis), column + shares
        length = norm(vector)
        # Nothing but round-off left: the space is complete, and the next vector is none.
        length = jnp.where(length > 4.0 * jnp.finfo(dtype).eps * norm(column), length, 0.0)
        following = jnp.where(length > 0.0, 1.0, 0.0)[:, None] * vector / jnp.where(length > 0.0, length, 1.0)[:, None]
        column = jnp.einsum("bij,bj->bi", carry.rotation, jnp.where(places == k + 1, length[:, None], column))
        rotation, triangle = _rotate(carry.rotation, column, k)
        return _Arnoldi(
            k + 1,
            put(carry.basis, following, k + 1),
            rotation,
            jax.lax.dynamic_update_index_in_dim(carry.triangle, triangle[:, :, None], k, axis=2),
            beta * jnp.abs(rotation[:, k + 1, 0]),
            carry.steps + active,
        )

    begin = _Arnoldi(
        k=jnp.zeros((), jnp.int32),
        basis=put(jnp.repeat(jnp.zeros_like(residual)[:, None], restart + 1, axis=1), first, 0),
        rotation=zeros[:, None, None] + jnp.eye(restart + 1, dtype=dtype),
        triangle=zeros[:, None, None] + jnp.zeros((restart + 1, restart), dtype),
        estimate=beta,
        steps=jnp.zeros_like(beta, jnp.int32),
    )
    end = jax.lax.while_loop(unfinished, grow, begin)
    weights = _back_substitute(end.triangle[:, :restart], beta[:, None] * end.rotation[:, :restart, 0])
    return jnp.einsum("bi,bim->bm", weights, end.basis[:, :restart]), end.steps, end.k


def _rotate(rotation: Array, column: Array, k: Array) -> tuple[Array, Array]:
    """The Givens rotation that clears entry k + 1 of a column, applied to the rotations so far and to the column."""
    above, below = column[:, k], column[:, k + 1]
    size = jnp.hypot(above, below)
    cosine = jnp.where(size > 0.0, above / jnp.where(size > 0.0, size, 1.0), 1.0)[:, None]
    sine = jnp.where(size > 0.0, below / jnp.where(size > 0.0, size, 1.0), 0.0)[:, None]
    upper, lower = rotation[:, k], rotation[:, k + 1]
    rotation = put(put(rotation, cosine * upper + sine * lower, k), cosine * lower - sine * upper, k + 1)
    places = jnp.arange(column.shape[1])
    return rotation, jnp.where(places == k, size[:, None], jnp.where(places == k + 1, 0.0, column))


def _back_substitute(triangle: Float[Array, "b r r"], right: Float[Array, "b r"]) -> Float[Array, "b r"]:
    """Solves upper triangular systems; a column that is not there, 0 on the diagonal, gets no weight."""
    size = right.shape[1]

    def solve(step: Array, solution: Array) -> Array:
        i = size - 1 - step
        diagonal = triangle[:, i, i]
        value = right[:, i] - jnp.einsum("bj,bj->b", triangle[:, i], solution)
        weight = jnp.where(diagonal == 0.0, 0.0, value / jnp.where(diagonal == 0.0, 1.0, diagonal))
        return jnp.where(jnp.arange(size) == i, weight[:, None], solution)

    return jax.lax.fori_loop(0, size, solve, jnp.zeros_like(right))
