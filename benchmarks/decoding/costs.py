"""Costs of decoding on this machine, by which the draft lengths of a decoder are compared."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from unroll_jax.models import Costs, DecoderConfig, decode, decoder_logits, empty_cache

__all__ = ["measured_costs"]

SEVERAL = 5  # tokens in one call, to measure the cost of each further one
REPEATS = 5


def measured_costs(config: DecoderConfig, params: Any, *, batch: int, capacity: int = 256) -> Costs:
    """Measures the seconds of a layer and of the head on one token of each row, and the share of each further token.

    Args:
      config: of the decoder.
      params: of the decoder.
      batch: rows.
      capacity: of the cache that is read.
    """
    cache = empty_cache(config, batch, min(capacity, config.max_positions), params["embedding"].dtype)
    layers = jax.jit(lambda params, tokens, places: decode(config, params, tokens, cache, places)[0])
    head = jax.jit(lambda params, y: jnp.argmax(decoder_logits(config, params, y), axis=-1))

    def seconds(count: int) -> tuple[float, float]:
        tokens = jnp.zeros((batch, count), jnp.int32)
        places = jnp.broadcast_to(jnp.arange(count), tokens.shape)
        y = layers(params, tokens, places)
        return _least(lambda: layers(params, tokens, places)), _least(lambda: head(params, y))

    count = min(SEVERAL, cache.keys.shape[-2])
    one, several = seconds(1), seconds(count)
    further = max(0.0, (sum(several) / sum(one) - 1.0) / max(1, count - 1))
    return Costs(one[0] / config.num_layers, one[1], further)


def _least(call: Callable[[], Any]) -> float:
    """Returns the seconds of the quickest of some calls, after one that compiles."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return min(seconds)
