"""Self-speculative decoding: the first layers draft tokens, the others verify them, on one cache."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import check, checked, in_interval
from unroll_jax.models.language.decoder import decoder_logits
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.decoding import KeyValueCache, decode
from unroll_jax.models.language.generation import Answers, Request, answered, appended, embedded, latest, requested
from unroll_jax.models.language.sampling import Sampling, Stream, log_probabilities, next_tokens, position_keys

__all__ = ["Speculated", "Verdict", "check_draft", "speculate", "verdict"]


class Speculated(NamedTuple):
    """The answers to a batch of prompts, and statistics of their drafts.

    Attributes:
      tokens: of the answers; `NO_TOKEN` behind their ends.
      lengths: tokens of each answer, its stop included.
      stopped: whether it ended with a stop.
      calls: verifications that each took behind its prompt.
      drafted: tokens drafted for each.
      accepted: those of them that were verified, also where a stop or the longest answer then cut them.

    Example: see `speculate`.
    """

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]
    calls: Int[Array, "batch"]
    drafted: Int[Array, "batch"]
    accepted: Int[Array, "batch"]


class Verdict(NamedTuple):
    """The result of a verification: the number of drafted tokens accepted, and the distribution of the next one.

    Attributes:
      accepted: leading tokens that are accepted.
      remaining: logarithms of the probabilities of the next one.
    """

    accepted: Int[Array, "batch"]
    remaining: Float[Array, "batch vocabulary"]


class _Draft(NamedTuple):
    states: Float[Array, "batch d_and_one dim"]  # outputs of the exit layer, at the last token and the drafted ones
    tokens: Int[Array, "batch d"]
    log_probabilities: Float[Array, "batch d vocabulary"] | None  # that they were drawn with


@checked()
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
    sampling = Sampling(temperature, top_k, top_p)
    request = requested(config, prompts, max_tokens, stops=stops, sampling=sampling, noise=noise, key=key)
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    sizes = {"draft_length": draft_length, "max_tokens": max_tokens}
    return _speculate(config, params, request, jnp.int32(exit_layer), **sizes, sampling=sampling, dtype=dtype)


def check_draft(config: DecoderConfig, exit_layer: int, draft_length: int) -> None:
    """Checks that a decoder can have an exit layer and a draft length."""
    check("exit_layer", exit_layer, in_interval(f"[1, num_layers={config.num_layers})"))
    check("draft_length", draft_length, in_interval(f"[1, max_positions={config.max_positions})"))


def verdict(
    target: Float[Array, "batch d_and_one vocabulary"],
    draft: Float[Array, "batch d vocabulary"],
    tokens: Int[Array, "batch d"],
    uniforms: Float[Array, "batch d"],
) -> Verdict:
    r"""Judges drafted tokens so that accepted ones, and the token after them, have the distribution of the target.

    A token x drawn from q is accepted with probability :math:`\min(1, p(x) / q(x))`. After the last one comes a
    token from :math:`\max(p - q, 0)`, normalised; behind all of them, one from p.

    Args:
      target: logarithms of p, at the drafted tokens and the one behind them.
      draft: logarithms of q.
      tokens: drawn from q.
      uniforms: one number in [0, 1) for each.

    Source: Leviathan, Kalman, Matias (2023), algorithm 1 and appendix A.1.
    """
    p, q = (jnp.take_along_axis(each[:, : tokens.shape[1]], tokens[..., None], 2)[..., 0] for each in (target, draft))
    stands = jnp.log(uniforms) < p - q
    accepted = jnp.sum(jnp.cumprod(stands, axis=1), axis=1, dtype=jnp.int32)
    no_draft = jnp.full_like(draft[:, :1], -jnp.inf)

    def at_end(each: Array) -> Array:
        return jnp.take_along_axis(each, accepted[:, None, None], axis=1)[:, 0]

    wanted, drawn = jnp.exp(at_end(target)), jnp.exp(at_end(jnp.concatenate([draft, no_draft], axis=1)))
    left = jnp.maximum(wanted - drawn, 0.0)
    # Equal distributions leave nothing, but for round-off, and then a token is never rejected.
    left = jnp.where(jnp.any(left > 0.0, axis=1, keepdims=True), left, wanted)
    return Verdict(accepted, jnp.log(left) - jnp.log(jnp.sum(left, axis=1, keepdims=True)))


@functools.partial(jax.jit, static_argnames=("config", "draft_length", "max_tokens", "sampling", "dtype"))
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
) -> Speculated:
    answers, cache = answered(config, params, request, max_tokens=max_tokens, sampling=sampling, dtype=dtype)

    def step(state: tuple[Answers, KeyValueCache, Array, Array]) -> tuple[Answers, KeyValueCache, Array, Array]:
        answers, cache, calls, accepted = state
        tokens, places = latest(answers, request)
        goes_on = places >= 0
        places = jnp.where(goes_on[:, None], places[:, None] + jnp.arange(draft_length + 1), -1)
        draft, cache = _drafted(config, params, tokens, places, cache, request, exit_layer, sampling, dtype)
        y, cache = decode(config, params, draft.states, cache, places, first=exit_layer)
        tokens, stand = _verified(decoder_logits(config, params, y), draft, places + 1, request.keys, sampling)
        answers = appended(answers, tokens, stand + 1, request.stops)
        return answers, cache, calls + goes_on, accepted + jnp.where(goes_on, stand, 0)

    none = jnp.zeros_like(request.lengths)
    start = (answers, cache, none, none)
    answers, _, calls, accepted = jax.lax.while_loop(lambda state: ~jnp.all(state[0].done), step, start)
    return Speculated(*answers, calls, draft_length * calls, accepted)


def _drafted(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch"],
    places: Int[Array, "batch d_and_one"],
    cache: KeyValueCache,
    request: Request,
    exit_layer: Int[Array, ""],
    sampling: Sampling,
    dtype: Any,
) -> tuple[_Draft, KeyValueCache]:
    """Tokens behind the last ones, by the first layers. The last is run through them too: it may be accepted."""

    def run(tokens: Array, cache: KeyValueCache, places: Array) -> tuple[Array, KeyValueCache]:
        y = embedded(params, tokens[:, None], places[:, None], request, dtype)
        y, cache = decode(config, params, y, cache, places[:, None], last=exit_layer)
        return y[:, 0], cache

    def step(state: tuple[Array, KeyValueCache], places: Array) -> tuple[tuple[Array, KeyValueCache], Any]:
        y, cache = run(*state, places)
        logits = decoder_logits(config, params, y)
        following = next_tokens(logits, sampling, request.keys, places + 1, Stream.DRAFT)
        drawn = None if sampling.greedy else log_probabilities(logits, sampling)
        return (following, cache), (y, following, drawn)

    (last, cache), steps = jax.lax.scan(step, (tokens, cache), places[:, :-1].T)
    states, drafted, drawn = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), steps)
    y, cache = run(last, cache, places[:, -1])
    return _Draft(jnp.concatenate([states, y[:, None]], axis=1), drafted, drawn), cache


def _verified(
    logits: Float[Array, "batch d_and_one vocabulary"],
    draft: _Draft,
    places: Int[Array, "batch d_and_one"],
    keys: jax.Array | None,
    sampling: Sampling,
) -> tuple[Int[Array, "batch d_and_one"], Int[Array, "batch"]]:
    """Tokens for the positions, of which the accepted ones and the next one count; the number accepted."""
    if draft.log_probabilities is None or keys is None:
        wanted = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        stands = wanted[:, :-1] == draft.tokens
        return wanted, jnp.sum(jnp.cumprod(stands, axis=1), axis=1, dtype=jnp.int32)
    uniforms = jax.vmap(jax.vmap(jax.random.uniform))(position_keys(keys, Stream.VERDICT, places[:, :-1]))
    judged = verdict(log_probabilities(logits, sampling), draft.log_probabilities, draft.tokens, uniforms)
    end = judged.accepted[:, None]
    drawn = position_keys(keys, Stream.TOKEN, jnp.take_along_axis(places, end, axis=1))[:, 0]
    following = jax.vmap(jax.random.categorical)(drawn, judged.remaining).astype(jnp.int32)
    tokens = jnp.concatenate([draft.tokens, following[:, None]], axis=1)
    return jnp.where(jnp.arange(tokens.shape[1]) == end, following[:, None], tokens), judged.accepted
