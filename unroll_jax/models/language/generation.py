"""Generation of text under jit, with a cache of keys and values.

Tokens are greedy or sampled, with or without noise on the embeddings.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.models.language.decoder import decoder_logits
from unroll_jax.models.language.decoder_parts import DecoderConfig, embed
from unroll_jax.models.language.decoding import KeyValueCache, decode, empty_cache
from unroll_jax.models.language.sampling import (
    NO_TOKEN,
    Sampling,
    next_tokens,
    position_noise,
    row_keys,
)
from unroll_jax.numerics import common_dtype

__all__ = [
    "Answers",
    "Generated",
    "Request",
    "append_tokens",
    "check_logits",
    "embed_tokens",
    "generate",
    "last_tokens",
    "make_request",
    "promote_params",
    "start_answers",
]

# Prompts are padded to a power of two, and to at least so many tokens: few programs
# serve all lengths.
MIN_BUCKET = 16


class Generated(NamedTuple):
    """The answers to a batch of prompts.

    Attributes:
      tokens: of the answers, with `NO_TOKEN` after their ends.
      lengths: tokens of each answer, its stop included.
      stopped: True for answers that ended with a stop.
      failed: True for answers that ended before a token whose logits have no finite
        maximum.
      calls: passes through the last layer for each, after its prompt.
      drafted: tokens drafted for each by `speculate`.
      accepted: those of them that verification accepted. A stop or the largest length
        may have cut some.

    Example: see `generate`.
    """

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]
    failed: Bool[Array, "batch"]
    calls: Int[Array, "batch"]
    drafted: Int[Array, "batch"] | None = None
    accepted: Int[Array, "batch"] | None = None


class Request(NamedTuple):
    """A batch of prompts, and what their answers depend on.

    Attributes:
      tokens, lengths: of the prompts, from the left.
      stops: tokens that end an answer.
      keys: one for each row. None where nothing is random.
      noise: standard deviation of the noise on embeddings. None adds none.
    """

    tokens: Int[Array, "batch n"]
    lengths: Int[Array, "batch"]
    stops: Int[Array, "stops"]
    keys: jax.Array | None
    noise: Float[Array, ""] | None

    @property
    def places(self) -> Int[Array, "batch n"]:
        """Positions of the tokens, negative after the prompts."""
        places = jnp.arange(self.tokens.shape[1])
        return jnp.where(places < self.lengths[:, None], places, -1)


class Answers(NamedTuple):
    """Answers so far, as in `Generated`."""

    tokens: Int[Array, "batch max_tokens"]
    lengths: Int[Array, "batch"]
    stopped: Bool[Array, "batch"]
    failed: Bool[Array, "batch"]

    @property
    def done(self) -> Bool[Array, "batch"]:
        """True for answers that have ended, or have the largest length."""
        is_full = self.lengths == self.tokens.shape[1]
        return self.stopped | self.failed | is_full


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
    """Answers prompts, each until a stop or ``max_tokens``.

    One program serves a batch size and a bucket of lengths.

    Noise and random tokens depend only on a row's key and the position: a batch changes
    answers by round-off only.

    Args:
      config, params: of a `Decoder`, without the outer key ``params``.
      prompts: tokens of each, at least one. All are padded to the same length, a power
        of two.
      max_tokens: longest answer.
      stops: tokens that end an answer. The stop is its last token.
      temperature, top_k, top_p: as in `Sampling`.
      noise: standard deviation of Gaussian noise on all tokens' embeddings, in their
        units, the answer's included.
      key: of `jax.random.key`, or one for each prompt. Needed where temperature or
        noise is above 0.
      dtype: of the computation and the cache. None is the embedding table's.
        Parameters of fewer bits, such as bfloat16, are converted once for each call.

    Returns:
      The answers, on the device. The call waits for them to check the logits.

    Raises:
      ValueError: if an argument is out of range, or if logits have no finite maximum,
        as with NaN in params. Under jit, ``failed`` marks such answers instead.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
      >>> config = DecoderConfig(100, num_key_value_heads=2, **sizes)
      >>> tokens = jnp.ones((1, 1), int)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), tokens)["params"]
      >>> answers: Generated = generate(config, params, [[5, 6, 7], [8]], max_tokens=4)
      >>> answers.tokens.shape, answers.lengths.tolist()
      ((2, 4), [4, 4])
    """
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
    options = {"max_tokens": max_tokens, "sampling": sampling, "dtype": dtype}
    return check_logits(_generate(config, params, request, **options))


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
    params = promote_params(params, dtype)
    answers, cache = start_answers(
        config, params, request, max_tokens=max_tokens, sampling=sampling, dtype=dtype
    )

    def step(
        state: tuple[Answers, KeyValueCache, Array],
    ) -> tuple[Answers, KeyValueCache, Array]:
        answers, cache, calls = state
        tokens, places = last_tokens(answers, request)
        y = embed_tokens(params, tokens[:, None], places[:, None], request, dtype)
        y, cache = decode(config, params, y, cache, places[:, None])

        logits = decoder_logits(config, params, y[:, 0])
        following = next_tokens(logits, sampling, request.keys, places + 1)
        one = jnp.ones_like(calls)
        answers = append_tokens(answers, following[:, None], one, request.stops)
        return answers, cache, calls + (places >= 0).astype(calls.dtype)

    start = (answers, cache, jnp.zeros_like(request.lengths))
    answers, _, calls = jax.lax.while_loop(
        lambda state: ~jnp.all(state[0].done), step, start
    )
    return Generated(*answers, calls)


def make_request(
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
    shorter = in_interval(f"[1, max_positions={config.max_positions})")
    check("max_tokens", max_tokens, shorter)
    check("noise", noise, at_least(0.0))
    known = in_interval(f"[1, vocabulary_size={config.vocabulary_size}]")
    check("top_k", sampling.top_k, known, optional=True)

    limit = config.max_positions - max_tokens
    name = f"max_positions - max_tokens={limit}"
    tokens, lengths = _pad_prompts(prompts, config.vocabulary_size, limit, name)

    keys = None
    if noise > 0.0 or not sampling.greedy:
        settings = f"temperature={sampling.temperature} or noise={noise}"
        allowed = f"be given where {settings} is above 0"
        require(key is not None, "key", allowed, "None")
        assert key is not None
        keys = row_keys(key, len(lengths))
    return Request(
        jnp.asarray(tokens),
        jnp.asarray(lengths),
        jnp.asarray(np.asarray(stops, np.int32).reshape(-1)),
        keys,
        jnp.float32(noise) if noise > 0.0 else None,
    )


def promote_params(params: Any, dtype: Any) -> Any:
    """Converts parameters of fewer bits than the dtype, once for all tokens.

    Wider ones stay.
    """
    return jax.tree.map(
        lambda leaf: leaf.astype(common_dtype(leaf.dtype, dtype)), params
    )


def embed_tokens(
    params: Any,
    tokens: Int[Array, "batch n"],
    places: Int[Array, "batch n"],
    request: Request,
    dtype: Any,
) -> Float[Array, "batch n d"]:
    """Returns word embeddings of tokens, with the noise of their positions."""
    # Finished rows have no token. Their embeddings are not used.
    y = embed(params["embedding"], jnp.maximum(tokens, 0)).astype(dtype)
    if request.noise is None or request.keys is None:
        return y
    noise = request.noise * position_noise(request.keys, places, y.shape[-1])
    return y + noise.astype(dtype)


def start_answers(
    config: DecoderConfig,
    params: Any,
    request: Request,
    *,
    max_tokens: int,
    sampling: Sampling,
    dtype: Any,
) -> tuple[Answers, KeyValueCache]:
    """Runs the prompts.

    Returns the first token of each answer, and the cache with room for the answers.
    """
    batch, length = request.tokens.shape
    cache = empty_cache(config, batch, length + max_tokens, dtype)
    y = embed_tokens(params, request.tokens, request.places, request, dtype)
    y, cache = decode(config, params, y, cache, request.places)

    # The first token is read out after the last token of each prompt.
    last = jnp.take_along_axis(y, (request.lengths - 1)[:, None, None], axis=1)[:, 0]
    logits = decoder_logits(config, params, last)
    tokens = next_tokens(logits, sampling, request.keys, request.lengths)

    no = jnp.zeros(batch, bool)
    lengths = jnp.zeros(batch, jnp.int32)
    room = jnp.full((batch, max_tokens), NO_TOKEN, jnp.int32)
    empty = Answers(room, lengths, stopped=no, failed=no)
    one = jnp.ones_like(lengths)
    return append_tokens(empty, tokens[:, None], one, request.stops), cache


def last_tokens(
    answers: Answers, request: Request
) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
    """Returns the last token of each answer, and its position.

    The position is negative where the answer is done.
    """
    ends = (answers.lengths - 1)[:, None]
    tokens = jnp.take_along_axis(answers.tokens, ends, axis=1)[:, 0]
    places = request.lengths + answers.lengths - 1
    return tokens, jnp.where(answers.done, -1, places)


def append_tokens(
    answers: Answers,
    tokens: Int[Array, "batch n"],
    counts: Int[Array, "batch"],
    stops: Int[Array, "stops"],
) -> Answers:
    """Appends the first ``counts`` of the tokens to answers.

    An answer ends with the first stop, before the first `NO_TOKEN`, or at its largest
    length.
    """
    batch, longest = answers.tokens.shape
    places = jnp.arange(tokens.shape[1])
    slots = answers.lengths[:, None] + places
    wanted = (places < counts[:, None]) & ~answers.done[:, None] & (slots < longest)

    is_none = tokens == NO_TOKEN
    ends = (wanted & (is_none | jnp.isin(tokens, stops))).astype(jnp.int32)
    wanted = wanted & (jnp.cumsum(ends, axis=1) == ends)  # no end before it
    kept = wanted & ~is_none

    rows = jnp.arange(batch)[:, None]
    # Tokens that are not kept get a slot beyond the room, which drops them.
    slots = jnp.where(kept, slots, longest)
    written = answers.tokens.at[rows, slots].set(tokens, mode="drop")
    return Answers(
        written,
        answers.lengths + jnp.sum(kept, axis=1, dtype=jnp.int32),
        answers.stopped | jnp.any(kept & (ends == 1), axis=1),
        answers.failed | jnp.any(wanted & is_none, axis=1),
    )


def check_logits(generated: Generated) -> Generated:
    """Returns the answers, or raises a ValueError if one is known to have failed."""
    failed = generated.failed
    # Unknown under jit, or on another process.
    if isinstance(failed, Tracer) or not failed.is_fully_addressable:
        return generated
    rows = np.flatnonzero(jax.device_get(failed)).tolist()
    allowed = "give logits with a finite maximum"
    got = f"NaN or inf for prompts {', '.join(map(str, rows))}"
    way_out = "look for NaN in params, or pass a wider dtype"
    require(not rows, "params", allowed, got, way_out)
    return generated


def _pad_prompts(
    prompts: Sequence[Sequence[int] | np.ndarray],
    vocabulary_size: int,
    limit: int,
    name: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns prompts as rows of one array, from the left, and their lengths.

    A ValueError names a prompt that is empty, longer than ``limit`` (called ``name``)
    or has unknown tokens.
    """
    require(len(prompts) != 0, "prompts", "be at least one", "none")
    rows = [np.asarray(prompt) for prompt in prompts]
    for number, row in enumerate(rows):
        fits = row.ndim == 1 and 1 <= len(row) <= limit
        allowed = f"have from 1 to {name} tokens"
        require(fits, f"prompt {number}", allowed, f"shape {row.shape}")

        is_integer = np.issubdtype(row.dtype, np.integer)
        known = is_integer and row.min() >= 0 and row.max() < vocabulary_size
        allowed = f"hold integers from 0 to vocabulary_size - 1={vocabulary_size - 1}"
        require(known, f"prompt {number}", allowed, row)

    lengths = np.array([len(row) for row in rows], np.int32)
    power = 1 << (int(lengths.max()) - 1).bit_length()
    bucket = min(max(MIN_BUCKET, power), limit)
    tokens = np.zeros((len(rows), bucket), np.int32)
    for padded, row in zip(tokens, rows, strict=True):
        padded[: len(row)] = row
    return tokens, lengths
