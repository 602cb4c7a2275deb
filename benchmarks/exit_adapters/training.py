"""Training of an exit adapter on states of the frozen decoder."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.exit_adapters.texts import States
from unroll_jax.models import DecoderConfig, ExitAdapter, adapter_losses, exit_adapter

__all__ = ["train"]

BATCH = 4  # rows
RATE, WARM_UP = 2e-3, 100
LOGGED = 100  # steps between two lines


def train(
    config: DecoderConfig,
    params: Any,
    states: States,
    layer: int,
    *,
    words: np.ndarray,
    steps: int,
    log: Callable[[str], None],
    rate: float = RATE,
    batch: int = BATCH,
) -> ExitAdapter:
    """An adapter trained by Adam on the KL at the answers' tokens.

    Args:
      config, params: of the decoder.
      states: to train on.
      layer: which of the states' layers the adapter reads.
      words: the draft vocabulary.
      steps: of Adam.
      log: takes a line now and then.
      rate: of Adam, behind a warm-up and before a cosine.
      batch: rows of a step.
    """
    adapter = exit_adapter(jax.random.key(0), config, words=words)
    rates = optax.warmup_cosine_decay_schedule(0.0, rate, min(WARM_UP, steps // 4), steps, rate / 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates, b2=0.98))

    kept = jax.device_put(States(states.outputs[np.array([layer, -1])], *states[1:]))

    @jax.jit
    def step(params: Any, kept: States, weights: Any, state: Any, rows: jax.Array) -> tuple[Any, Any, jax.Array]:
        def loss(weights: Any) -> jax.Array:
            both = (kept.outputs[0, rows].astype(jnp.float32), kept.outputs[1, rows].astype(jnp.float32))
            given, counted = adapter._replace(weights=weights), kept.weights[rows]
            where = {"places": kept.places[rows], "segments": kept.segments[rows]}
            return jnp.sum(adapter_losses(config, params, given, both, **where) * counted) / jnp.sum(counted)

        value, gradients = jax.value_and_grad(loss)(weights)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    weights, state, values, began = adapter.weights, optimizer.init(adapter.weights), [], time.perf_counter()
    for number, rows in enumerate(_rows(len(states.segments), steps, batch), start=1):
        weights, state, value = step(params, kept, weights, state, rows)
        values.append(value)
        if number % LOGGED == 0 or number == steps:
            mean = np.mean(jax.device_get(values[-LOGGED:]))
            log(f"  step {number}: KL {mean:.3f}, {time.perf_counter() - began:.0f} s")
    return adapter._replace(weights=weights)


def _rows(count: int, steps: int, batch: int) -> list[np.ndarray]:
    """Rows of each step, all of them once an epoch."""
    generator, size = np.random.default_rng(0), min(batch, count)
    epochs = -(-steps // (count // size))
    orders = [generator.permutation(count)[: count // size * size].reshape(-1, size) for _ in range(epochs)]
    return list(np.concatenate(orders)[:steps])
