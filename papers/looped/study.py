"""Trains a looped network on a generated task in one of the field's ways, or under
constraints."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from papers.looped.network import LoopedNetwork
from papers.looped.tasks import TASKS, Batch
from unroll_jax.constrained import (
    dual_ascent,
    lagrangian,
    level_constraints,
    proportional_integral,
    sample_constraints,
    tail_mean,
)
from unroll_jax.looped import sample_far_start, sample_loops, sample_segment, step_sizes
from unroll_jax.train.config.fields import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Seed,
    Width,
)

__all__ = ["Study", "network", "train"]

FLOOR = 0.02  # loss, nats a position: constraints ask for no less
# share of the loops of training by which the bound of the first window has fallen to
# the floor
MEET_BY = 0.6
# level of the tail mean on far windows: constraints bind the worst quarter of a batch
WORST = 0.75
LARGEST = 10.0  # root mean square of a state; the prelude's is about 1
STILL = 0.1  # largest root mean square of a step on far windows
CHUNK = 100  # steps in one call of the compiled program
FEWEST = 3  # loops that the method "random" draws at least


@dataclasses.dataclass(frozen=True)
class Study:
    """One network trained on a generated task, and its accuracy at more loops than
    in training."""

    task: Literal["prefix-sums", "mazes", "addition"] = "prefix-sums"
    """The task; see papers/looped/tasks.py."""
    method: Literal["last", "random", "all", "progressive", "constrained"] = "all"
    """Loss of training: that of the last loop, of a random one, of all, of a random
    segment, or under constraints."""
    far: Natural = 0
    """Half of the steps begin after 1 to this many loops without gradient; 0 for
    none."""
    still: NonNegative = 0.0
    """Weight of a penalty on the steps of far windows: a control, for any method but
    "constrained"."""
    split: Literal["test", "validation"] = "test"
    """Examples of the evaluation: choose settings on those of validation."""
    seed: Seed = 0
    """Seed of all random numbers."""
    steps: Count = 1500
    """Training steps."""
    batch: Count = 32
    """Examples a step."""
    loops: Count = 12
    """Loops of training."""
    width: Width = 32
    """Channels of the state."""
    size: Count = 20
    """Size of the examples of training: bits, digits, or cells a side."""
    test_sizes: tuple[int, ...] = (20, 80)
    """Sizes of those of the evaluation."""
    test_examples: Count = 256
    """Examples of the evaluation at each size."""
    learning_rate: Positive = 2e-3
    """Largest of Adam's, after a warmup of 50 steps; a cosine from there."""
    out: str = "runs/looped"
    """Folder for the results, a JSON file a run; the table has a row for each method
    in it."""


def network(study: Study) -> Any:
    """The network of a task."""
    task = TASKS[study.task]
    return LoopedNetwork(study.width, num_outputs=task.classes, ndim=task.ndim)


def losses_and_states(
    targets: jax.Array,
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """The cross-entropy of every example, a mean over its positions, and its state."""

    def record(logits: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return jnp.mean(each, axis=tuple(range(1, each.ndim))), h

    return record


def sizes(states: jax.Array) -> jax.Array:
    """Root mean squares of states (loops, examples, ...), means over the examples."""
    return jnp.mean(
        jnp.sqrt(jnp.mean(states**2, axis=tuple(range(2, states.ndim))) + 1e-12), axis=1
    )


def rises(losses: jax.Array) -> jax.Array:
    """By how much of the first loss of a window, a constant in gradients, those of
    its loops exceed it, (..., L)."""
    first = jax.lax.stop_gradient(losses[..., :1])
    return losses[..., 1:] / jnp.maximum(first, FLOOR) - 1.0


def violations(
    study: Study, losses: jax.Array, states: jax.Array
) -> dict[str, dict[str, jax.Array]]:
    """Violations of a window that begins with the prelude, and of one that begins far.

    ``losses`` are (loops + 1, examples), ``states`` (loops + 1, examples, ...). The
    bound of the first falls linearly from the loss of chance to the floor. Loops of the
    second may not be worse than its start, on the worst quarter of the examples, and
    their steps are bounded. No state of either may be larger than a bound.
    """
    numbers, chance = np.arange(1, study.loops + 1), np.log(TASKS[study.task].classes)
    levels = np.maximum(chance * (1.0 - numbers / (MEET_BY * study.loops)), FLOOR)
    size = level_constraints(LARGEST, form="log_ratio")(sizes(states))
    rise = sample_constraints(rises, tail_mean(WORST))(losses.T)
    moved = jnp.mean(step_sizes(states), axis=1)
    # no step leads to the first state
    steps = level_constraints(STILL, form="log_ratio")(jnp.pad(moved, (1, 0)))
    level = level_constraints(levels)(jnp.mean(losses, axis=1))
    return {
        "near": {"level": level, "size": size},
        "far": {"rise": rise, "size": size, "step": steps},
    }


def objective(
    params: Any, multipliers: Any, batch: Batch, key: jax.Array, *, study: Study
) -> tuple[jax.Array, Any]:
    """The loss of a step of training; and of constraints, which kind of window it
    had, and the violations, or None."""
    of_start, of_loops = jax.random.split(key)
    free = sample_far_start(of_start, study.far) if study.far else 0
    loops, most = study.loops, None
    if study.method == "progressive":
        segment, loops = sample_segment(of_loops, study.loops)
        free, most = free + segment, study.loops
    elif study.method == "random":
        loops, most = (
            sample_loops(of_loops, study.loops, least=min(FEWEST, study.loops)),
            study.loops,
        )
    record = losses_and_states(jnp.asarray(batch.targets))
    options = {"loops": loops, "free": free, "most": most, "record": record}
    _, (losses, states) = network(study).apply(params, batch.inputs, **options)
    means, far = jnp.mean(losses, axis=1), jnp.asarray(free) > 0
    value = jnp.mean(means[1:]) if study.method in ("all", "constrained") else means[-1]
    if study.method != "constrained":
        return value + study.still * jnp.where(
            far, jnp.mean(step_sizes(states)), 0.0
        ), None
    seen, now = violations(study, losses, states), {"near": ~far, "far": far}
    for kind, held in now.items():
        value = jnp.where(held, lagrangian(value, seen[kind], multipliers[kind]), value)
    return value, (now, seen)


def train(study: Study) -> Any:
    """Trains a network; returns its variables."""
    model, rng = network(study), np.random.default_rng(study.seed)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, study.learning_rate, 50, max(study.steps, 51), 1e-5
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    ascent = dual_ascent(proportional_integral(0.1, 1.0, cap=10.0), cap=10.0)
    key = jax.random.key(study.seed)
    params = model.init(
        key, jnp.asarray(TASKS[study.task].draw(rng, 1, study.size).inputs), loops=1
    )
    each = jnp.zeros(study.loops)
    duals = {"near": ascent.init({"level": each, "size": each})}
    duals["far"] = ascent.init({"rise": each, "size": each, "step": each})
    gradient = jax.value_and_grad(
        functools.partial(objective, study=study), has_aux=True
    )

    def moved(dual: Any, violations: Any, held: jax.Array) -> Any:
        """Multipliers move only on their kind of window: their proportional parts
        last until the next."""
        return jax.tree.map(
            lambda new, old: jnp.where(held, new, old),
            ascent.update(dual, violations),
            dual,
        )

    def step(carried: Any, each: Any) -> tuple[Any, jax.Array]:
        (params, state, duals), (batch, key) = carried, each
        multipliers = {kind: dual.multipliers for kind, dual in duals.items()}
        (value, seen), grads = gradient(params, multipliers, batch, key)
        updates, state = optimizer.update(grads, state, params)
        if seen is not None:
            now, violated = seen
            duals = {
                kind: moved(dual, violated[kind], now[kind])
                for kind, dual in duals.items()
            }
        return (optax.apply_updates(params, updates), state, duals), value

    carried = (params, optimizer.init(params), duals)
    chunk = jax.jit(
        lambda carried, batches, keys: jax.lax.scan(step, carried, (batches, keys))
    )
    for begin in range(0, study.steps, CHUNK):
        count = min(CHUNK, study.steps - begin)
        drawn = [
            TASKS[study.task].draw(rng, study.batch, study.size) for _ in range(count)
        ]
        batches = Batch(*(np.stack(parts) for parts in zip(*drawn, strict=True)))
        carried, values = chunk(
            carried, batches, jax.random.split(jax.random.fold_in(key, begin), count)
        )
        sys.stdout.write(
            f"step {begin + count}: objective {float(values.mean()):.4f}\n"
        )
    return carried[0]
