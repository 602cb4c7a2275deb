"""Self-speculative decoding: the first layers draft tokens, the others verify them, on one cache."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from unroll_jax.arguments import check, checked, in_interval
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.decoding import decode, empty_cache
from unroll_jax.models.language.exit_adapters import (
    DraftHead,
    ExitAdapter,
    check_adapter,
    decode_adapted,
    draft_head,
    draft_logits,
)
from unroll_jax.models.language.generation import Answers, Request, answered, embedded, latest, requested
from unroll_jax.models.language.sampling import Sampling, Stream, log_probabilities, next_tokens
from unroll_jax.models.language.verification import Caches, Draft, Speculated, Unread, draft_and_verify

__all__ = ["check_draft", "speculate"]


@checked()
def speculate(
    config: DecoderConfig,
    params: Any,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    exit_layer: int,
    draft_length: int,
    max_tokens: int,
    adapter: ExitAdapter | None = None,
    stops: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    noise: float = 0.0,
    key: jax.Array | None = None,
    dtype: Any = None,
) -> Speculated:
    """Answers prompts as `generate` does, several tokens in each call of the model.

    The first ``exit_layer`` layers, read out by the norm and head that all layers share, draft ``draft_length`` tokens
    one by one. The other layers take the outputs of the exit layer at all of them in one call: no layer is computed
    twice for a token. A greedy answer is that of `generate`, but for round-off; a sampled one has the same
    distribution. One program serves all exit layers.

    Args:
      config: of the decoder.
      params: of a `Decoder`, without the outer key ``params``.
      prompts: see `generate`.
      exit_layer: number of layers that draft, from 1 to num_layers - 1.
      draft_length: tokens drafted before a verification, at least 1.
      adapter: between the exit layer and the draft's norm and head, see `exit_adapter`; None reads the layer itself.
      max_tokens, stops, noise, key, dtype: as in `generate`; noise of a position is the same as there.
      temperature, top_k, top_p: of draft and verification, see `Sampling`.

    Returns:
      The answers, on the device, and statistics of their drafts.

    Raises:
      ValueError, TypeError: naming the argument, its value and the values allowed.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.3; Leviathan, Kalman, Matias, "Fast inference from
    transformers via speculative decoding" (2023), algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> config = DecoderConfig(50, dim=8, num_layers=2, num_heads=2, num_key_value_heads=2, hidden_dim=16)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.ones((1, 1), int))["params"]
      >>> options = {"exit_layer": 1, "draft_length": 2, "max_tokens": 4}
      >>> answers: Speculated = speculate(config, params, [[5, 6, 7], [8]], **options)
      >>> answers.lengths.tolist(), bool((answers.accepted <= answers.drafted).all())
      ([4, 4], True)
    """
    check_draft(config, exit_layer, draft_length)
    if adapter is not None:
        check_adapter(config, adapter)
    sampling = Sampling(temperature, top_k, top_p)
    request = requested(config, prompts, max_tokens, stops=stops, sampling=sampling, noise=noise, key=key)
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    sizes = {"draft_length": draft_length, "max_tokens": max_tokens}
    return _speculate(config, params, request, jnp.int32(exit_layer), adapter, **sizes, sampling=sampling, dtype=dtype)


def check_draft(config: DecoderConfig, exit_layer: int, draft_length: int) -> None:
    """Checks that a decoder can have an exit layer and a draft length."""
    check("exit_layer", exit_layer, in_interval(f"[1, num_layers={config.num_layers})"))
    check("draft_length", draft_length, in_interval(f"[1, max_positions={config.max_positions})"))


@functools.partial(jax.jit, static_argnames=("config", "draft_length", "max_tokens", "sampling", "dtype"))
def _speculate(
    config: DecoderConfig,
    params: Any,
    request: Request,
    exit_layer: Int[Array, ""],
    adapter: ExitAdapter | None,
    *,
    draft_length: int,
    max_tokens: int,
    sampling: Sampling,
    dtype: Any,
) -> Speculated:
    options = {"max_tokens": max_tokens, "sampling": sampling, "dtype": dtype}
    head, adapter_cache = draft_head(params, adapter), None
    split = None if adapter is None else exit_layer
    answers, cache, states = answered(config, params, request, exit_layer=split, **options)
    if adapter is not None and states is not None:
        batch, capacity = cache.keys.shape[1], cache.keys.shape[3]
        adapter_cache = empty_cache(dataclasses.replace(config, num_layers=1), batch, capacity, dtype)
        _, adapter_cache = decode_adapted(config, adapter, states, adapter_cache, request.places)

    def draft(answers: Answers, places: Array, caches: Caches) -> tuple[Draft, Caches]:
        drafter = _Drafter(config, params, adapter, head, request, exit_layer, sampling, dtype)
        return _drafted(drafter, latest(answers, request)[0], places, caches)

    none = Unread(jnp.zeros((len(request.lengths), 1, config.dim), dtype), jnp.full((len(request.lengths), 1), -1))
    start = (answers, Caches(cache, adapter_cache, none))
    sizes = {"first": exit_layer, "draft_length": draft_length}
    return draft_and_verify(config, params, request, start, draft, **sizes, sampling=sampling)


class _Drafter(NamedTuple):
    config: DecoderConfig
    params: Any
    adapter: ExitAdapter | None
    head: DraftHead
    request: Request
    exit_layer: Int[Array, ""]
    sampling: Sampling
    dtype: Any

    def exit_states(self, tokens: Array, places: Array, caches: Caches) -> tuple[Array, Caches]:
        """Outputs of the exit layer, (batch, 1, dim)."""
        y = embedded(self.params, tokens[:, None], places, self.request, self.dtype)
        y, cache = decode(self.config, self.params, y, caches.decoder, places, last=self.exit_layer)
        return y, caches._replace(decoder=cache)

    def adapted(self, y: Array, places: Array, caches: Caches) -> tuple[Array, Caches]:
        """Output of the adapter at the last of some places, (batch, dim)."""
        if self.adapter is None or caches.adapter is None:
            return y[:, -1], caches
        y, cache = decode_adapted(self.config, self.adapter, y, caches.adapter, places)
        return y[:, -1], caches._replace(adapter=cache)

    def following(self, y: Array, places: Array) -> tuple[Array, Array | None]:
        """Tokens for positions, and the logarithms of the probabilities that they were drawn with."""
        logits = draft_logits(self.config, self.head, y)
        drawn = next_tokens(logits, self.sampling, self.request.keys, places, Stream.DRAFT)
        logs = None if self.sampling.greedy else log_probabilities(logits, self.sampling)
        words = None if self.adapter is None else self.adapter.words
        if words is None:
            return drawn, logs
        if logs is not None:
            everywhere = jnp.full((len(logs), self.config.vocabulary_size), -jnp.inf, logs.dtype)
            logs = everywhere.at[:, words].set(logs)
        return words[drawn], logs


def _drafted(
    drafter: _Drafter, tokens: Int[Array, "batch"], places: Int[Array, "batch d_and_one"], caches: Caches
) -> tuple[Draft, Caches]:
    """Tokens behind the last ones, by the first layers. The last is run through them too: it may be accepted.

    The adapter reads that one in the next draft, together with the token behind it.
    """

    def read(y: Array, at: Array, place: Array, caches: Caches) -> tuple[tuple[Array, Any], Caches]:
        adapted, caches = drafter.adapted(y, at, caches)
        return drafter.following(adapted, place + 1), caches

    def step(state: tuple[Array, Caches], place: Array) -> tuple[tuple[Array, Caches], Any]:
        tokens, caches = state
        y, caches = drafter.exit_states(tokens, place[:, None], caches)
        (following, logs), caches = read(y, place[:, None], place, caches)
        return (following, caches), (y[:, 0], following, logs)

    first, unread = places[:, :1], caches.unread
    assert unread is not None
    y, caches = drafter.exit_states(tokens, first, caches)
    stood = jnp.where(unread.places == first - 1, unread.places, -1)
    both = (jnp.concatenate([unread.states, y], axis=1), jnp.concatenate([stood, first], axis=1))
    (following, logs), caches = read(*both, places[:, 0], caches)
    (last, caches), rest = jax.lax.scan(step, (following, caches), places[:, 1:-1].T)
    states, drafted, logs = jax.tree.map(
        lambda one, more: jnp.concatenate([one[:, None], jnp.swapaxes(more, 0, 1)], axis=1),
        (y[:, 0], following, logs),
        rest,
    )
    y, caches = drafter.exit_states(last, places[:, -1:], caches)
    caches = caches._replace(unread=Unread(y, places[:, -1:]))
    return Draft(jnp.concatenate([states, y], axis=1), drafted, logs), caches
