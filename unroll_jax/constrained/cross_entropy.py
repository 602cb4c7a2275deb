"""Cross-entropy of tokens over a large vocabulary, without all logits at once."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Integer

from unroll_jax.arguments import at_least, checked, require
from unroll_jax.arrays import check_dtype, check_shape, widen_integers
from unroll_jax.numerics import compute_dtype

__all__ = ["chunked_cross_entropy"]


@checked(chunk=at_least(1))
def chunked_cross_entropy(
    hidden: Float[Array, "*layers n d"],
    head: Float[Array, "vocabulary d"],
    labels: Integer[Array, "n"],
    weights: Float[Array, "n"] | None = None,
    *,
    chunk: int = 4096,
    dtype: Any = None,
) -> Float[Array, "*layers n"]:
    r"""The losses of hidden states h under a head w, by layers and parts of the words.

    .. math:: \log \sum_v e^{h \cdot w_v} - h \cdot w_{label}

    At any time there are the logits of ``chunk`` words of one layer, forward and
    backward, where they are recomputed. This takes O(layers n + n chunk) memory besides
    arrays of the shapes of the arguments, for a third more products.

    Let a model record normalised hidden states at the positions that count, and take
    the losses of all layers in one call, which makes the head's gradient once. A call
    in the record itself, in the scan over layers, gives the same for two more arrays of
    the head's shape: autodiff adds them up from layer to layer.

    Args:
      hidden, head: normalised hidden states, of any number of layers; a row for each
        word.
      labels: each position's word to predict, in 0..vocabulary - 1, of any integer
        dtype. Any number at weight 0. A traced one outside gives NaN.
      weights: multiples of each position's loss, at least 0, such as a mask. None is 1.
        A position of weight 0 has loss 0 and no gradient. A traced weight below 0 gives
        NaN.
      chunk: words whose logits are computed at a time, at least 1.
      dtype: of the products' factors, such as bfloat16. None takes hidden's. Sums are
        in float32 or wider.

    Returns:
      The losses, in nats, in float32 at least.

    Raises:
      ValueError: if chunk < 1, shapes do not fit, or a known weight is negative or a
        known counted label out of range.
      TypeError: if hidden states or the head do not hold real numbers, or labels are
        not integers.

    Source: the softmax over parts of Milakov and Gimelshein, "Online normalizer
    calculation for softmax" (2018).

    Example:
      >>> import jax.numpy as jnp
      >>> hidden, head = jnp.zeros((2, 3, 4)), jnp.ones((8, 4))
      >>> chunked_cross_entropy(hidden, head, jnp.array([1, 0, 7]), chunk=3).shape
      (2, 3)
    """
    # Labels are judged as they are given: int64 wraps around in an array of JAX.
    given = labels if isinstance(labels, jax.Array) else np.asarray(labels)
    hidden, head, labels = jnp.asarray(hidden), jnp.asarray(head), jnp.asarray(labels)
    _check(hidden, head, labels, weights)
    scale: Any = np.ones(labels.shape, np.float32) if weights is None else weights
    sound = _check_values(given, scale, len(head))
    labels = labels.astype(jnp.int32)

    dtype = jnp.dtype(hidden.dtype if dtype is None else dtype)
    layers = hidden.reshape(math.prod(hidden.shape[:-2]), *hidden.shape[-2:])
    losses: Any = _losses(layers, head, labels, min(chunk, len(head)), dtype)
    losses = losses.reshape(hidden.shape[:-1])

    factors = jnp.where(sound & ~(scale < 0.0), scale, jnp.nan).astype(losses.dtype)
    return factors * jnp.where(scale == 0.0, 0.0, losses)


def _check(hidden: Array, head: Array, labels: Array, weights: Any) -> None:
    check_dtype("hidden", hidden)
    check_dtype("head", head)
    check_dtype("labels", labels, jnp.integer)
    require(hidden.ndim >= 2, "hidden", "have shape (*layers, n, d)", hidden.shape)
    has_rows = head.ndim == 2 and len(head) > 0
    require(has_rows, "head", "have a row for each word", head.shape)
    dim = hidden.shape[-1]
    require(head.shape[1] == dim, "head", f"have rows of {dim=}", head.shape)
    for name, array in (("labels", labels), ("weights", weights)):
        check_shape(name, array, hidden.shape[-2:-1], ", one a position")


def _check_values(labels: Any, weights: Any, words: int) -> Any:
    """Marks the labels that are words or have the weight 0: every known one must be."""
    if not isinstance(weights, Tracer):
        nonnegative = not np.any(np.asarray(weights) < 0.0)
        require(nonnegative, "weights", "be at least 0", weights)
    labels = widen_integers(labels)
    sound = (labels >= 0) & (labels < words) | (weights == 0.0)
    if not isinstance(sound, Tracer) and not np.all(sound):
        wrong = np.asarray(labels)[~np.asarray(sound)][0]
        raise ValueError(
            f"labels must be in 0..{words - 1}, got {wrong}; give it the weight 0"
        )
    return sound


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _losses(hidden: Array, head: Array, labels: Array, chunk: int, dtype: Any) -> Array:
    return _forward(hidden, head, labels, chunk, dtype)[0]


def _forward(
    hidden: Array, head: Array, labels: Array, chunk: int, dtype: Any
) -> tuple[Array, Any]:
    wide = compute_dtype(dtype)

    def words(number: Array, sums: Any) -> Any:
        part, places = _part(head, number, chunk, dtype)

        def layer(row: Any) -> Any:
            largest, total, right, states = row
            logits = _logits(states, part, places, number, chunk, wide)
            above = jnp.maximum(largest, jnp.max(logits, axis=-1))
            added = jnp.sum(jnp.exp(logits - above[:, None]), axis=-1)
            total = total * jnp.exp(largest - above) + added
            chosen = (places == labels[:, None]) & (places >= number * chunk)
            right = right + jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1)
            return above, total, right

        return jax.lax.map(layer, (*sums, hidden))

    shape = hidden.shape[:-1]
    start = (
        jnp.full(shape, -jnp.inf, wide),
        jnp.zeros(shape, wide),
        jnp.zeros(shape, wide),
    )
    largest, total, right = jax.lax.fori_loop(0, _chunks(head, chunk), words, start)
    normaliser = largest + jnp.log(total)
    return normaliser - right, (hidden, head, labels, normaliser)


def _backward(
    chunk: int, dtype: Any, kept: Any, slopes: Array
) -> tuple[Array, Array, None]:
    hidden, head, labels, normaliser = kept
    wide = compute_dtype(dtype)

    def words(number: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        of_hidden, of_head = gradients
        part, places = _part(head, number, chunk, dtype)

        def layer(row: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
            of_hidden, of_part = gradients
            slope = slopes[row][:, None]
            # left out, also where they are NaN
            states = jnp.where(slope == 0.0, 0.0, hidden[row])
            logits = _logits(states, part, places, number, chunk, wide)
            chances = jnp.exp(logits - normaliser[row][:, None])
            right = (places == labels[:, None]).astype(wide)
            errors = slope * (chances - right)
            counted = (places >= number * chunk) & (slope != 0.0)
            errors = jnp.where(counted, errors, 0.0).astype(dtype)

            states = states.astype(dtype)
            of_part += jnp.matmul(errors.T, states, preferred_element_type=wide)
            of_states = jnp.matmul(errors, part, preferred_element_type=wide)
            # in place; a scan would stack copies
            return of_hidden.at[row].add(of_states), of_part

        of_hidden, of_part = jax.lax.fori_loop(
            0, len(hidden), layer, (of_hidden, jnp.zeros(part.shape, wide))
        )
        start = places[0]
        # the last part takes some words twice, once as 0
        before = jax.lax.dynamic_slice_in_dim(of_head, start, chunk)
        of_head = jax.lax.dynamic_update_slice_in_dim(
            of_head, before + of_part.astype(of_head.dtype), start, 0
        )
        return of_hidden, of_head

    start = (jnp.zeros(hidden.shape, wide), jnp.zeros_like(head))
    of_hidden, of_head = jax.lax.fori_loop(0, _chunks(head, chunk), words, start)
    return of_hidden.astype(hidden.dtype), of_head, None


_losses.defvjp(_forward, _backward)


def _chunks(head: Array, chunk: int) -> int:
    return -(-len(head) // chunk)


def _part(head: Array, number: Array, chunk: int, dtype: Any) -> tuple[Array, Array]:
    """Rows of a part of the head, and their numbers.

    The last part ends with the head, and starts with rows that were seen before.
    """
    start = jnp.minimum(number * chunk, len(head) - chunk)
    rows = jax.lax.dynamic_slice_in_dim(head, start, chunk)
    return rows.astype(dtype), start + jnp.arange(chunk, dtype=jnp.int32)


def _logits(
    states: Array, part: Array, places: Array, number: Array, chunk: int, wide: Any
) -> Array:
    logits = jnp.matmul(states.astype(part.dtype), part.T, preferred_element_type=wide)
    return jnp.where(places >= number * chunk, logits, -jnp.inf)
