"""Decoding with a cache of keys and values, by any range of a decoder's layers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from unroll_jax.arguments import at_least, check, in_interval, require
from unroll_jax.arrays import widen_integers
from unroll_jax.models.language.decoder_parts import (
    DecoderConfig,
    embed,
    feed_forward,
    grouped_attention,
    queries_keys_values,
    rotation,
)

__all__ = ["KeyValueCache", "decode", "empty_cache"]


class KeyValueCache(NamedTuple):
    """Keys, rotated, and values of the tokens so far. Slot p of a row holds position p.

    Attributes:
      keys, values: of every layer.

    Example: see `empty_cache`.
    """

    keys: Float[Array, "layers batch key_heads capacity size"]
    values: Float[Array, "layers batch key_heads capacity size"]


def empty_cache(
    config: DecoderConfig, batch: int, capacity: int, dtype: Any = jnp.float32
) -> KeyValueCache:
    """A cache of zeros for ``batch`` texts of up to ``capacity`` tokens.

    Args:
      config, batch, capacity: of the decoder, texts, and longest text, in tokens, up to
        ``config.max_positions``. A ValueError names one out of range.
      dtype: of keys and values, and that layers compute in.

    Example:
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
      >>> config = DecoderConfig(100, num_key_value_heads=2, **sizes)
      >>> cache: KeyValueCache = empty_cache(config, batch=3, capacity=16)
      >>> cache.keys.shape  # 2 layers, 3 texts, 2 heads, 16 tokens, width 2
      (2, 3, 2, 16, 2)
    """
    check("batch", batch, at_least(1))
    known = in_interval(f"[1, max_positions={config.max_positions}]")
    check("capacity", capacity, known)
    shape = (
        config.num_layers,
        batch,
        config.num_key_value_heads,
        capacity,
        config.head_size,
    )
    return KeyValueCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def decode(
    config: DecoderConfig,
    params: Any,
    inputs: Integer[Array, "batch n"] | Float[Array, "batch n d"],
    cache: KeyValueCache,
    positions: Integer[Array, "batch n"],
    *,
    first: int | Integer[Array, ""] = 0,
    last: int | Integer[Array, ""] | None = None,
) -> tuple[Float[Array, "batch n d"], KeyValueCache]:
    """Runs layers first + 1..last on some tokens, which see those in the cache.

    Their keys and values are written to it.

    A token sees all slots up to its position. The same layers must have written these,
    in this call or earlier ones. To take tokens back, decode others at their positions:
    later slots are not seen. So a draft by E layers, ``decode(..., last=E)``, and its
    verification, ``decode(..., states, ..., first=E)``, share a cache.

    Args:
      config, params: of a `Decoder`, without the outer key ``params``.
      inputs: tokens (``first`` = 0), computed in the cache's dtype, or outputs of layer
        ``first``, in theirs.
      cache: of `empty_cache`. Its capacity bounds the positions.
      positions: place of each token in its text, different ones in a row. A token with
        a negative position is not written, and its output means nothing. A token beyond
        the capacity is not written either.
      first: number of layers that were run before. It may be traced: one program serves
        all ranges.
      last: number of layers to stop after, traced or not. None is all.

    Returns:
      ``(y, cache)``: outputs of layer ``last`` before the norm, and the cache, which a
      jitted caller may donate.

    Raises:
      ValueError: if the range is not within 0 <= first < last <= num_layers, tokens are
        given for a later layer than the first, or shapes do not fit each other or the
        configuration.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.models import Decoder
      >>> sizes = {"dim": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
      >>> config = DecoderConfig(100, num_key_value_heads=2, **sizes)
      >>> tokens, places = jnp.array([[5, 6]]), jnp.array([[0, 1]])
      >>> run = jax.jit(decode, static_argnums=0)
      >>> params = jax.jit(Decoder(config).init)(jax.random.key(0), tokens)["params"]
      >>> cache = empty_cache(config, batch=1, capacity=2)
      >>> both, _ = run(config, params, tokens, cache, places)
      >>> _, cache = run(config, params, tokens[:, :1], cache, places[:, :1])
      >>> # the second token sees the first in the cache
      >>> second, _ = run(config, params, tokens[:, 1:], cache, places[:, 1:])
      >>> bool(jnp.allclose(second, both[:, 1:], atol=1e-5))
      True
    """
    last = config.num_layers if last is None else last
    _check(config, inputs, cache, positions, first, last)
    y = inputs
    if jnp.issubdtype(inputs.dtype, jnp.integer):
        y = embed(params["embedding"], inputs).astype(cache.keys.dtype)

    capacity = cache.keys.shape[-2]
    positions = jnp.asarray(positions, jnp.int32)  # narrower ones lack the capacity
    angles = rotation(config, positions, y.dtype)
    # Slots after a token's position may hold rejected drafts, and are not seen.
    mask = jnp.arange(capacity, dtype=jnp.int32) <= positions[..., None]
    rows = jnp.arange(y.shape[0])[:, None]
    positions = widen_integers(positions)
    # Negative positions would count from the end.
    slots = jnp.where(positions < 0, capacity, positions)

    def layer(
        number: Int[Array, ""], state: tuple[Array, KeyValueCache]
    ) -> tuple[Array, KeyValueCache]:
        y, cache = state
        # By number, not as a slice of the stack: that would copy the range's parameters
        # in every call.
        layer_params = jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False),
            params["layers"],
        )
        mixed = queries_keys_values(config, layer_params, y, angles)

        def write(stack: Array, new: Array) -> Array:
            places = stack.at[number, rows, :, slots]
            return places.set(new.astype(stack.dtype), mode="drop")

        def read(stack: Array) -> Array:
            layer = jax.lax.dynamic_index_in_dim(stack, number, keepdims=False)
            return layer.astype(y.dtype)

        # Written first, so that the tokens of this call see each other.
        keys = write(cache.keys, mixed.keys)
        values = write(cache.values, mixed.values)
        attended = grouped_attention(mixed.queries, read(keys), read(values), mask)
        y = feed_forward(config, layer_params, y, attended)
        return y, KeyValueCache(keys, values)

    # A loop, not a scan over a slice: its ends may be traced.
    return jax.lax.fori_loop(first, last, layer, (y, cache))


def _check(
    config: DecoderConfig,
    inputs: Any,
    cache: KeyValueCache,
    positions: Any,
    first: Any,
    last: Any,
) -> None:
    layers = config.num_layers
    is_traced = isinstance(first, jax.Array) or isinstance(last, jax.Array)
    ordered = is_traced or 0 <= first < last <= layers
    allowed = f"have 0 <= first < last <= num_layers={layers}"
    require(ordered, "first and last", allowed, f"{first} and {last}")

    floating = jnp.issubdtype(inputs.dtype, jnp.floating)
    reads_tokens = not (isinstance(first, jax.Array) or first > 0)
    allowed = f"be outputs of layer first={first}"
    got = f"tokens ({inputs.dtype})"
    require(floating or reads_tokens, "inputs", allowed, got, "decode those by 0")

    width = (config.dim,) if floating else ()
    fits = positions.ndim == 2 and inputs.shape == (*positions.shape, *width)
    allowed = f"be (batch, n), or inputs of a later layer (batch, n, dim={config.dim})"
    got = f"{inputs.shape} and {positions.shape}"
    require(fits, "inputs and positions", allowed, got)

    shape = cache.keys.shape
    heads = (layers, inputs.shape[0], config.num_key_value_heads)
    fits = shape[:3] == heads and shape[4:] == (config.head_size,)
    allowed = f"hold {heads} layers, texts and heads of width {config.head_size}"
    require(fits, "cache", allowed, f"shape {shape}", "make it with empty_cache")
