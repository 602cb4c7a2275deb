"""The next token from logits, and the random numbers of a text.

They depend only on its key and the position.
"""

import dataclasses
import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.keys import threefry_keys

__all__ = [
    "NO_TOKEN",
    "Sampling",
    "Stream",
    "draw_tokens",
    "likeliest_tokens",
    "log_probabilities",
    "next_tokens",
    "position_keys",
    "position_noise",
    "row_keys",
]

#: The token where there is none: after the end of an answer, and where the logits have
#: no finite maximum.
NO_TOKEN = -1


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The model's distribution of the next token, sharpened and cut.

    Attributes:
      temperature: divides the logits. 0 takes the most probable token.
      top_k: number of the most probable tokens to keep, with those that are as probable
        as the last of them. None keeps all.
      top_p: keeps the fewest most probable tokens whose share is at least this, after
        ``top_k``. None keeps all.

    Source: Holtzman et al., "The curious case of neural text degeneration" (2020),
    section 3.1, for ``top_p``.

    Example:
      >>> Sampling().greedy, Sampling(temperature=0.7, top_p=0.9).greedy
      (True, False)
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check("temperature", self.temperature, at_least(0.0))
        way_out = "None keeps all tokens"
        check("top_k", self.top_k, at_least(1), optional=True, way_out=way_out)
        share = in_interval("(0, 1]")
        check("top_p", self.top_p, share, optional=True, way_out=way_out)
        for name in ("top_k", "top_p"):
            if self.greedy and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)} needs a temperature above 0; with 0"
                    " the best token is taken"
                )

    @property
    def greedy(self) -> bool:
        """True where the most probable token is taken."""
        return self.temperature == 0.0


class Stream(enum.IntEnum):
    """Uses of random numbers. Each use draws separate numbers."""

    NOISE = 0
    TOKEN = 1
    DRAFT = 2
    VERDICT = 3


def row_keys(key: jax.Array, batch: int) -> jax.Array:
    """Returns a key of Threefry for each row of a batch, see `threefry_keys`.

    A key that is not of `jax.random.key` is a TypeError. Another number of keys than
    one or ``batch`` is a ValueError.

    Args:
      key: of `jax.random.key`, folded with the number of each row, or already one for
        each row, (batch,).
      batch: number of rows.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"key must be made with jax.random.key, got an array of {key.dtype}"
        )
    # Everything below draws under vmap, by rows and by positions.
    key = threefry_keys(key)
    if key.shape == (batch,):
        return key
    allowed = f"be one key, or one for each of {batch} prompts"
    require(key.shape == (), "key", allowed, f"shape {key.shape}")
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))


def position_keys(
    keys: jax.Array, stream: Stream, positions: Int[Array, "batch n"]
) -> jax.Array:
    """Returns keys of positions in each row's text for one use, (batch, n)."""

    def fold_row(key: jax.Array, places: Array) -> jax.Array:
        stream_key = jax.random.fold_in(key, stream)
        return jax.vmap(lambda place: jax.random.fold_in(stream_key, place))(places)

    return jax.vmap(fold_row)(keys, positions)


def position_noise(
    keys: jax.Array, positions: Int[Array, "batch n"], dim: int
) -> Float[Array, "batch n {dim}"]:
    """Returns standard normal numbers for each position of each row's text.

    They are the same whenever they are drawn.
    """

    def draw(key: Array) -> Array:
        return jax.random.normal(key, (dim,), jnp.float32)

    return jax.vmap(jax.vmap(draw))(position_keys(keys, Stream.NOISE, positions))


def log_probabilities(
    logits: Float[Array, "*batch vocabulary"], sampling: Sampling
) -> Float[Array, "*batch vocabulary"]:
    """Returns the logarithms of the tokens' probabilities, -inf for cut ones.

    They are NaN where the logits have no finite maximum. Greedy sampling, which draws
    nothing, is a ValueError.
    """
    require(not sampling.greedy, "temperature", "be above 0 for probabilities", "0.0")
    # Differences first: logits over a small temperature overflow, their differences
    # only become -inf. A temperature of 0 in the logits' dtype would divide 0 by 0.
    largest = jnp.max(logits, axis=-1, keepdims=True)
    tiny = float(jnp.finfo(logits.dtype).tiny)
    logits = (logits - largest) / max(sampling.temperature, tiny)

    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        shares = jax.nn.softmax(ordered)
        # Nothing is before the first token, so one is always kept.
        before = jnp.cumsum(shares, axis=-1) - shares
        kept = jnp.where(before < sampling.top_p, ordered, jnp.inf)
        least = jnp.min(kept, axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.nn.log_softmax(logits)


def likeliest_tokens(
    logits: Float[Array, "*batch vocabulary"],
) -> Int[Array, "*batch"]:
    """Returns the most probable tokens.

    They are `NO_TOKEN` where the logits have no finite maximum.
    """
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jnp.where(jnp.isfinite(jnp.max(logits, axis=-1)), tokens, NO_TOKEN)


def next_tokens(
    logits: Float[Array, "batch vocabulary"],
    sampling: Sampling,
    keys: jax.Array | None,
    positions: Int[Array, "batch"],
    stream: Stream = Stream.TOKEN,
) -> Int[Array, "batch"]:
    """Returns tokens for one position of each row, from the logits before it.

    They are `NO_TOKEN` where these have no finite maximum.

    Args:
      logits: of each row.
      sampling: how tokens are drawn.
      keys: of each row, see `row_keys`. None only where the sampling is greedy.
      positions, stream: positions of the tokens, and the use of random numbers.
    """
    if sampling.greedy:
        return likeliest_tokens(logits)
    if keys is None:
        raise ValueError(
            f"keys must be given where temperature={sampling.temperature} is above 0"
        )
    drawn = position_keys(keys, stream, positions[:, None])[:, 0]
    return draw_tokens(drawn, log_probabilities(logits, sampling))


def draw_tokens(
    keys: jax.Array, logs: Float[Array, "batch vocabulary"]
) -> Int[Array, "batch"]:
    """Draws a token of each row from logarithms of probabilities.

    It is `NO_TOKEN` where these are NaN.
    """
    tokens = jax.vmap(jax.random.categorical)(keys, logs).astype(jnp.int32)
    return jnp.where(jnp.any(jnp.isnan(logs), axis=-1), NO_TOKEN, tokens)
