"""Costs of the parts of drafted decoding of one text, which bound what drafts can save."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from unroll_jax.models.language.exit_adapters import decode_adapted, draft_head, draft_logits

from benchmarks.record import Record
from benchmarks.timing import interleaved, table
from unroll_jax.models import ExitAdapter, KeyValueCache, decode, decoder_logits, empty_cache
from unroll_jax.train.loading import Opened

__all__ = ["cost_table"]

CAPACITY, REPEATS = 128, 15


def cost_table(
    record: Record, opened: Opened, adapter: ExitAdapter, layer: int, draft_lengths: Sequence[int]
) -> dict[int, float]:
    """Prints milliseconds of each part; returns the cost of a draft with its verification, over that of plain decoding.

    The result has an entry for each draft length.
    """
    config, params = opened.config, opened.params
    cache = empty_cache(config, 1, CAPACITY)
    adapter_cache = KeyValueCache(cache.keys[:1], cache.values[:1])
    layers = jax.jit(
        lambda params, y, places, first, last: decode(config, params, y, cache, places, first=first, last=last)
    )
    head = jax.jit(lambda params, y: jnp.argmax(decoder_logits(config, params, y), axis=-1))
    block = jax.jit(lambda adapter, y, places: decode_adapted(config, adapter, y, adapter_cache, places))
    rows = jax.jit(lambda params, adapter: draft_head(params, adapter))(params, adapter)
    reduced = jax.jit(lambda rows, y: jnp.argmax(draft_logits(config, rows, y), axis=-1))
    calls: dict[str, Callable[[], object]] = {}

    def add(name: str, call: Callable[[], object]) -> None:
        calls[name] = lambda: jax.block_until_ready(call())

    for count in (1, *(length + 1 for length in draft_lengths)):
        y, places = jnp.ones((1, count, config.dim)), jnp.arange(count)[None]
        ends = (jnp.int32(layer), jnp.int32(config.num_layers))
        add(
            f"layers {layer + 1} to {config.num_layers}, {count} tokens",
            lambda y=y, p=places, e=ends: layers(params, y, p, *e),
        )
        add(f"head, {count} tokens", lambda y=y: head(params, y))
    one, place, none = jnp.ones((1, 1, config.dim)), jnp.zeros((1, 1), jnp.int32), jnp.int32(0)
    add(f"layers 1 to {layer}, 1 token", lambda: layers(params, one, place, none, jnp.int32(layer)))
    add("adapter, 1 token", lambda: block(adapter, one, place))
    add("head of the draft vocabulary, 1 token", lambda: reduced(rows, one))
    seconds = {name: float(np.median(each)) for name, each in interleaved(calls, repeats=REPEATS).items()}
    for name, value in seconds.items():
        record.figures[f"{name}_seconds".replace(",", "").replace(" ", "_")] = value
    print(table(["part", "ms"], [[name, f"{1e3 * value:.2f}"] for name, value in seconds.items()]))

    early, own_cost, small = (seconds[name] for name in list(seconds)[-3:])

    def rest(count: int) -> float:
        return seconds[f"layers {layer + 1} to {config.num_layers}, {count} tokens"] + seconds[f"head, {count} tokens"]

    plain = early + rest(1)
    bounds, costs = [], {}
    for length in draft_lengths:
        cost = length * (early + own_cost + small) + early + rest(length + 1)
        record.figures[f"draft_{length}_cost_over_plain"] = costs[length] = cost / plain
        bounds.append([str(length), f"{cost / plain:.2f}", f"{(length + 1) * plain / cost:.2f}"])
    print(table(["draft", "cost over plain", "speed-up if all stand"], bounds), flush=True)
    return costs
