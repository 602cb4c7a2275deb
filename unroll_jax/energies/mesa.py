"""Mesa layers: the optimal fast weights after every pair of a sequence."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, checked
from unroll_jax.arrays import check_shape
from unroll_jax.conjugate_gradients import continue_conjugate_gradient
from unroll_jax.energies.fast_weights import read_chunks, read_pairs
from unroll_jax.numerics import over

__all__ = ["MesaState", "mesa"]


class MesaState(NamedTuple):
    """Sums over the pairs that were read.

    Attributes:
      H: (*batch, k, k), the sum of b k k^T.
      G: (*batch, k, v), the sum of b k v^T.

    Example: see `mesa`.
    """

    H: Float[Array, "*batch k k"]
    G: Float[Array, "*batch k v"]


@checked(ridge=POSITIVE, tol=POSITIVE, max_steps=SIZE, chunk_size=SIZE)
def mesa(
    queries: Float[Array, "*batch n k"],
    keys: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n v"],
    rates: Float[Array, "*batch n"],
    *,
    ridge: float = 1.0,
    tol: float = 1e-5,
    max_steps: int | None = None,
    chunk_size: int = 64,
    state: MesaState | None = None,
) -> tuple[Float[Array, "*batch n v"], MesaState, Float[Array, "*batch n"]]:
    r"""Reads a sequence with fast weights that are optimal for each of its prefixes.

    .. math:: W_t = \arg\min_W \tfrac12 \sum_{s \le t} b_s |W k_s - v_s|^2
                  + \tfrac{r}{2} |W|_F^2 , \qquad
              o_t = W_t q_t = G_t^T (H_t + r I)^{-1} q_t ,

    the equilibrium of `fast_weights` on the pairs up to t. Conjugate gradients solve
    all systems of a chunk at once, and those of the derivatives. No k x k matrix is
    kept per t, so memory is linear in n.

    Args:
      queries, keys, values, rates, chunk_size: as in `delta_rule`.
      ridge: r > 0, in units of key^2.
      tol: relative residual at which a system is solved.
      max_steps: steps of conjugate gradients. None is 2 k, twice as many as in exact
        arithmetic.
      state: sums before the first pair. None is 0.

    Returns:
      The outputs o (*batch, n, v), empty for an empty sequence, the sums after the last
      pair, and the relative residual of every system (*batch, n), above ``tol`` where
      max_steps was not enough. All is computed in float32 at least. Outputs do not
      depend on later pairs. From a pair that is not finite on they are NaN.

    Source: von Oswald et al. (2025), *MesaNet: Sequence Modeling by Locally Optimal
    Test-Time Training*, eqs. 8 to 12, without the forgetting factor. Theirs learns a
    ridge for each head. Here it is one known number.

    Example:
      >>> import jax
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 100, 8))
      >>> outputs, state, residuals = mesa(q, k, v, jax.numpy.ones(100))
      >>> outputs.shape, bool(residuals.max() <= 1e-5), isinstance(state, MesaState)
      ((100, 8), True, True)
    """
    dtype = values.dtype
    pairs = read_pairs(queries, keys, values, rates)
    queries, _, values, _ = pairs.arrays
    *batch, _, width = queries.shape
    shape_H = (*batch, width, width)
    shape_G = (*batch, width, values.shape[-1])
    if state is None:
        state = MesaState(jnp.zeros(shape_H), jnp.zeros(shape_G))
    check_shape("state.H", state.H, shape_H)
    check_shape("state.G", state.G, shape_G)
    start = MesaState(*(leaf.astype(values.dtype) for leaf in state))
    steps = 2 * width if max_steps is None else max_steps

    def read(
        state: MesaState, chunk: tuple[Array, ...]
    ) -> tuple[MesaState, tuple[Array, Array]]:
        queries, keys, values, rates = chunk
        weighted = rates * keys

        # (H_t + r I) x_t for every t of the chunk, with H_t = H + sum_{s <= t} b k k^T.
        def product(rows: Array) -> Array:
            earlier = jnp.tril(rows @ keys.mT)
            return rows @ state.H + earlier @ weighted + ridge * rows

        solved = _solve(product, queries, tol, steps)
        earlier = jnp.tril(solved @ keys.mT)
        outputs = solved @ state.G + earlier @ (rates * values)

        error = jnp.linalg.norm(queries - product(solved), axis=-1, keepdims=True)
        size = jnp.linalg.norm(queries, axis=-1, keepdims=True)
        residuals = jax.lax.stop_gradient(error / jnp.where(size > 0.0, size, 1.0))

        H = state.H + weighted.mT @ keys
        G = state.G + weighted.mT @ values
        return MesaState(H, G), (outputs, residuals)

    end, (outputs, residuals) = read_chunks(read, start, pairs, chunk_size)
    return outputs.astype(dtype), end, residuals[..., 0]


def _solve(product, rows: Array, tol: float, max_steps: int) -> Array:
    """Returns the rows x with product(x) = rows, each a separate system.

    The systems are symmetric, so the same solver computes the gradients.
    """

    def by_conjugate_gradients(product, rows: Array) -> Array:
        flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
        size = jnp.max(jnp.abs(flat), axis=-1, keepdims=True)
        flat = over(flat, size)  # NaN stays NaN, and reaches the result
        bound = tol**2 * jnp.sum(flat**2, axis=-1)

        def image(flat_rows):
            return product(flat_rows.reshape(rows.shape)).reshape(flat.shape)

        zeros = jnp.zeros_like(flat)
        solved = continue_conjugate_gradient(
            image, zeros, flat, bound=bound, max_steps=max_steps
        )[0]
        return (size * solved).reshape(rows.shape)

    return jax.lax.custom_linear_solve(
        product, rows, by_conjugate_gradients, symmetric=True
    )
