"""Prompt look-up decoding: drafts are copied from the prompt and the answer so far, and no layer is run for them."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from unroll_jax.arguments import at_least, check, checked
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.generation import Answers, Request, answered, embedded, latest, requested
from unroll_jax.models.language.sampling import Sampling
from unroll_jax.models.language.speculative import check_draft
from unroll_jax.models.language.verification import Caches, Draft, Speculated, draft_and_verify

__all__ = ["copied", "prompt_lookup"]


@checked()
def prompt_lookup(
    config: DecoderConfig,
    params: Any,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    draft_length: int,
    max_tokens: int,
    longest_match: int = 3,
    stops: Sequence[int] = (),
    dtype: Any = None,
) -> Speculated:
    """Answers prompts as greedy `generate` does, with drafts that followed the last tokens where they stood before.

    Args:
      config, params, prompts, max_tokens, stops, dtype: see `generate`.
      draft_length: tokens drafted before a verification by all layers, at least 1.
      longest_match: last tokens that are compared at most; the place with the longest match is taken, and the latest of
        several.

    Returns:
      The answers, and statistics of their drafts, as of `speculate`.

    Raises:
      ValueError, TypeError: naming the argument, its value and the values allowed.

    Source: Saxena, "Prompt lookup decoding" (2023), which takes the first of several places.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> config = DecoderConfig(50, dim=8, num_layers=2, num_heads=2, num_key_value_heads=2, hidden_dim=16)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.ones((1, 1), int))["params"]
      >>> prompt_lookup(config, params, [[5, 6, 7], [8]], draft_length=2, max_tokens=4).lengths.tolist()
      [4, 4]
    """
    check_draft(config, 1, draft_length)
    check("longest_match", longest_match, at_least(1))
    request = requested(config, prompts, max_tokens, stops=stops, sampling=Sampling())
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    sizes = {"draft_length": draft_length, "max_tokens": max_tokens, "longest_match": longest_match}
    return _lookup(config, params, request, **sizes, dtype=dtype)


def copied(
    text: Int[Array, "batch n"], ends: Int[Array, "batch"], draft_length: int, longest_match: int
) -> Int[Array, "batch d"]:
    """Tokens that followed an earlier place where the text had its last tokens; from the end on they repeat.

    Args:
      text: tokens, of which those behind ``ends`` do not count.
      ends: position of the last token of each text.
      draft_length: tokens wanted.
      longest_match: last tokens that are compared at most.
    """
    places = jnp.arange(text.shape[1])
    matching = jnp.broadcast_to(places < ends[:, None], text.shape)
    lengths = jnp.zeros_like(text)
    for back in range(longest_match):
        last = jnp.take_along_axis(text, jnp.maximum(ends - back, 0)[:, None], axis=1)
        there = jnp.roll(text, back, axis=1) == last
        matching &= there & (places >= back)
        lengths += matching
    place = jnp.argmax(lengths * text.shape[1] + places * (places < ends[:, None]), axis=1)
    period = jnp.maximum(ends - place, 1)[:, None]
    return jnp.take_along_axis(text, place[:, None] + 1 + jnp.arange(draft_length) % period, axis=1)


@functools.partial(jax.jit, static_argnames=("config", "draft_length", "max_tokens", "longest_match", "dtype"))
def _lookup(
    config: DecoderConfig,
    params: Any,
    request: Request,
    *,
    draft_length: int,
    max_tokens: int,
    longest_match: int,
    dtype: Any,
) -> Speculated:
    greedy = Sampling()
    answers, cache, _ = answered(config, params, request, max_tokens=max_tokens, sampling=greedy, dtype=dtype)
    rows, room = jnp.arange(len(request.lengths))[:, None], jnp.arange(max_tokens)
    prompts = jnp.pad(request.tokens, ((0, 0), (0, max_tokens)))

    def draft(answers: Answers, places: Array, caches: Caches) -> tuple[Draft, Caches]:
        text = prompts.at[rows, request.lengths[:, None] + room].set(answers.tokens)
        tokens = copied(text, places[:, 0], draft_length, longest_match)
        both = jnp.concatenate([latest(answers, request)[0][:, None], tokens], axis=1)
        return Draft(embedded(params, both, places, request, dtype), tokens, None), caches

    return draft_and_verify(
        config, params, request, (answers, Caches(cache)), draft, first=0, draft_length=draft_length, sampling=greedy
    )
