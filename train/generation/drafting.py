"""The quickest exit layer and draft length of a language model on this machine, measured on a few prompts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import Costs, DecoderConfig, choose_draft, decode, decoder_logits, empty_cache

from ..config.errors import UserError

Log = Callable[[str], None]
SEVERAL = 5  # tokens in one call, to measure what each further one costs
REPEATS = 5
MEASURED_TOKENS = 64  # of an answer that acceptance is measured on


def chosen(
    config: DecoderConfig,
    params: Any,
    prompts: Sequence[np.ndarray],
    options: Mapping[str, Any],
    log: Log,
    *,
    costs: Costs | None,
) -> dict[str, int | None]:
    """The options of `speculate` with the largest expected speed-up, or None for both where no draft pays.

    Args:
      config: of the decoder.
      params: of the decoder.
      prompts: tokens of each.
      options: of `generate`; acceptance is measured on greedy answers.
      log: takes the line that says what was chosen.
      costs: measured ones; None takes the weights that are read, which no clock changes.

    Raises:
      UserError: if the answers are too short to measure on.
    """
    given = {**options, "max_tokens": min(options["max_tokens"], MEASURED_TOKENS)}
    try:
        best = choose_draft(config, params, prompts, costs=costs, **given)
    except ValueError as error:
        raise UserError(f"--speculate auto: {error}; give --exit-layer and --draft-length") from error
    words = (
        f"{best.exit_layer} of {config.num_layers} layers draft {best.draft_length} tokens: "
        f"acceptance {best.rate:.0%}, {best.tokens:.2f} tokens a verification, expected speed-up {best.speedup:.2f} "
        f"(by {'the weights that are read' if costs is None else 'timing'})"
    )
    if best.speedup <= 1.0:
        log(f"no draft pays, answers are generated plainly; the best: {words}")
        return {"exit_layer": None, "draft_length": None}
    again = f"--exit-layer {best.exit_layer} --draft-length {best.draft_length}"
    log(f"{words}; {again} takes the same again")
    return {"exit_layer": best.exit_layer, "draft_length": best.draft_length}


def measured_costs(config: DecoderConfig, params: Any, *, batch: int, capacity: int = 256) -> Costs:
    """Seconds of a layer and of the head on one token of each row, and what further tokens in a call add.

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
    """Seconds of the quickest of some calls, after one that compiles."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return min(seconds)
