"""Generation of text under jit, with a cache of keys and values: greedy or sampled,
with noise on the embeddings."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.models.language.decoder import decoder_logits
from unroll_jax.models.language.decoder_parts import DecoderConfig
from unroll_jax.models.language.decoding import KeyValueCache, decode, empty_cache
from unroll_jax.models.language.sampling import (
    Sampling,
    next_tokens,
    position_noise,
    row_keys,
)

__all__ = [
    "NO_TOKEN",
    "Answers",
    "Generated",
    "Request",
    "answered",
    "appended",
    "embedded",
    "generate",
    "latest",
    "padded",
    "requested",
    "widened",
]

#: Fills `Generated` after the end of an answer.
NO_TOKEN = -1
# tokens that prompts are padded to at least; beyond, to powers of two: few programs
# serve all
SHORTEST = 16


class Generated(NamedTuple):
    """The answers to a batch of prompts.

    Attributes:
      tokens: of the answers; `NO_TOKEN` behind their ends.
      lengths: tokens of each answer, its stop included.
      stopped: whether it ended with a stop.
      calls: passes through the last layer that each took behind its prompt.
      drafted: tokens drafted for each by `speculate`.
      accepted: how many of them were verified, also where a stop or the longest answer
        then cut them.

    Example: see `generate`.
    """

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]
    calls: Int[Array, "batch"]
    drafted: Int[Array, "batch"] | None = None
    accepted: Int[Array, "batch"] | None = None


class Request(NamedTuple):
    """A batch of prompts, and what their answers depend on.

    Attributes:
      tokens, lengths: of the prompts, from the left.
      stops: tokens that end an answer.
      keys: one for each row; None where nothing is random.
      noise: standard deviation of the noise on embeddings; None adds none.
    """

    tokens: Int[Array, "batch n"]
    lengths: Int[Array, "batch"]
    stops: Int[Array, "stops"]
    keys: jax.Array | None
    noise: Float[Array, ""] | None

    @property
    def places(self) -> Int[Array, "batch n"]:
        """Positions of the tokens, negative behind the prompts."""
        places = jnp.arange(self.tokens.shape[1])
        return jnp.where(places < self.lengths[:, None], places, -1)


class Answers(NamedTuple):
    """Answers so far, as in `Generated`."""

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]

    @property
    def done(self) -> Bool[Array, "batch"]:
        """True for answers that are complete: stopped, or of the largest length."""
        return self.stopped | (self.lengths == self.tokens.shape[1])


def generate(
    config: DecoderConfig,
    params: Any,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    max_tokens: int,
    stops: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    noise: float = 0.0,
    key: jax.Array | None = None,
    dtype: Any = None,
) -> Generated:
    """Answers prompts, each until a stop or ``max_tokens``; one program serves a batch
    size and a bucket of lengths.

    Noise and random tokens depend only on a row's key and the position: a batch changes
    answers by round-off only.

    Args:
      config, params: of a `Decoder`; params without the outer key ``params``.
      prompts: tokens of each, at least one; of any lengths, which are padded together
        to a power of two.
      max_tokens, stops: longest answer; tokens that end an answer and are its last.
      temperature, top_k, top_p: as in `Sampling`.
      noise: standard deviation of Gaussian noise on all tokens' embeddings, in their
        units, the answer's included.
      key: of `jax.random.key`, where temperature or noise is above 0; or one for each
        prompt.
      dtype: that layers compute in and the cache has; None is the embedding table's.
        Parameters of fewer bits, such as those stored in bfloat16, are converted once
        for each call.

    Returns:
      The answers, on the device.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> config = DecoderConfig(
      ...     100,
      ...     dim=8,
      ...     num_layers=2,
      ...     num_heads=4,
      ...     num_key_value_heads=2,
      ...     hidden_dim=16,
      ... )
      >>> params = Decoder(config).init(jax.random.key(0), jnp.ones((1, 1), int))[
      ...     "params"
      ... ]
      >>> answers: Generated = generate(config, params, [[5, 6, 7], [8]], max_tokens=4)
      >>> answers.tokens.shape, answers.lengths.tolist()
      ((2, 4), [4, 4])
    """
    sampling = Sampling(temperature, top_k, top_p)
    request = requested(
        config,
        prompts,
        max_tokens,
        stops=stops,
        sampling=sampling,
        noise=noise,
        key=key,
    )
    dtype = jnp.dtype(params["embedding"].dtype if dtype is None else dtype)
    return _generate(
        config, params, request, max_tokens=max_tokens, sampling=sampling, dtype=dtype
    )


@functools.partial(
    jax.jit, static_argnames=("config", "max_tokens", "sampling", "dtype")
)
def _generate(
    config: DecoderConfig,
    params: Any,
    request: Request,
    *,
    max_tokens: int,
    sampling: Sampling,
    dtype: Any,
) -> Generated:
    params = widened(params, dtype)
    answers, cache = answered(
        config, params, request, max_tokens=max_tokens, sampling=sampling, dtype=dtype
    )

    def step(
        state: tuple[Answers, KeyValueCache, Array],
    ) -> tuple[Answers, KeyValueCache, Array]:
        answers, cache, calls = state
        tokens, places = latest(answers, request)
        y = embedded(params, tokens[:, None], places[:, None], request, dtype)
        y, cache = decode(config, params, y, cache, places[:, None])
        following = next_tokens(
            decoder_logits(config, params, y[:, 0]), sampling, request.keys, places + 1
        )
        one = jnp.ones_like(calls)
        return (
            appended(answers, following[:, None], one, request.stops),
            cache,
            calls + (places >= 0),
        )

    start = (answers, cache, jnp.zeros_like(request.lengths))
    answers, _, calls = jax.lax.while_loop(
        lambda state: ~jnp.all(state[0].done), step, start
    )
    return Generated(*answers, calls)


def requested(
    config: DecoderConfig,
    prompts: Sequence[Sequence[int] | np.ndarray],
    max_tokens: int,
    *,
    stops: Sequence[int] = (),
    sampling: Sampling,
    noise: float = 0.0,
    key: jax.Array | None = None,
) -> Request:
    """Checks and pads prompts, see `generate`."""
    check(
        "max_tokens",
        max_tokens,
        in_interval(f"[1, max_positions={config.max_positions})"),
    )
    check("noise", noise, at_least(0.0))
    check(
        "top_k",
        sampling.top_k,
        in_interval(f"[1, vocabulary_size={config.vocabulary_size}]"),
        optional=True,
    )
    random = noise > 0.0 or not sampling.greedy
    allowed = (
        f"be given where temperature={sampling.temperature} or noise={noise} is above 0"
    )
    require(not random or key is not None, "key", allowed, "None")
    limit = config.max_positions - max_tokens
    tokens, lengths = padded(
        prompts, config.vocabulary_size, limit, f"max_positions - max_tokens={limit}"
    )
    return Request(
        jnp.asarray(tokens),
        jnp.asarray(lengths),
        jnp.asarray(np.asarray(stops, np.int32).reshape(-1)),
        row_keys(key, len(lengths)) if random and key is not None else None,
        jnp.float32(noise) if noise > 0.0 else None,
    )


def padded(
    texts: Sequence[Sequence[int] | np.ndarray],
    vocabulary_size: int,
    limit: int,
    name: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Texts in the rows of one array, from the left, and their lengths; a ValueError if
    empty, too long or unknown.

    Args:
      texts: tokens of each.
      vocabulary_size: that tokens must be below.
      limit, name: longest text, in tokens, and its name in messages.
    """
    require(len(texts) != 0, "prompts", "be at least one", "none")
    rows = [np.asarray(text) for text in texts]
    for number, row in enumerate(rows):
        fits = row.ndim == 1 and 1 <= len(row) <= limit
        require(
            fits,
            f"prompt {number}",
            f"have from 1 to {name} tokens",
            f"shape {row.shape}",
        )
        known = (
            np.issubdtype(row.dtype, np.integer)
            and row.min() >= 0
            and row.max() < vocabulary_size
        )
        require(
            known,
            f"prompt {number}",
            f"hold integers from 0 to vocabulary_size - 1={vocabulary_size - 1}",
            row,
        )
    lengths = np.array([len(row) for row in rows], np.int32)
    bucket = max(SHORTEST, 1 << (int(lengths.max()) - 1).bit_length())
    tokens = np.zeros((len(rows), min(bucket, limit)), np.int32)
    for row, text in zip(tokens, rows, strict=True):
        row[: len(text)] = text
    return tokens, lengths


def widened(params: Any, dtype: Any) -> Any:
    """Parameters that are stored in fewer bits than the dtype, converted once for
    all tokens; wider ones stay."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, dtype)), params
    )


def embedded(
    params: Any,
    tokens: Int[Array, "batch n"],
    places: Int[Array, "batch n"],
    request: Request,
    dtype: Any,
) -> Float[Array, "batch n d"]:
    """Word embeddings of tokens at positions, with the request's noise of these
    positions."""
    y = params["embedding"][tokens].astype(dtype)
    if request.noise is None or request.keys is None:
        return y
    return y + (
        request.noise * position_noise(request.keys, places, y.shape[-1])
    ).astype(dtype)


def answered(
    config: DecoderConfig,
    params: Any,
    request: Request,
    *,
    max_tokens: int,
    sampling: Sampling,
    dtype: Any,
) -> tuple[Answers, KeyValueCache]:
    """Runs the prompts; returns the first token of each answer, and the cache with
    room for the answers."""
    batch, length = request.tokens.shape
    cache = empty_cache(config, batch, length + max_tokens, dtype)
    y = embedded(params, request.tokens, request.places, request, dtype)
    y, cache = decode(config, params, y, cache, request.places)
    last = jnp.take_along_axis(y, (request.lengths - 1)[:, None, None], axis=1)[:, 0]
    tokens = next_tokens(
        decoder_logits(config, params, last), sampling, request.keys, request.lengths
    )
    none = Answers(
        jnp.full((batch, max_tokens), NO_TOKEN, jnp.int32),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )
    return appended(
        none, tokens[:, None], jnp.ones_like(none.lengths), request.stops
    ), cache


def latest(
    answers: Answers, request: Request
) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
    """The last token of each answer, and its position, negative where the answer is
    done."""
    tokens = jnp.take_along_axis(
        answers.tokens, (answers.lengths - 1)[:, None], axis=1
    )[:, 0]
    return tokens, jnp.where(answers.done, -1, request.lengths + answers.lengths - 1)


def appended(
    answers: Answers,
    tokens: Int[Array, "batch n"],
    counts: Int[Array, "batch"],
    stops: Int[Array, "stops"],
) -> Answers:
    """Answers with the first ``counts`` of the tokens behind them, up to the first
    stop or the longest answer."""
    batch, longest = answers.tokens.shape
    places = jnp.arange(tokens.shape[1])
    wanted = (places < counts[:, None]) & ~answers.done[:, None]
    ends = wanted & jnp.isin(tokens, stops)
    slots = answers.lengths[:, None] + places
    kept = wanted & (jnp.cumsum(ends, axis=1) - ends == 0) & (slots < longest)
    written = answers.tokens.at[
        jnp.arange(batch)[:, None], jnp.where(kept, slots, longest)
    ].set(tokens, mode="drop")
    lengths = answers.lengths + jnp.sum(kept, axis=1, dtype=jnp.int32)
    return Answers(written, lengths, answers.stopped | jnp.any(kept & ends, axis=1))
