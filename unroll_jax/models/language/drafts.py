"""The choice of the drafting layer and of the number of drafted tokens, from measured acceptance and costs."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, check, checked, in_interval, require
from unroll_jax.models.language.decoder import Decoder, decoder_logits
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.decoding import decode, empty_cache
from unroll_jax.models.language.draft_costs import Costs, expected_speedup
from unroll_jax.models.language.exit_adapters import (
    ExitAdapter,
    check_adapter,
    decode_adapted,
    draft_head,
    draft_logits,
)
from unroll_jax.models.language.generation import generate, padded
from unroll_jax.models.language.sampling import position_noise, row_keys
from unroll_jax.models.language.speculative import check_draft

__all__ = ["Acceptance", "DraftChoice", "acceptance", "choose_draft", "tokens_a_call"]

Texts = Sequence[Sequence[int] | np.ndarray]


class Acceptance(NamedTuple):
    """Acceptance by layer: how often layers 0..L predict the token that the last layer predicts.

    Attributes:
      rates: shares of the positions that count.
      matches: whether a layer names that token, of each text at each position.
      counted: which positions count.

    Example: see `acceptance`.
    """

    rates: Float[np.ndarray, "layers_and_one"]
    matches: Bool[np.ndarray, "layers_and_one batch n"]
    counted: Bool[np.ndarray, "batch n"]


class DraftChoice(NamedTuple):
    """The layer that drafts, the number of tokens it drafts, and the speedup to expect.

    Attributes:
      exit_layer: number of layers that draft.
      draft_length: tokens before each verification.
      rate: share of positions at which the exit layer names the token that the last layer names.
      tokens: of an answer that a verification yielded.
      speedup: expected, over plain generation; below 1 drafts do not pay.

    Example: see `choose_draft`.
    """

    exit_layer: int
    draft_length: int
    rate: float
    tokens: float
    speedup: float


@checked(noise=at_least(0.0))
def acceptance(
    config: DecoderConfig,
    params: Any,
    texts: Texts,
    *,
    starts: Sequence[int] | None = None,
    adapters: Mapping[int, ExitAdapter] | None = None,
    noise: float = 0.0,
    key: jax.Array | None = None,
    dtype: Any = None,
) -> Acceptance:
    """Compares the most probable next token of every layer with that of the last, in one pass over texts.

    On texts that `generate` wrote with the same noise and key, it is what `speculate` meets there.

    Args:
      config: of the decoder.
      params: of a `Decoder`, without the outer key ``params``.
      texts: tokens of each.
      starts: of each text, the first position that counts; None counts all.
      adapters: of exit layers, by their number, see `exit_adapter`; other layers are read as they are.
      noise: standard deviation of noise on the embeddings, see `generate`.
      key: where noise is above 0; or one for each text.
      dtype: that layers compute in; None is that of the embedding table.

    Returns:
      An `Acceptance`, whose last rate is 1.

    Raises:
      ValueError: if texts are empty or too long, no position counts, noise lacks a key, or an adapter does not fit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = DecoderConfig(50, dim=8, num_layers=2, num_heads=2, num_key_value_heads=2, hidden_dim=16)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.ones((1, 1), int))["params"]
      >>> measured: Acceptance = acceptance(config, params, [[5, 6, 7], [8]])
      >>> measured.rates.shape, float(measured.rates[-1])
      ((3,), 1.0)
    """
    tokens, lengths = padded(texts, config.vocabulary_size, config.max_positions, f"{config.max_positions}")
    firsts = np.zeros_like(lengths) if starts is None else np.asarray(starts)
    require(firsts.shape == lengths.shape, "starts", f"be one for each of {len(lengths)} texts", len(firsts))
    places = np.arange(tokens.shape[1])
    counted = (places >= firsts[:, None]) & (places < lengths[:, None])
    require(counted.any(), "starts", "leave positions that count", "none", "take longer texts")
    require(noise == 0.0 or key is not None, "noise", "be 0 where key is None", noise)
    keys = None if key is None or noise == 0.0 else row_keys(key, len(lengths))
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    given = (jnp.asarray(tokens), keys, jnp.float32(noise))
    named = np.array(_named(config, params, *given, dtype=dtype))
    for exit_layer, adapter in check_adapters(config, adapters).items():
        named[exit_layer] = _named_by(config, params, adapter, jnp.int32(exit_layer), *given, dtype=dtype)
    matches = np.asarray(named == named[-1])
    return Acceptance(matches[:, counted].mean(axis=1), matches, counted)


def tokens_a_call(measured: Acceptance, exit_layer: int, draft_length: int) -> float:
    """Tokens of the texts that a verification would have yielded on them: greedy drafts played through, no model run.

    Unlike `expected_tokens` it counts tokens that are easy or hard in runs as such.

    Args:
      measured: of `acceptance`.
      exit_layer: number of layers that draft.
      draft_length: tokens before each verification.

    Returns:
      Tokens, in [1, draft_length + 1] but for the ends of texts.

    Example:
      >>> import numpy as np
      >>> matches = np.array([[[True, False, True, True]]])  # of two drafts, one is accepted; of two, both
      >>> measured = Acceptance(matches.mean(axis=(1, 2)), matches, counted=np.ones((1, 4), bool))
      >>> tokens_a_call(measured, exit_layer=0, draft_length=2)
      2.0
    """
    tokens = calls = 0
    for matches, counted in zip(measured.matches[exit_layer], measured.counted, strict=True):
        row = matches[counted]
        place = 0
        while place < len(row):
            wrong = np.flatnonzero(~row[place : place + draft_length])
            place += (int(wrong[0]) if len(wrong) else draft_length) + 1
            calls += 1
        tokens += len(row)
    return tokens / calls


def choose_draft(
    config: DecoderConfig,
    params: Any,
    prompts: Texts,
    *,
    max_tokens: int = 64,
    draft_lengths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    costs: Costs | None = None,
    adapters: Mapping[int, ExitAdapter] | None = None,
    **options: Any,
) -> DraftChoice:
    """The exit layer and draft length with the largest expected speed-up on greedy answers to a few prompts.

    Args:
      config: of the decoder, which has two layers or more.
      params: of a `Decoder`, without the outer key ``params``.
      prompts: tokens of each.
      max_tokens: longest answer.
      draft_lengths: to choose from.
      costs: see `expected_speedup`.
      adapters: see `acceptance`; pass that of the chosen exit layer, if it has one, to `speculate`.
      **options: ``stops``, ``noise``, ``key`` and ``dtype`` of `generate`.

    Returns:
      A `DraftChoice`.

    Raises:
      ValueError: if the decoder has one layer, no answer has two tokens, or an argument of `generate` is invalid.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = DecoderConfig(50, dim=8, num_layers=2, num_heads=2, num_key_value_heads=2, hidden_dim=16)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.ones((1, 1), int))["params"]
      >>> choice: DraftChoice = choose_draft(config, params, [[5, 6, 7], [8]], max_tokens=4)
      >>> choice.exit_layer
      1
    """
    check_draft(config, 1, 1)
    adapters = check_adapters(config, adapters)
    answers = generate(config, params, prompts, max_tokens=max_tokens, **options)
    lengths = np.asarray(answers.lengths)
    texts = [
        np.concatenate([prompt, answer[: length - 1]])  # behind the last token there is nothing to draft
        for prompt, answer, length in zip(prompts, np.asarray(answers.tokens), lengths, strict=True)
    ]
    got = f"max_tokens={max_tokens}"
    require(lengths.max() >= 2, "prompts", "have answers of two tokens or more to measure on", got)
    starts = [len(prompt) for prompt in prompts]
    given = {name: options[name] for name in ("noise", "key", "dtype") if name in options}
    measured = acceptance(config, params, texts, starts=starts, adapters=adapters, **given)

    def choice(exit_layer: int, draft_length: int) -> DraftChoice:
        tokens = tokens_a_call(measured, exit_layer, draft_length)
        adapter = adapters.get(exit_layer)
        speedup = expected_speedup(config, exit_layer, draft_length, tokens, costs, adapter=adapter)
        return DraftChoice(exit_layer, draft_length, float(measured.rates[exit_layer]), tokens, speedup)

    choices = (choice(layer, length) for layer in range(1, config.num_layers) for length in draft_lengths)
    return max(choices, key=lambda one: one.speedup)


def check_adapters(config: DecoderConfig, adapters: Mapping[int, ExitAdapter] | None) -> Mapping[int, ExitAdapter]:
    """Checks that adapters fit a decoder; None becomes none."""
    for exit_layer, adapter in (adapters or {}).items():
        check("adapters", exit_layer, in_interval(f"[1, num_layers={config.num_layers})"))
        check_adapter(config, adapter)
    return adapters or {}


@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def _named(config: DecoderConfig, params: Any, tokens: Array, keys: Array | None, noise: Array, *, dtype: Any) -> Array:
    """The most probable next token at every layer, (L + 1, batch, n); logits are of one row at a time."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    added = None if keys is None else noise * position_noise(keys, places, config.dim)

    def record(y: Array) -> Array:
        return jax.lax.map(lambda row: jnp.argmax(decoder_logits(config, params, row.astype(dtype)), axis=-1), y)

    return Decoder(config, dtype=dtype).apply({"params": params}, tokens, perturbation=added, record=record)  # pyright: ignore


@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def _named_by(
    config: DecoderConfig,
    params: Any,
    adapter: ExitAdapter,
    exit_layer: Int[Array, ""],
    tokens: Array,
    keys: Array | None,
    noise: Array,
    *,
    dtype: Any,
) -> Array:
    """The most probable next token by an adapter, (batch, n); logits are of one row at a time."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    y = params["embedding"][tokens].astype(dtype)
    if keys is not None:
        y += (noise * position_noise(keys, places, config.dim)).astype(dtype)
    batch, length = tokens.shape
    cache, head = empty_cache(config, batch, length, dtype), draft_head(params, adapter)
    y, cache = decode(config, params, y, cache, places, last=exit_layer)
    y, _ = decode_adapted(config, adapter, y, type(cache)(cache.keys[:1], cache.values[:1]), places)
    drawn = jax.lax.map(lambda row: jnp.argmax(draft_logits(config, head, row), axis=-1), y)
    return drawn if adapter.words is None else adapter.words[drawn]
