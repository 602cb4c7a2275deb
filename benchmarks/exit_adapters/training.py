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
RATE, WARM_UP = 3e-3, 20


def train(
    config: DecoderConfig,
    params: Any,
    states: States,
    layer: int,
    *,
    words: np.ndarray,
    steps: int,
    log: Callable[[str], None],
) -> ExitAdapter:
    """An adapter trained by Adam on the KL at the answers' tokens.

    Args:
      config, params: of the decoder.
      states: to train on.
      layer: which of the states' layers the adapter reads.
      words: the draft vocabulary.
      steps: of `BATCH` rows.
      log: takes a line now and then.
    """
    adapter = exit_adapter(jax.random.key(0), config, words=words)
    rates = optax.warmup_cosine_decay_schedule(0.0, RATE, min(WARM_UP, steps // 4), steps, RATE / 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates, b2=0.98))

    @jax.jit
    def step(params: Any, weights: Any, state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        y, last, segments, places, counted = batch

        def loss(weights: Any) -> jax.Array:
            both = (y.astype(jnp.float32), last.astype(jnp.float32))
            given = adapter._replace(weights=weights)
            losses = adapter_losses(config, params, given, both, places=places, segments=segments)
            return jnp.sum(losses * counted) / jnp.sum(counted)

        value, gradients = jax.value_and_grad(loss)(weights)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    weights, state, values, began = adapter.weights, optimizer.init(adapter.weights), [], time.perf_counter()
    for number, rows in enumerate(_rows(len(states.segments), steps), start=1):
        batch = (states.outputs[layer, rows], states.outputs[-1, rows], *(part[rows] for part in states[1:]))
        weights, state, value = step(params, weights, state, batch)
        values.append(float(value))
        if number % 50 == 0 or number == steps:
            log(f"  step {number}: KL {np.mean(values[-50:]):.3f}, {time.perf_counter() - began:.0f} s")
    return adapter._replace(weights=weights)


def _rows(count: int, steps: int) -> list[np.ndarray]:
    """Rows of each step, all of them once an epoch."""
    generator, size = np.random.default_rng(0), min(BATCH, count)
    orders = [generator.permutation(count)[: count // size * size].reshape(-1, size) for _ in range(steps)]
    return list(np.concatenate(orders)[:steps])
