"""Self-speculative decoding: the first layers draft tokens, the others verify them.

They share one cache.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from unroll_jax.arguments import check, in_interval
from unroll_jax.models.language.decoder import decoder_logits
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.decoding import KeyValueCache, decode
from unroll_jax.models.language.generation import (
    Answers,
    Generated,
    Request,
    append_tokens,
    check_logits,
    embed_tokens,
    last_tokens,
    make_request,
    promote_params,
    start_answers,
)
from unroll_jax.models.language.sampling import (
    Sampling,
    Stream,
    log_probabilities,
    next_tokens,
)
from unroll_jax.models.language.verification import Draft, verify

__all__ = ["check_draft", "speculate"]


def speculate(
    config: DecoderConfig,
    params: Any,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    exit_layer: int,
    draft_length: int,
    max_tokens: int,
    stops: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    noise: float = 0.0,
    key: jax.Array | None = None,
    dtype: Any = None,
) -> Generated:
    """Answers prompts as `generate` does, several tokens in each call of the model.

    The first ``exit_layer`` layers, read out by the norm and head that all layers
    share, draft ``draft_length`` tokens one by one. The other layers take the outputs
    of the exit layer at all of them in one call: no layer is computed twice for a
    token. A greedy answer equals `generate`'s up to round-off. A sampled one has the
    same distribution. One program serves all exit layers.

    Args:
      config, params, prompts: as in `generate`.
      exit_layer: number of layers that draft, from 1 to num_layers - 1.
      draft_length: tokens drafted before a verification, at least 1.
      max_tokens, stops, noise, key, dtype: as in `generate`. Noise of a position is the
        same as there.
      temperature, top_k, top_p: of draft and verification, see `Sampling`.

    Returns:
      The answers, on the device, and statistics of their drafts.

    Raises:
      ValueError: as `generate` does.

    Source: Elhoushi et al., "LayerSkip" (2024), section 4.3. Leviathan, Kalman, Matias,
    "Fast inference from transformers via speculative decoding" (2023), algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}
      >>> config = DecoderConfig(50, num_key_value_heads=2, **sizes)
      >>> tokens = jnp.ones((1, 1), int)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), tokens)["params"]
      >>> options = {"exit_layer": 1, "draft_length": 2, "max_tokens": 4}
      >>> answers: Generated = speculate(config, params, [[5, 6, 7], [8]], **options)
      >>> answers.lengths.tolist(), bool((answers.accepted <= answers.drafted).all())
      ([4, 4], True)
    """
    check_draft(config, exit_layer, draft_length)
    sampling = Sampling(temperature, top_k, top_p)
    request = make_request(
        config,
        prompts,
        max_tokens,
        stops=stops,
        sampling=sampling,
        noise=noise,
        key=key,
    )
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    generated = _speculate(
        config,
        params,
        request,
        jnp.int32(exit_layer),
        draft_length=draft_length,
        max_tokens=max_tokens,
        sampling=sampling,
        dtype=dtype,
    )
    return check_logits(generated)


def check_draft(config: DecoderConfig, exit_layer: int, draft_length: int) -> None:
    """Checks that a decoder can have an exit layer and a draft length."""
    check("exit_layer", exit_layer, in_interval(f"[1, num_layers={config.num_layers})"))
    shorter = in_interval(f"[1, max_positions={config.max_positions})")
    check("draft_length", draft_length, shorter)


@functools.partial(
    jax.jit,
    static_argnames=("config", "draft_length", "max_tokens", "sampling", "dtype"),
)
def _speculate(
    config: DecoderConfig,
    params: Any,
    request: Request,
    exit_layer: Int[Array, ""],
    *,
    draft_length: int,
    max_tokens: int,
    sampling: Sampling,
    dtype: Any,
) -> Generated:
    params = promote_params(params, dtype)
    draft = functools.partial(
        _draft, config, params, request, exit_layer, sampling, dtype
    )
    answers, cache = start_answers(
        config, params, request, max_tokens=max_tokens, sampling=sampling, dtype=dtype
    )

    def step(
        state: tuple[Answers, KeyValueCache, Array, Array],
    ) -> tuple[Answers, KeyValueCache, Array, Array]:
        answers, cache, calls, accepted = state
        tokens, last = last_tokens(answers, request)
        active = last >= 0
        reach = last[:, None] + jnp.arange(draft_length + 1)
        places = jnp.where(active[:, None], reach, -1)

        # The first layers write their slots of the cache, and the others theirs from
        # the same states: no layer runs twice for a token.
        drafted, cache = draft(tokens, places, cache)
        y, cache = decode(
            config, params, drafted.states, cache, places, first=exit_layer
        )
        logits = decoder_logits(config, params, y)
        following, count = verify(logits, drafted, places + 1, request.keys, sampling)

        answers = append_tokens(answers, following, count + 1, request.stops)
        calls = calls + active.astype(calls.dtype)
        return answers, cache, calls, accepted + jnp.where(active, count, 0)

    none = jnp.zeros_like(request.lengths)
    start = (answers, cache, none, none)
    answers, _, calls, accepted = jax.lax.while_loop(
        lambda state: ~jnp.all(state[0].done), step, start
    )
    return Generated(*answers, calls, draft_length * calls, accepted)


def _draft(
    config: DecoderConfig,
    params: Any,
    request: Request,
    exit_layer: Int[Array, ""],
    sampling: Sampling,
    dtype: Any,
    tokens: Int[Array, "batch"],
    places: Int[Array, "batch d_and_one"],
    cache: KeyValueCache,
) -> tuple[Draft, KeyValueCache]:
    """Drafts tokens after the last ones, by the first layers.

    The last draft also runs through them, because it may be accepted.
    """

    def exit_states(
        tokens: Array, place: Array, cache: KeyValueCache
    ) -> tuple[Array, KeyValueCache]:
        y = embed_tokens(params, tokens[:, None], place[:, None], request, dtype)
        y, cache = decode(config, params, y, cache, place[:, None], last=exit_layer)
        return y[:, 0], cache

    def step(
        state: tuple[Array, KeyValueCache], place: Array
    ) -> tuple[tuple[Array, KeyValueCache], Any]:
        y, cache = exit_states(state[0], place, state[1])
        logits = decoder_logits(config, params, y)
        drawn = next_tokens(logits, sampling, request.keys, place + 1, Stream.DRAFT)
        logs = None if sampling.greedy else log_probabilities(logits, sampling)
        return (drawn, cache), (y, drawn, logs)

    # One token at a time: each draft is the input of the next.
    (last, cache), read = jax.lax.scan(step, (tokens, cache), places[:, :-1].T)
    states, drafted, logs = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), read)
    y, cache = exit_states(last, places[:, -1], cache)
    return Draft(jnp.concatenate([states, y[:, None]], axis=1), drafted, logs), cache
