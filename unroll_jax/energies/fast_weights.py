"""Fast weights: a matrix that learns pairs of keys and values while it reads them,
as descent on its squared error."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, at_least, checked, one_of, require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, TOKENS, Example
from unroll_jax.energies.tokens import Rows, Tokens, no_params, on_tokens
from unroll_jax.numerics import compute_dtype, over, powers_of_two
from unroll_jax.spectral import norm

__all__ = [
    "delta_rule",
    "fast_weights",
    "fast_weights_example",
    "proximal_fast_weights_example",
]

FORMS = ("gradient", "proximal")
VALUES = 3


@checked(
    key_dim=SIZE,
    value_dim=SIZE,
    form=one_of(FORMS),
    step_size=POSITIVE,
    ridge=at_least(0.0),
)
def fast_weights(
    key_dim: int,
    value_dim: int,
    *,
    form: str = "gradient",
    step_size: float = 1.0,
    ridge: float = 0.0,
) -> Descent:
    r"""A step of test-time learning: the matrix W moves towards pairs
    :math:`W k_i = v_i`.

    .. math:: E(W) = \tfrac12 \sum_i |W k_i - v_i|^2 + \tfrac{r}{2} |W|_F^2 .

    ``form="gradient"`` is :math:`W' = W - b \nabla E(W)` with
    :math:`b = step\_size / L`, L an upper bound of :math:`|K|_2^2 + r` that is exact
    for one pair. It never raises E for ``step_size`` in (0, 2]: E is quadratic with
    curvature at most L. For one key of length 1 it is the delta rule,
    :math:`W' = W - b (W k - v) k^T`.

    ``form="proximal"`` is
    :math:`W' = \arg\min_U E(U) + \tfrac{1}{2 b} |U - W|_F^2 = (W + b V^T K) ((1 + b r) I + b K^T K)^{-1}`
    with :math:`b = step\_size`. It never raises E for any b > 0, as W itself is among
    the U. For one pair it is the delta rule at :math:`b / (1 + b |k|^2)`. What W has
    where no key looks is kept up to a share of :math:`b |K|_2^2` times round-off, 1e-7
    in float32.

    Many steps on all pairs end at ridge regression, `equilibrium` of this layer; `mesa`
    has that for every prefix of a sequence. `delta_rule` has one step a pair for a
    whole sequence.

    Args:
      key_dim, value_dim: widths k of the keys and v of the values.
      form: "gradient" or "proximal".
      step_size: a share of 1 / L in (0, 2], or b > 0 in units of 1 / key^2.
      ridge: r >= 0, in units of key^2.

    Returns:
      A `Descent` without parameters (None). ``y`` is W (*batch, value_dim, key_dim);
      ``x`` (*batch, n, key_dim + value_dim) holds in each row a key and its value, or
      is an `Anchor` of them that marks the pairs present.

    Source: DeltaNet (Schlag et al. 2021; Yang et al. 2024), the gradient form; Longhorn
    (Liu et al. 2024), the proximal one; MesaNet (von Oswald et al. 2025), the end of
    both.

    Example:
      >>> import jax
      >>> layer, pairs = (
      ...     fast_weights(4, 3),
      ...     jax.random.normal(jax.random.key(0), (1, 7)),
      ... )
      >>> W = layer.step(
      ...     None, jax.numpy.zeros((3, 4)), pairs
      ... )  # a full step learns one pair
      >>> bool(jax.numpy.allclose(W @ pairs[0, :4], pairs[0, 4:], atol=1e-5))
      True
    """
    require(
        form == "proximal" or step_size <= 2.0,
        "step_size",
        'be in (0, 2] with form="gradient"',
        step_size,
    )

    def energy(params: None, tokens: Tokens) -> Float[Array, "*batch"]:
        keys, values = _pairs(tokens, key_dim)
        error = jnp.einsum("...vk,...nk->...nv", tokens.y, keys) - values
        total = 0.5 * jnp.sum(error**2, axis=(-2, -1))
        # Without a ridge squares may overflow, and 0 times infinity is not 0.
        return (
            total + 0.5 * ridge * jnp.sum(tokens.y**2, axis=(-2, -1))
            if ridge > 0.0
            else total
        )

    def gradient_step(params: None, tokens: Tokens) -> Array:
        keys, values = _pairs(tokens, key_dim)
        error = jnp.einsum("...vk,...nk->...nv", tokens.y, keys) - values
        gradient = jnp.einsum("...nv,...nk->...vk", error, keys) + ridge * tokens.y
        curvature = _square_norm(keys) + ridge
        curvature = jnp.where(curvature < jnp.inf, curvature, jnp.nan)[..., None, None]
        return tokens.y - over(step_size * gradient, curvature)

    def proximal_step(params: None, tokens: Tokens) -> Array:
        keys, values = _pairs(tokens, key_dim)
        wanted = tokens.y + step_size * jnp.einsum("...nv,...nk->...vk", values, keys)
        system = step_size * jnp.einsum("...nk,...nl->...kl", keys, keys)
        system = system + (1.0 + step_size * ridge) * jnp.eye(
            key_dim, dtype=system.dtype
        )
        return jnp.swapaxes(
            jnp.linalg.solve(system, jnp.swapaxes(wanted, -1, -2)), -1, -2
        )

    step = gradient_step if form == "gradient" else proximal_step
    pairs = Rows("pairs of keys and values", key_dim + value_dim, separate=True)
    return on_tokens(
        no_params, energy, step, dim=key_dim, num_tokens=value_dim, rows=pairs
    )


@checked(form=one_of(FORMS), chunk_size=SIZE)
def delta_rule(
    queries: Float[Array, "*batch n k"],
    keys: Float[Array, "*batch n k"],
    values: Float[Array, "*batch n v"],
    rates: Float[Array, "*batch n"],
    *,
    form: str = "gradient",
    chunk_size: int = 64,
    state: Float[Array, "*batch v k"] | None = None,
) -> tuple[Float[Array, "*batch n v"], Float[Array, "*batch v k"]]:
    r"""Reads a sequence with fast weights: one step of `fast_weights` a pair, then a
    look-up.

    .. math:: W_t = W_{t-1} - b_t (W_{t-1} k_t - v_t) k_t^T , \qquad o_t = W_t q_t ,

    where b_t is the rate (``form="gradient"``: DeltaNet), or
    :math:`b_t / (1 + b_t |k_t|^2)` (``form="proximal"``: Longhorn). A step never raises
    :math:`|W k_t - v_t|^2` for :math:`b_t |k_t|^2 \le 2`, or for any proximal rate.

    Chunks are computed at once by the WY representation of products of
    :math:`I - b k k^T`, in memory linear in n.

    Args:
      queries, keys, values: q and k, (*batch, n, k), and v, (*batch, n, v).
      rates: b >= 0, (*batch, n); 0 leaves a pair out.
      form: "gradient" or "proximal".
      chunk_size: pairs computed at once.
      state: W before the first pair; None is 0.

    Returns:
      The outputs o (*batch, n, v), empty for an empty sequence, and W after the last
      pair, in float32 at least.

    Source: Yang, Wang, Zhang, Shen, Kim (2024), *Parallelizing Linear Transformers with
    the Delta Rule over Sequence Length*, section 3. The public code (fla) multiplies
    queries by k^(-1/2); here they enter as they are.

    Example:
      >>> import jax
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 100, 8))
      >>> outputs, W = delta_rule(q, k, v, jax.numpy.ones(100), form="proximal")
      >>> outputs.shape, W.shape
      ((100, 8), (8, 8))
    """
    check_sequence(queries, keys, values, rates)
    dtype = values.dtype
    queries, keys, values, rates = widened(queries, keys, values, rates)
    wanted = (*queries.shape[:-2], values.shape[-1], queries.shape[-1])
    require(
        state is None or state.shape == wanted,
        "state",
        f"have shape {wanted}",
        getattr(state, "shape", None),
    )
    if form == "proximal":
        rates = rates / (1.0 + rates * jnp.sum(keys**2, axis=-1))
    count, size = queries.shape[-2], min(chunk_size, max(queries.shape[-2], 1))
    chunks = [
        chunked(array, size) for array in (queries, keys, values, rates[..., None])
    ]
    start = jnp.zeros(
        (*queries.shape[:-2], keys.shape[-1], values.shape[-1]), values.dtype
    )
    start = start if state is None else jnp.swapaxes(state, -1, -2).astype(start.dtype)
    end, outputs = jax.lax.scan(jax.checkpoint(_read_chunk), start, tuple(chunks))
    return joined(outputs, count).astype(dtype), jnp.swapaxes(end, -1, -2)


def check_sequence(queries: Any, keys: Any, values: Any, rates: Any) -> None:
    """Checks queries and keys (*batch, n, k), values (*batch, n, v), floating, and
    rates (*batch, n)."""
    check_dtype("values", values)  # which is that of the outputs
    tokens = jnp.shape(queries)[:-1]
    for name, array, shape in (
        ("keys", keys, jnp.shape(queries)),
        ("values", values, (*tokens, jnp.shape(values)[-1])),
        ("rates", rates, tokens),
    ):
        require(
            jnp.shape(array) == shape,
            name,
            f"have shape {shape}",
            f"shape {jnp.shape(array)}",
        )


def fast_weights_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Gradient steps on five pairs."""
    return fast_weights(DIM, VALUES), *_example(key, batch)


def proximal_fast_weights_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Proximal steps on five pairs, with a ridge."""
    return fast_weights(
        DIM, VALUES, form="proximal", step_size=0.5, ridge=0.1
    ), *_example(key, batch)


def _example(key: jax.Array, batch: tuple[int, ...]) -> tuple[Array, Array]:
    key_y, key_x = jax.random.split(key)
    pairs = jax.random.normal(key_x, (*batch, TOKENS, DIM + VALUES))
    return jax.random.normal(key_y, (*batch, VALUES, DIM)), pairs


def _pairs(tokens: Tokens, key_dim: int) -> tuple[Array, Array]:
    return tokens.x[..., :key_dim], tokens.x[..., key_dim:]


def _square_norm(keys: Array) -> Array:
    """An upper bound of |K|_2^2, (*batch,): the Frobenius norm of the smaller Gram
    matrix."""
    few = keys.shape[-2] <= keys.shape[-1]
    # Powers of two bring the keys near 1: the squares of their products neither over-
    # nor underflow.
    down, up = powers_of_two(jnp.max(jnp.abs(keys), axis=(-2, -1), keepdims=True))
    keys = keys * down
    product = jnp.einsum(
        "...nk,...mk->...nm" if few else "...nk,...nl->...kl", keys, keys
    )
    return norm(product, product.ndim - 2) * up[..., 0, 0] * up[..., 0, 0]


def widened(*arrays: Any) -> list[Array]:
    """The arrays in one dtype, float32 at least."""
    dtype = compute_dtype(*arrays)
    return [jnp.asarray(array, dtype) for array in arrays]


def chunked(array: Array, size: int) -> Array:
    """(chunks, *batch, size, width), filled up with zeros."""
    short = -array.shape[-2] % size
    array = jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, short), (0, 0)])
    # Axes of length 0 leave none to be inferred.
    return jnp.moveaxis(
        array.reshape(
            *array.shape[:-2], array.shape[-2] // size, size, array.shape[-1]
        ),
        -3,
        0,
    )


def joined(chunks: Array, count: int) -> Array:
    """The first ``count`` rows of (chunks, *batch, size, width), as (*batch, count,
    width)."""
    number, *batch, size, width = chunks.shape
    return jnp.moveaxis(chunks, 0, -3).reshape(*batch, number * size, width)[
        ..., :count, :
    ]


def _read_chunk(
    S: Array, chunk: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array]:
    """S = W^T (*batch, k, v) after a chunk, and its outputs: errors e solve (I +
    tril(b K K^T, -1)) e = b (V - K S)."""
    queries, keys, values, rates = chunk
    product = rates * jnp.tril(keys @ jnp.swapaxes(keys, -1, -2), -1)
    # solve_triangular takes the unit diagonal as given.
    errors = jax.scipy.linalg.solve_triangular(
        product, rates * (values - keys @ S), lower=True, unit_diagonal=True
    )
    seen = jnp.tril(queries @ jnp.swapaxes(keys, -1, -2))
    return S + jnp.swapaxes(keys, -1, -2) @ errors, queries @ S + seen @ errors
