"""Greedy text from a causal `LoopedTransformer`, where each token loops until its state is still."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import POSITIVE, at_least, checked, require
from unroll_jax.looped import state_changes
from unroll_jax.models.language.decoder_parts import rms_norm
from unroll_jax.models.language.decoding import KeyValueCache, decode, empty_cache
from unroll_jax.models.language.generation import NO_TOKEN, Answers, Request, appended, latest, requested
from unroll_jax.models.language.sampling import Sampling
from unroll_jax.models.looped_transformer import LoopedTransformer
from unroll_jax.numerics import linear

__all__ = ["LoopedText", "generate_looped"]


class LoopedText(NamedTuple):
    """The answers to a batch of prompts.

    Attributes:
      tokens: of the answers; `NO_TOKEN` behind their ends.
      lengths: tokens of each answer, its stop included.
      stopped: whether it ended with a stop.
      loops: loops that named each token; 0 behind the ends.

    Example: see `generate_looped`.
    """

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]
    loops: Int[Array, "batch max_tokens"]


class _Caches(NamedTuple):
    """Keys and values of the prelude, and of every loop, stacked on a leading axis."""

    prelude: KeyValueCache | None
    loops: KeyValueCache


@checked(max_tokens=at_least(1), loops=at_least(1), threshold=POSITIVE)
def generate_looped(
    model: LoopedTransformer,
    params: Any,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    max_tokens: int,
    loops: int,
    threshold: float,
    stops: Sequence[int] = (),
) -> LoopedText:
    """Answers prompts by the most probable tokens, each until a stop or ``max_tokens``.

    A token stops at the first loop that changes its state by less than ``threshold`` of the state's size, or after
    ``loops``; those behind it see the keys and values of its last loop from then on. A batch loops until its last
    token is still. The cache has keys and values of every loop.

    Args:
      model: causal, with a start of zeros or the prelude.
      params: of the model, without the outer key ``params``.
      prompts: tokens of each, at least one; of any lengths.
      max_tokens: longest answer.
      loops: most loops of a token.
      threshold: positive, such as that of `unroll_jax.looped.exit_threshold`.
      stops: tokens that end an answer, of which they are the last.

    Returns:
      The answers, on the device.

    Raises:
      ValueError, TypeError: naming the argument, its value and the values allowed.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import DecoderConfig
      >>> config = DecoderConfig(50, dim=8, num_layers=1, num_heads=2, num_key_value_heads=1, hidden_dim=16)
      >>> model = LoopedTransformer(config)
      >>> params = model.init(jax.random.key(0), jnp.ones((1, 1), int), loops=1)["params"]
      >>> text: LoopedText = generate_looped(model, params, [[5, 6, 7], [8]], max_tokens=4, loops=6, threshold=0.1)
      >>> text.tokens.shape, bool((text.loops <= 6).all())
      ((2, 4), True)
    """
    require(model.causal, "model", "be causal", "causal=False")
    require(model.start != "noise", "model.start", 'be "zeros" or "prelude"', model.start)
    request = requested(model.config, prompts, max_tokens, stops=stops, sampling=Sampling(0.0, None, None))
    return _generate(model, params, request, jnp.float32(threshold), max_tokens=max_tokens, loops=loops)


@functools.partial(jax.jit, static_argnames=("model", "max_tokens", "loops"))
def _generate(
    model: LoopedTransformer, params: Any, request: Request, threshold: Array, *, max_tokens: int, loops: int
) -> LoopedText:
    compute = jnp.dtype(model.param_dtype if model.dtype is None else model.dtype)
    params = jax.tree.map(lambda leaf: leaf.astype(compute), params)
    batch, length = request.tokens.shape
    room = functools.partial(empty_cache, batch=batch, capacity=length + max_tokens, dtype=compute)
    one = room(model.config)
    prelude = room(_of_prelude(model)) if model.prelude_layers else None
    caches = _Caches(prelude, jax.tree.map(lambda leaf: jnp.zeros((loops, *leaf.shape), compute), one))
    named, taken, caches = _named(model, params, request.tokens, request.places, caches, threshold)
    ends = (request.lengths - 1)[:, None]
    none = Answers(
        jnp.full((batch, max_tokens), NO_TOKEN, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool)
    )
    ones = jnp.ones_like(none.lengths)

    def with_token(answers: Answers, counts: Array, named: Array, taken: Array) -> tuple[Answers, Array]:
        after = appended(answers, named, ones, request.stops)
        slots = jnp.where(after.lengths > answers.lengths, answers.lengths, max_tokens)
        return after, counts.at[jnp.arange(batch), slots].set(taken[:, 0], mode="drop")

    def step(state: tuple[Answers, Array, _Caches]) -> tuple[Answers, Array, _Caches]:
        answers, counts, caches = state
        tokens, places = latest(answers, request)
        named, taken, caches = _named(model, params, tokens[:, None], places[:, None], caches, threshold)
        return *with_token(answers, counts, named, taken), caches

    first = (jnp.take_along_axis(part, ends, axis=1) for part in (named, taken))
    start = (*with_token(none, jnp.zeros_like(none.tokens), *first), caches)
    answers, counts, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[0].done), step, start)
    return LoopedText(*answers, counts)


def _of_prelude(model: LoopedTransformer) -> Any:
    return dataclasses.replace(model.config, num_layers=model.prelude_layers)


def _named(
    model: LoopedTransformer,
    params: Any,
    tokens: Int[Array, "batch n"],
    places: Int[Array, "batch n"],
    caches: _Caches,
    threshold: Float[Array, ""],
) -> tuple[Int[Array, "batch n"], Int[Array, "batch n"], _Caches]:
    """The most probable token behind each of some tokens, their loops, and caches that have them.

    Tokens at negative places are none.
    """
    config, most = model.config, caches.loops.keys.shape[0]
    rows, prelude = jnp.arange(tokens.shape[0])[:, None], caches.prelude
    slots = jnp.where(places < 0, caches.loops.keys.shape[-2], places)
    e = params["embedding"][tokens]
    if prelude is not None:
        e, prelude = decode(_of_prelude(model), {"layers": params["prelude"]}, e, prelude, places)
    e = rms_norm(e, jnp.ones(config.dim, e.dtype), config.norm_epsilon)

    def with_last(now: Array, before: Array) -> Array:
        """Tokens that are still show the keys or values of the loop before; the others will be overwritten."""
        return now.at[:, rows, :, slots].set(before[:, rows, :, slots], mode="drop")

    def moves(state: Any) -> Array:
        return jnp.any(state[3]) & (state[4] < most)

    def loop(state: Any) -> Any:
        h, stack, taken, moving, number = state
        now, before = (jax.tree.map(lambda leaf, at=at: leaf[at], stack) for at in (number, number - 1))
        cache = jax.tree.map(with_last, now, before)
        mixed = linear(jnp.concatenate([h, e], axis=-1), params["injection"]["kernel"])
        y, cache = decode(config, {"layers": params["layers"]}, mixed, cache, jnp.where(moving, places, -1))
        y = rms_norm(y, params["norm"]["scale"], config.norm_epsilon)
        change = state_changes(jnp.stack([h, y]), batch_ndim=2)[0]
        stack = jax.tree.map(lambda leaf, new: leaf.at[number].set(new), stack, cache)
        return jnp.where(moving[..., None], y, h), stack, taken + moving, moving & ~(change < threshold), number + 1

    h = jnp.zeros_like(e) if model.start == "zeros" else e
    start = (h, caches.loops, jnp.zeros(tokens.shape, jnp.int32), places >= 0, jnp.int32(0))
    h, stack, taken, _, number = jax.lax.while_loop(moves, loop, start)

    def filled(leaf: Array) -> Array:
        """Loops that were not needed have the keys or values of the last one."""
        written = leaf[:, :, rows, :, slots]  # (batch, n, loops, ...)
        last = jnp.take(written, jnp.minimum(jnp.arange(most), number - 1), axis=2)
        return leaf.at[:, :, rows, :, slots].set(last, mode="drop")

    head = params.get("head", params)["embedding"]
    logits = jnp.matmul(h, head.T, preferred_element_type=jnp.promote_types(h.dtype, jnp.float32))
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), taken, _Caches(prelude, jax.tree.map(filled, stack))
