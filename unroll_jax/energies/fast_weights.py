"""Fast weights: a matrix that learns pairs of keys and values while it reads them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, SIZE, at_least, checked, one_of, require
from unroll_jax.arrays import check_dtype, check_shape
from unroll_jax.descent import Descent
from unroll_jax.energies.examples import DIM, TOKENS, Example
from unroll_jax.energies.tokens import InputRows, Tokens, no_params, on_tokens
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
    r"""A step of test-time learning: W moves towards the pairs :math:`W k_i = v_i`.

    .. math:: E(W) = \tfrac12 \sum_i |W k_i - v_i|^2 + \tfrac{r}{2} |W|_F^2 .

    ``form="gradient"`` is :math:`W' = W - b \nabla E(W)` with
    :math:`b = step\_size / L`, L an upper bound of :math:`|K|_2^2 + r` that is exact
    for one pair. It never raises E for ``step_size`` in (0, 2]: E is quadratic with
    curvature at most L. For one key of length 1 it is the delta rule,
    :math:`W' = W - b (W k - v) k^T`.

    ``form="proximal"`` is

    .. math:: W' = \arg\min_U E(U) + \tfrac{1}{2 b} |U - W|_F^2
                 = (W + b V^T K) ((1 + b r) I + b K^T K)^{-1}

    with :math:`b = step\_size`. It never raises E for any b > 0, as W itself is among
    the U. For one pair it is the delta rule at :math:`b / (1 + b |k|^2)`. The step is
    computed as a change of :math:`W / (1 + b r)` within the span of the keys: what W
    has where no key looks is kept. The change is that of b at most
    :math:`16 / (|K|_F^2 eps)`, with the dtype's epsilon. Where keys are equal and their
    values are not, it errs by up to 2e-3 of :math:`|V - K W^T|` in float32.

    Many steps on all pairs end at ridge regression, `equilibrium` of this layer. `mesa`
    solves it for every prefix of a sequence. `delta_rule` takes one step per pair of a
    whole sequence.

    Args:
      key_dim, value_dim: widths k of the keys and v of the values.
      form: "gradient" or "proximal".
      step_size: a multiple of 1 / L in (0, 2], or b > 0 in units of 1 / key^2.
      ridge: r >= 0, in units of key^2.

    Returns:
      A `Descent` without parameters (None). ``y`` is W (*batch, value_dim, key_dim).
      ``x`` (*batch, n, key_dim + value_dim) holds in each row a key and its value, or
      is an `Anchor` of them that marks the pairs present.

    Source: DeltaNet (Schlag et al. 2021; Yang et al. 2024), the gradient form; Longhorn
    (Liu et al. 2024), the proximal one; MesaNet (von Oswald et al. 2025), the end of
    both.

    Example:
      >>> import jax
      >>> layer = fast_weights(4, 3)
      >>> pairs = jax.random.normal(jax.random.key(0), (1, 7))
      >>> W = layer.step(None, jax.numpy.zeros((3, 4)), pairs)  # learns one pair
      >>> bool(jax.numpy.allclose(W @ pairs[0, :4], pairs[0, 4:], atol=1e-5))
      True
    """
    in_range = form == "proximal" or step_size <= 2.0
    require(in_range, "step_size", 'be in (0, 2] with form="gradient"', step_size)

    def energy(params: None, tokens: Tokens) -> Float[Array, "*batch"]:
        keys, values = _split_pairs(tokens, key_dim)
        error = jnp.einsum("...vk,...nk->...nv", tokens.y, keys) - values
        total = 0.5 * jnp.sum(error**2, axis=(-2, -1))
        # Without a ridge squares may overflow, and 0 times infinity is not 0.
        if ridge == 0.0:
            return total
        return total + 0.5 * ridge * jnp.sum(tokens.y**2, axis=(-2, -1))

    def gradient_step(params: None, tokens: Tokens) -> Array:
        keys, values = _split_pairs(tokens, key_dim)
        error = jnp.einsum("...vk,...nk->...nv", tokens.y, keys) - values
        gradient = jnp.einsum("...nv,...nk->...vk", error, keys) + ridge * tokens.y
        curvature = _square_norm(keys) + ridge
        curvature = jnp.where(curvature < jnp.inf, curvature, jnp.nan)[..., None, None]
        return tokens.y - over(step_size * gradient, curvature)

    def proximal_step(params: None, tokens: Tokens) -> Array:
        keys, values = _split_pairs(tokens, key_dim)
        # The minimiser of |K U^T - V|^2 / 2 + (1 / b + r) |U - W / (1 + b r)|^2 / 2.
        kept = tokens.y / (1.0 + step_size * ridge)
        if keys.shape[-2] == 0:
            return kept
        error = values - jnp.einsum("...vk,...nk->...nv", kept, keys)
        inverse = damped_inverse(keys, 1.0 / step_size + ridge)
        return kept + jnp.einsum("...kn,...nv->...vk", inverse, error)

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
    r"""Reads a sequence with fast weights: a step of `fast_weights` and a look-up per
    pair.

    .. math:: W_t = W_{t-1} - b_t (W_{t-1} k_t - v_t) k_t^T , \qquad o_t = W_t q_t ,

    where b_t is the rate (``form="gradient"``: DeltaNet), or
    :math:`b_t / (1 + b_t |k_t|^2)` (``form="proximal"``: Longhorn). A step never raises
    :math:`|W k_t - v_t|^2` for :math:`b_t |k_t|^2 \le 2`, or for any proximal rate.

    Chunks are computed at once by the WY representation of products of
    :math:`I - b k k^T`, in memory linear in n.

    Args:
      queries, keys, values: q and k, (*batch, n, k), and v, (*batch, n, v).
      rates: b >= 0, (*batch, n). A rate of 0 leaves a pair out, whatever it holds, NaN
        too. A negative one is an error, and NaN where it is traced.
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
    batch, count = queries.shape[:-2], queries.shape[-2]
    wanted = (*batch, values.shape[-1], keys.shape[-1])
    check_shape("state", state, wanted)

    if form == "proximal":
        rates = rates / (1.0 + rates * jnp.sum(keys**2, axis=-1, keepdims=True))
    size = min(chunk_size, max(count, 1))
    chunks = [split_chunks(array, size) for array in (queries, keys, values, rates)]
    if state is None:
        start = jnp.zeros((*batch, keys.shape[-1], values.shape[-1]), values.dtype)
    else:
        start = jnp.swapaxes(state, -1, -2).astype(values.dtype)
    end, outputs = jax.lax.scan(jax.checkpoint(_read_chunk), start, tuple(chunks))
    outputs = jnp.where(pairs.broken, jnp.nan, join_chunks(outputs, count))
    end = pairs.mark(jnp.swapaxes(end, -1, -2))
    return outputs.astype(dtype), end


class Pairs(NamedTuple):
    """Pairs of a sequence as they are computed with.

    Attributes:
      arrays: queries, keys, values and rates (*batch, n, 1), in one dtype, with 0 for
        the keys and values of pairs that are not finite.
      broken: (*batch, n, 1), true from the first such pair of a rate other than 0.
    """

    arrays: tuple[Array, Array, Array, Array]
    broken: Array

    def mark(self, state: Array) -> Array:
        """Returns a state after the last pair, NaN if one was not finite."""
        return jnp.where(jnp.any(self.broken, axis=-2, keepdims=True), jnp.nan, state)


def read_pairs(queries: Any, keys: Any, values: Any, rates: Any) -> Pairs:
    """Checks queries and keys (*batch, n, k), values (*batch, n, v), rates (*batch, n).

    All become one dtype, float32 at least. Products with 0 would not keep out a NaN:
    pairs that are not finite are left out, and marked.
    """
    check_dtype("values", values)  # which is that of the outputs
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
    # Keys whose squares overflow have no products.
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


def _split_pairs(tokens: Tokens, key_dim: int) -> tuple[Array, Array]:
    return tokens.x[..., :key_dim], tokens.x[..., key_dim:]


def _square_norm(keys: Array) -> Array:
    """An upper bound of |K|_2^2, (*batch,).

    It is the Frobenius norm of the smaller Gram matrix.
    """
    few = keys.shape[-2] <= keys.shape[-1]
    # Powers of two bring the keys near 1: the squares of their products neither over-
    # nor underflow.
    down, up = powers_of_two(jnp.max(jnp.abs(keys), axis=(-2, -1), keepdims=True))
    keys = keys * down
    product = jnp.einsum(
        "...nk,...mk->...nm" if few else "...nk,...nl->...kl", keys, keys
    )
    return norm(product, product.ndim - 2) * up[..., 0, 0] * up[..., 0, 0]


def damped_inverse(
    keys: Float[Array, "*batch n k"], damping: float
) -> Float[Array, "*batch k n"]:
    """Returns (K^T K + damping I)^-1 K^T, from a QR decomposition.

    The decomposition of K, or of K^T if there are fewer pairs than columns, below
    sqrt(damping) I has half the digits of K^T K to lose.
    """
    few = keys.shape[-2] < keys.shape[-1]
    tall = jnp.swapaxes(keys, -1, -2) if few else keys
    width = tall.shape[-1]

    # A power of two brings keys and damping near 1: squares do not overflow.
    root = math.sqrt(damping)
    largest = jnp.max(jnp.abs(keys), axis=(-2, -1), keepdims=True)
    down, _ = powers_of_two(jnp.maximum(largest, root))
    scaled = tall * down

    # Less damping than this changes well-conditioned systems by round-off only. In the
    # others it would turn round-off into directions that no key has.
    size = jnp.sqrt(jnp.sum(scaled**2, axis=(-2, -1), keepdims=True))
    least = 0.25 * math.sqrt(jnp.finfo(keys.dtype).eps) * jax.lax.stop_gradient(size)
    damped = jnp.maximum(root * down, least) * jnp.eye(width, dtype=keys.dtype)
    Q, R = jnp.linalg.qr(jnp.concatenate([damped, scaled], axis=-2))
    of_keys = jnp.swapaxes(Q[..., width:, :], -1, -2)
    inverse = down * jax.scipy.linalg.solve_triangular(R, of_keys)
    return jnp.swapaxes(inverse, -1, -2) if few else inverse


def split_chunks(array: Array, size: int) -> Float[Array, "chunks *batch size width"]:
    """Cuts a sequence (*batch, n, width) into chunks, the last filled up with zeros."""
    *batch, count, width = array.shape
    short = -count % size
    padding = [(0, 0)] * len(batch) + [(0, short), (0, 0)]
    # The number of chunks is given: axes of length 0 leave none to be inferred.
    shape = (*batch, (count + short) // size, size, width)
    return jnp.moveaxis(jnp.pad(array, padding).reshape(shape), -3, 0)


def join_chunks(chunks: Array, count: int) -> Float[Array, "*batch count width"]:
    """Joins chunks (chunks, *batch, size, width) to a sequence of ``count`` rows."""
    number, *batch, size, width = chunks.shape
    joined = jnp.moveaxis(chunks, 0, -3).reshape(*batch, number * size, width)
    return joined[..., :count, :]


def _read_chunk(
    S: Array, chunk: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array]:
    """Returns S = W^T (*batch, k, v) after a chunk, and the outputs of the chunk.

    The errors e solve (I + tril(b K K^T, -1)) e = b (V - K S).
    """
    queries, keys, values, rates = chunk
    product = rates * jnp.tril(keys @ jnp.swapaxes(keys, -1, -2), -1)
    # solve_triangular takes the unit diagonal as given.
    errors = jax.scipy.linalg.solve_triangular(
        product, rates * (values - keys @ S), lower=True, unit_diagonal=True
    )
    seen = jnp.tril(queries @ jnp.swapaxes(keys, -1, -2))
    return S + jnp.swapaxes(keys, -1, -2) @ errors, queries @ S + seen @ errors
