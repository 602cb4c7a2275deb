"""Fast weights: a matrix that learns pairs of keys and values while it reads them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, at_least, checked, one_of, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.descent import Descent
from unroll_jax.energies.blocks import join_rows, split_rows
from unroll_jax.energies.examples import DIM, TOKENS, Example
from unroll_jax.energies.tokens import InputRows, Tokens, no_params, on_tokens
from unroll_jax.numerics import compute_dtype, over, unit_powers
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
    r"""A step of test-time learning towards :math:`W k_i = v_i` for all pairs.

    .. math:: E(W) = \tfrac12 \sum_i |W k_i - v_i|^2 + \tfrac{r}{2} |W|_F^2 .

    ``form="gradient"`` is :math:`W' = W - b \nabla E(W)` with
    :math:`b = step\_size / L`, L an upper bound of :math:`|K|_2^2 + r` that is exact
    for one pair. It never raises E for ``step_size`` in (0, 2]: E is quadratic with
    curvature at most L. For one key of length 1 it is the delta rule,
    :math:`W' = W - b (W k - v) k^T`.

    ``form="proximal"`` is

    .. math:: W' = \arg\min_U E(U) + \tfrac{1}{2 b} |U - W|_F^2
                 = (W + b V^T K) ((1 + b r) I + b K^T K)^{-1}

    with :math:`b = step\_size`. It never raises E for any b > 0, because W itself is
    one of the U. For one pair it is the delta rule at :math:`b / (1 + b |k|^2)`. The
    step changes :math:`W / (1 + b r)` only in the span of the keys. b is cut to
    :math:`16 / (|K|_F^2 eps)`, with the dtype's epsilon. If keys are equal and their
    values are not, the step errs by up to 2e-3 of :math:`|V - K W^T|` in float32.

    Many steps on all pairs converge to ridge regression, the `equilibrium` of this
    layer. `mesa` solves it for every prefix of a sequence. `delta_rule` takes one step
    for each pair of a sequence.

    Args:
      key_dim, value_dim: widths k of the keys and v of the values.
      form: "gradient" or "proximal".
      step_size: a multiple of 1 / L in (0, 2], or b > 0 in units of 1 / key^2.
      ridge: r >= 0, in units of key^2.

    Returns:
      A `Descent` without parameters (None). ``y`` is W (*batch, value_dim, key_dim).
      ``x`` (*batch, n, key_dim + value_dim) holds in each row a key and its value, or
      is an `Anchor` of them that marks the pairs present.

    Source: the gradient form is DeltaNet (Schlag et al. 2021, Yang et al. 2024), the
    proximal one Longhorn (Liu et al. 2024). Both converge to MesaNet (von Oswald et al.
    2025).

    Example:
      >>> import jax
      >>> layer = fast_weights(4, 3)
      >>> pairs = jax.random.normal(jax.random.key(0), (1, 7))
      >>> step = jax.jit(layer.step)
      >>> W = step(None, jax.numpy.zeros((3, 4)), pairs)  # learns one pair
      >>> bool(jax.numpy.allclose(W @ pairs[0, :4], pairs[0, 4:], atol=1e-5))
      True
    """
    in_range = form == "proximal" or step_size <= 2.0
    require(in_range, "step_size", 'be in (0, 2] with form="gradient"', step_size)

    def energy(params: None, tokens: Tokens) -> Float[Array, "*batch"]:
        keys, values = _split_pairs(tokens, key_dim)
        error = keys @ tokens.y.mT - values
        total = 0.5 * jnp.sum(error**2, axis=(-2, -1))
        # Without a ridge squares may overflow, and 0 times infinity is not 0.
        if ridge == 0.0:
            return total
        return total + 0.5 * ridge * jnp.sum(tokens.y**2, axis=(-2, -1))

    def gradient_step(params: None, tokens: Tokens) -> Array:
        keys, values = _split_pairs(tokens, key_dim)
        error = keys @ tokens.y.mT - values
        gradient = error.mT @ keys + ridge * tokens.y
        curvature = _square_norm(keys) + ridge
        # A step over an infinite curvature would be 0, and hide the overflow.
        curvature = jnp.where(curvature < jnp.inf, curvature, jnp.nan)
        return tokens.y - over(step_size * gradient, curvature[..., None, None])

    def proximal_step(params: None, tokens: Tokens) -> Array:
        keys, values = _split_pairs(tokens, key_dim)
        # U minimises |K U^T - V|^2 / 2 + (1 / b + r) |U - W / (1 + b r)|^2 / 2.
        shrunk = tokens.y / (1.0 + step_size * ridge)
        if keys.shape[-2] == 0:
            return shrunk
        error = values - keys @ shrunk.mT
        inverse = damped_inverse(keys, 1.0 / step_size + ridge)
        return shrunk + (inverse @ error).mT

    step = gradient_step if form == "gradient" else proximal_step
    pairs = InputRows("pairs of keys and values", key_dim + value_dim, separate=True)
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
    r"""Reads a sequence with fast weights, by one step and one look-up per pair.

    .. math:: W_t = W_{t-1} - b_t (W_{t-1} k_t - v_t) k_t^T , \qquad o_t = W_t q_t ,

    where b_t is the rate (``form="gradient"``: DeltaNet), or
    :math:`b_t / (1 + b_t |k_t|^2)` (``form="proximal"``: Longhorn). A step never raises
    :math:`|W k_t - v_t|^2` for :math:`b_t |k_t|^2 \le 2`, or for any proximal rate.

    All pairs of a chunk are computed at once, by the WY representation of products of
    :math:`I - b k k^T`. Memory is linear in n.

    Args:
      queries, keys, values: q and k, (*batch, n, k), and v, (*batch, n, v).
      rates: b >= 0, (*batch, n). A rate of 0 leaves a pair out, even if it holds NaN. A
        negative rate is an error if concrete, and NaN if traced.
      form: "gradient" or "proximal".
      chunk_size: pairs computed at once.
      state: W before the first pair. None is 0.

    Returns:
      The outputs o (*batch, n, v), empty for an empty sequence, and W after the last
      pair, in float32 at least. Outputs do not depend on later pairs. From a pair that
      is not finite on they are NaN.

    Source: Yang, Wang, Zhang, Shen, Kim (2024), *Parallelizing Linear Transformers with
    the Delta Rule over Sequence Length*, section 3. The public code (fla) multiplies
    queries by k^(-1/2). Here they enter as they are.

    Example:
      >>> import jax
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 100, 8))
      >>> outputs, W = delta_rule(q, k, v, jax.numpy.ones(100), form="proximal")
      >>> outputs.shape, W.shape
      ((100, 8), (8, 8))
    """
    dtype = values.dtype
    pairs = read_pairs(queries, keys, values, rates)
    queries, keys, values, rates = pairs.arrays
    shape = (*queries.shape[:-2], values.shape[-1], keys.shape[-1])
    check_shape("state", state, shape)
    start = jnp.zeros(shape) if state is None else state

    if form == "proximal":
        rates = rates / (1.0 + rates * jnp.sum(keys**2, axis=-1, keepdims=True))
        pairs = pairs._replace(arrays=(queries, keys, values, rates))
    start = start.mT.astype(values.dtype)
    end, outputs = read_chunks(_read_chunk, start, pairs, chunk_size)
    return outputs.astype(dtype), end.mT


class Pairs(NamedTuple):
    """The pairs of a sequence, checked and free of NaN.

    Attributes:
      arrays: queries, keys, values and rates (*batch, n, 1), in one dtype, with 0 for
        the keys and values of pairs that are not finite.
      broken: (*batch, n, 1), true from the first such pair of a rate other than 0.
    """

    arrays: tuple[Array, Array, Array, Array]
    broken: Array


def read_pairs(queries: Any, keys: Any, values: Any, rates: Any) -> Pairs:
    """Checks queries and keys (*batch, n, k), values (*batch, n, v), rates (*batch, n).

    All become one dtype, float32 at least. Pairs that are not finite are replaced by 0,
    and marked, because 0 times NaN is NaN.
    """
    check_dtype("values", values)  # outputs have this dtype
    tokens = jnp.shape(queries)[:-1]
    shapes = {
        "keys": (keys, jnp.shape(queries)),
        "values": (values, (*tokens, jnp.shape(values)[-1])),
        "rates": (rates, tokens),
    }
    for name, (array, shape) in shapes.items():
        fits = jnp.shape(array) == shape
        require(fits, name, f"have shape {shape}", f"shape {jnp.shape(array)}")
    _check_rates(rates)

    dtype = compute_dtype(queries, keys, values, rates)
    arrays = [jnp.asarray(array, dtype) for array in (queries, keys, values, rates)]
    queries, keys, values, rates = arrays
    rates = jnp.where(rates < 0.0, jnp.nan, rates)[..., None]

    # Keys count as infinite if their squares are.
    square = jnp.sum(keys**2, axis=-1, keepdims=True)
    finite = jnp.isfinite(square) & jnp.all(jnp.isfinite(values), -1, keepdims=True)
    finite = finite & jnp.isfinite(rates)
    broken = jnp.cumsum(~finite & (rates != 0.0), axis=-2) > 0

    keys = jnp.where(finite, keys, 0.0)
    values = jnp.where(finite, values, 0.0)
    rates = jnp.where(jnp.isfinite(rates), rates, 0.0)
    return Pairs((queries, keys, values, rates), broken)


def _check_rates(rates: Any) -> None:
    """Raises ValueError if a rate, when concrete, is negative."""
    if isinstance(rates, Tracer) or not getattr(rates, "is_fully_addressable", True):
        return
    known = np.asarray(rates)
    if np.any(known < 0.0):
        place = tuple(int(i) for i in np.argwhere(known < 0.0)[0])
        require(False, f"rates{list(place)}", "be at least 0", known[place])


def read_chunks(
    read: Callable[[Any, tuple[Array, ...]], tuple[Any, Any]],
    state: Any,
    pairs: Pairs,
    chunk_size: int,
) -> tuple[Any, Any]:
    """Returns the state after the last pair, and the results of all pairs.

    Both are NaN from the first broken pair.

    Args:
      read: ``(state, (queries, keys, values, rates)) -> (state, results)``, of a chunk.
      state: a pytree of arrays (*batch, :, :) before the first pair.
      pairs, chunk_size: the sequence, and how many pairs are read at once.
    """
    count = pairs.broken.shape[-2]
    size = min(chunk_size, max(count, 1))
    chunks = tuple(split_rows(array, size) for array in pairs.arrays)
    end, results = jax.lax.scan(jax.checkpoint(read), state, chunks)

    def join(blocks: Array) -> Array:
        return jnp.where(pairs.broken, jnp.nan, join_rows(blocks, count))

    ever_broken = jnp.any(pairs.broken, axis=-2, keepdims=True)
    end = jax.tree.map(lambda leaf: jnp.where(ever_broken, jnp.nan, leaf), end)
    return end, jax.tree.map(join, results)


def fast_weights_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Gradient steps on five pairs."""
    return fast_weights(DIM, VALUES), *_example(key, batch)


def proximal_fast_weights_example(key: jax.Array, batch: tuple[int, ...]) -> Example:
    """Proximal steps on five pairs, with a ridge."""
    layer = fast_weights(DIM, VALUES, form="proximal", step_size=0.5, ridge=0.1)
    return layer, *_example(key, batch)


def _example(key: jax.Array, batch: tuple[int, ...]) -> tuple[Array, Array]:
    key_y, key_x = jax.random.split(key)
    pairs = jax.random.normal(key_x, (*batch, TOKENS, DIM + VALUES))
    return jax.random.normal(key_y, (*batch, VALUES, DIM)), pairs


def _split_pairs(tokens: Tokens, key_dim: int) -> tuple[Array, Array]:
    return tokens.x[..., :key_dim], tokens.x[..., key_dim:]


def _square_norm(keys: Array) -> Array:
    """Returns an upper bound of |K|_2^2, the Frobenius norm of a Gram matrix of K.

    K K^T and K^T K have the same norm. It takes the smaller one.
    """
    few = keys.shape[-2] <= keys.shape[-1]
    tall = keys.mT if few else keys

    # Squares of products must not over- or underflow.
    down, up = unit_powers(keys, (-2, -1))
    scaled = tall * down
    product = scaled.mT @ scaled
    return norm(product, product.ndim - 2) * up[..., 0, 0] * up[..., 0, 0]


def damped_inverse(
    keys: Float[Array, "*batch n k"], damping: float
) -> Float[Array, "*batch k n"]:
    """Returns (K^T K + damping I)^-1 K^T, from a QR decomposition.

    It decomposes K below sqrt(damping) I, or K^T if there are fewer pairs than columns.
    K^T K would lose twice as many digits.
    """
    few = keys.shape[-2] < keys.shape[-1]
    tall = keys.mT if few else keys
    width = tall.shape[-1]

    root = math.sqrt(damping)
    down, _ = unit_powers(keys, (-2, -1), root)
    scaled = tall * down

    # Less damping than this would change well-conditioned systems by round-off only. In
    # others it would turn round-off into directions that no key has.
    size = jnp.sqrt(jnp.sum(scaled**2, axis=(-2, -1), keepdims=True))
    least = 0.25 * math.sqrt(jnp.finfo(keys.dtype).eps) * jax.lax.stop_gradient(size)
    damped = jnp.maximum(root * down, least) * jnp.eye(width, dtype=keys.dtype)
    Q, R = jnp.linalg.qr(jnp.concatenate([damped, scaled], axis=-2))
    Q_of_keys = Q[..., width:, :]
    inverse = down * jax.scipy.linalg.solve_triangular(R, Q_of_keys.mT)
    return inverse.mT if few else inverse


def _read_chunk(S: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
    """Returns S = W^T (*batch, k, v) after a chunk, and the outputs of the chunk.

    The errors e solve (I + tril(b K K^T, -1)) e = b (V - K S).
    """
    queries, keys, values, rates = chunk
    # solve_triangular adds the unit diagonal.
    system = rates * jnp.tril(keys @ keys.mT, -1)
    errors = jax.scipy.linalg.solve_triangular(
        system, rates * (values - keys @ S), lower=True, unit_diagonal=True
    )
    # A query sees the pairs up to its own.
    earlier = jnp.tril(queries @ keys.mT)
    return S + keys.mT @ errors, queries @ S + earlier @ errors
