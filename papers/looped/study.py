"""Training of a looped network on a generated task, by a usual loss or constraints."""

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
    tail_mean,
)
from unroll_jax.looped import sample_far_start, sample_loops, sample_segment, step_sizes
from unroll_jax.train.config.options import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Seed,
    Text,
    Width,
    options,
)

__all__ = ["Study", "network", "train"]

FLOOR = 0.02  # loss in nats per position: bounds are not below it
# share of the loops of training after which the bound of the first window is the floor
MEET_BY = 0.6
# level of the tail mean on far windows: constraints bind the worst quarter of a batch
WORST = 0.75
LARGEST = 10.0  # root mean square of a state, about 1 in the prelude
STILL = 0.1  # largest root mean square of a step on far windows
CHUNK = 100  # steps in one call of the compiled program
FEWEST = 3  # loops that the method "random" draws at least


@options
class Study:
    """Train a network on a generated task, and evaluate it at more loops."""

    task: Literal["prefix-sums", "mazes", "addition"] = "prefix-sums"
    """The task; see papers/looped/tasks.py."""
    method: Literal["last", "random", "all", "progressive", "constrained"] = "all"
    """Loss of training: of the last loop, a random one, all, or a random segment, or
    under constraints."""
    far: Natural = 0
    """Half of the steps begin after 1 to this many loops without gradient; 0 for
    none."""
    still: NonNegative = 0.0
    """Weight of a penalty on the steps of far windows: a control, for any method but
    "constrained"."""
    split: Literal["test", "validation"] = "test"
    """Examples of the evaluation; choose settings on validation."""
    seed: Seed = 0
    """Seed of all random numbers."""
    steps: Count = 1500
    """Training steps."""
    batch: Count = 32
    """Examples per step."""
    loops: Count = 12
    """Loops of training."""
    width: Width = 32
    """Channels of the state."""
    size: Count = 20
    """Size of the examples of training: bits, digits, or cells per side."""
    test_sizes: tuple[int, ...] = (20, 80)
    """Sizes of the examples of the evaluation."""
    test_examples: Count = 256
    """Examples of the evaluation at each size."""
    learning_rate: Positive = 2e-3
    """Largest rate of Adam, after a warmup of 50 steps; then it falls as a cosine."""
    out: Text = "runs/looped"
    """Folder for the results, one JSON file per run; its table has a row for each
    method."""


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
    squares = jnp.mean(states**2, axis=tuple(range(2, states.ndim)))
    return jnp.mean(jnp.sqrt(squares + 1e-12), axis=1)


def rises(losses: jax.Array) -> jax.Array:
    """Relative rises of the losses of loops over the first loss of a window, (..., L).

    The first loss is a constant in gradients.
    """
    first = jax.lax.stop_gradient(losses[..., :1])
    return losses[..., 1:] / jnp.maximum(first, FLOOR) - 1.0


def violations(
    study: Study, losses: jax.Array, states: jax.Array
) -> dict[str, dict[str, jax.Array]]:
    """Violations of a window that begins with the prelude, and of one that begins far.

    ``losses`` are (loops + 1, examples), ``states`` (loops + 1, examples, ...). The
    bound of the first falls linearly from the loss of chance to the floor. Loops of the
    second may not be worse than its start, on the worst quarter of the examples, and
    their steps are bounded. The size of states is bounded in both.
    """
    share = np.arange(1, study.loops + 1) / (MEET_BY * study.loops)
    chance = np.log(TASKS[study.task].classes)
    levels = np.maximum(chance * (1.0 - share), FLOOR)
    size = level_constraints(LARGEST, form="log_ratio")(sizes(states))
    rise = tail_mean(WORST)(rises(losses.T))
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
    """The loss of a step of training.

    Under constraints also the kind of its window, and the violations, else None.
    """
    of_start, of_loops = jax.random.split(key)
    free = sample_far_start(of_start, study.far) if study.far else 0
    loops = study.loops
    most = None
    if study.method == "progressive":
        segment, loops = sample_segment(of_loops, study.loops)
        free = free + segment
        most = study.loops
    elif study.method == "random":
        least = min(FEWEST, study.loops)
        loops = sample_loops(of_loops, study.loops, least=least)
        most = study.loops
    record = losses_and_states(jnp.asarray(batch.targets))
    options = {"loops": loops, "free": free, "most": most, "record": record}
    _, (losses, states) = network(study).apply(params, batch.inputs, **options)
    means = jnp.mean(losses, axis=1)
    far = jnp.asarray(free) > 0
    value = jnp.mean(means[1:]) if study.method in ("all", "constrained") else means[-1]
    if study.method != "constrained":
        moved = jnp.where(far, jnp.mean(step_sizes(states)), 0.0)
        return value + study.still * moved, None
    seen = violations(study, losses, states)
    now = {"near": ~far, "far": far}
    for kind, held in now.items():
        value = jnp.where(held, lagrangian(value, seen[kind], multipliers[kind]), value)
    return value, (now, seen)


def train(study: Study) -> Any:
    """Trains a network, and returns its variables."""
    model = network(study)
    rng = np.random.default_rng(study.seed)
    draw = TASKS[study.task].draw
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, study.learning_rate, 50, max(study.steps, 51), 1e-5
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    ascent = dual_ascent(proportional_integral(0.1, 1.0, cap=10.0), cap=10.0)
    key = jax.random.key(study.seed)
    example = jnp.asarray(draw(rng, 1, study.size).inputs)
    params = model.init(key, example, loops=1)
    each = jnp.zeros(study.loops)
    duals = {"near": ascent.init({"level": each, "size": each})}
    duals["far"] = ascent.init({"rise": each, "size": each, "step": each})
    loss = functools.partial(objective, study=study)
    gradient = jax.value_and_grad(loss, has_aux=True)

    def update_on(held: jax.Array, dual: Any, violations: Any) -> Any:
        """Updates multipliers only on their kind of window.

        Their proportional parts last until the next one.
        """
        updated = ascent.update(dual, violations)
        return jax.tree.map(lambda new, old: jnp.where(held, new, old), updated, dual)

    def step(carried: Any, each: Any) -> tuple[Any, jax.Array]:
        params, state, duals = carried
        batch, key = each
        multipliers = {kind: dual.multipliers for kind, dual in duals.items()}
        (value, seen), grads = gradient(params, multipliers, batch, key)
        updates, state = optimizer.update(grads, state, params)
        if seen is not None:
            now, violated = seen
            duals = {
                kind: update_on(now[kind], dual, violated[kind])
                for kind, dual in duals.items()
            }
        return (optax.apply_updates(params, updates), state, duals), value

    carried = (params, optimizer.init(params), duals)
    chunk = jax.jit(
        lambda carried, batches, keys: jax.lax.scan(step, carried, (batches, keys))
    )
    for begin in range(0, study.steps, CHUNK):
        count = min(CHUNK, study.steps - begin)
        drawn = [draw(rng, study.batch, study.size) for _ in range(count)]
        batches = Batch(*map(np.stack, zip(*drawn, strict=True)))
        keys = jax.random.split(jax.random.fold_in(key, begin), count)
        carried, values = chunk(carried, batches, keys)
        mean = float(values.mean())
        sys.stdout.write(f"step {begin + count}: objective {mean:.4f}\n")
    params, _, _ = carried
    return params
