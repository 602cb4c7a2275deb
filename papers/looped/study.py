"""Trains a looped network on a generated task in one of the field's ways, and measures it at more loops."""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from papers.looped.tasks import TASKS, Batch
from unroll_jax.constrained import (
    dual_ascent,
    dual_optimizer,
    lagrangian,
    level_constraints,
    sample_constraints,
    tail_mean,
)
from unroll_jax.looped import (
    Loops,
    all_loops_loss,
    never_rise,
    path_independence,
    sample_far_start,
    sample_loops,
    sample_segment,
)
from unroll_jax.models import LoopedNetwork
from unroll_jax.train.config.fields import Count, Natural, Positive, Seed, Width

__all__ = ["Study", "evaluate", "run", "table", "train"]

FLOOR = 0.02  # loss, nats a position: constraints ask for no less
MEET_BY = 0.6  # share of the loops of training by which the bound of the first window has fallen to the floor
WORST = 0.75  # level of the tail mean on far windows: constraints bind the worst quarter of a batch
LARGEST = 10.0  # root mean square of a state; the prelude's is about 1
CHUNK = 100  # steps in one call of the compiled program
FEWEST = 3  # loops that the method "random" draws at least
GROWTH = (0.5, 1, 2, 4, 8, 24)  # loops of the evaluation, in those of training


@dataclasses.dataclass(frozen=True)
class Study:
    """One network trained on a generated task, and its accuracy at numbers of loops beyond those of training."""

    task: Literal["prefix-sums", "mazes"] = "prefix-sums"
    """The task; see papers/looped/tasks.py."""
    method: Literal["last", "random", "all", "progressive", "constrained"] = "all"
    """Loss of training: that of the last loop, of a random one, of all, of a random segment, or under constraints."""
    far: Natural = 0
    """Half of the steps begin after 1 to this many loops without gradient; 0 for none."""
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
    """Size of the examples of training: bits, or cells a side."""
    test_sizes: tuple[int, ...] = (20, 80)
    """Sizes of those of the evaluation."""
    test_examples: Count = 256
    """Examples of the evaluation at each size."""
    learning_rate: Positive = 2e-3
    """Largest of Adam's, after a warmup of 50 steps; a cosine from there."""
    out: str = "runs/looped"
    """Folder for the results, a JSON file a run; the table has a row for each method in it."""


def network(study: Study) -> Any:
    """The network of a task: strings have one axis and parities two classes, mazes two axes and two classes."""
    return LoopedNetwork(study.width, num_outputs=2, ndim=1 if study.task == "prefix-sums" else 2)


def losses_and_sizes(targets: jax.Array) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """The cross-entropy of every example, a mean over its positions, and the root mean square of its state."""

    def record(logits: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        axes = tuple(range(1, each.ndim))
        return jnp.mean(each, axis=axes), jnp.sqrt(jnp.mean(h**2, axis=(*axes, h.ndim - 1)) + 1e-12)

    return record


def violations(study: Study, losses: jax.Array, sizes: jax.Array) -> dict[str, jax.Array]:
    """Violations of a window that begins with the prelude, of one that begins far, and of both.

    ``losses`` and ``sizes`` are (loops + 1, examples). The bound of the first falls linearly from log 2, the loss of
    chance, to the floor; loops of a far window may not be worse than its start, on the worst quarter of the examples;
    no state of any window may be larger than a bound.
    """
    numbers = np.arange(1, study.loops + 1)
    levels = np.maximum(np.log(2.0) * (1.0 - numbers / (MEET_BY * study.loops)), FLOOR)
    far = sample_constraints(never_rise(FLOOR), tail_mean(WORST))
    return {
        "near": level_constraints(levels)(jnp.mean(losses, axis=1)),
        "far": far(losses.T),
        "state": level_constraints(LARGEST, form="log_ratio")(jnp.mean(sizes, axis=1)),
    }


def objective(
    params: Any, multipliers: Any, batch: Batch, key: jax.Array, *, study: Study
) -> tuple[jax.Array, dict[str, jax.Array] | None]:
    """The loss of a step of training, and the violations of its window: those of constraints elsewhere are 0."""
    of_start, of_loops = jax.random.split(key)
    free = sample_far_start(of_start, study.far) if study.far else 0
    loops, most = study.loops, None
    if study.method == "progressive":
        segment, loops = sample_segment(of_loops, study.loops)
        free, most = free + segment, study.loops
    elif study.method == "random":
        loops, most = sample_loops(of_loops, study.loops, least=min(FEWEST, study.loops)), study.loops
    record = losses_and_sizes(jnp.asarray(batch.targets))
    options = {"loops": loops, "free": free, "most": most, "record": record}
    losses, sizes = network(study).apply(params, batch.inputs, **options).records
    means = jnp.mean(losses, axis=1)
    if study.method == "all":
        return all_loops_loss(means), None
    if study.method != "constrained":
        return means[-1], None
    near, both = jnp.asarray(free) == 0, violations(study, losses, sizes)
    # Violations of the other kind of window are 0: its integrals keep their values, its proportional parts end.
    masked = both | {"near": jnp.where(near, both["near"], 0.0), "far": jnp.where(near, 0.0, both["far"])}
    return lagrangian(means[-1], masked, multipliers), masked


def train(study: Study) -> Any:
    """Trains a network; returns its variables."""
    model, rng = network(study), np.random.default_rng(study.seed)
    schedule = optax.warmup_cosine_decay_schedule(0.0, study.learning_rate, 50, max(study.steps, 51), 1e-5)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    ascent = dual_ascent(dual_optimizer("pi", 0.1, proportional_gain=1.0, cap=10.0), cap=10.0)
    key = jax.random.key(study.seed)
    params = model.init(key, jnp.asarray(TASKS[study.task](rng, 1, study.size).inputs), loops=1)
    duals = ascent.init({name: jnp.zeros(study.loops) for name in ("near", "far", "state")})
    gradient = jax.value_and_grad(functools.partial(objective, study=study), has_aux=True)

    def step(carried: Any, each: Any) -> tuple[Any, jax.Array]:
        (params, state, duals), (batch, key) = carried, each
        (value, masked), grads = gradient(params, duals.multipliers, batch, key)
        updates, state = optimizer.update(grads, state, params)
        duals = duals if masked is None else ascent.update(duals, masked)
        return (optax.apply_updates(params, updates), state, duals), value

    carried = (params, optimizer.init(params), duals)
    chunk = jax.jit(lambda carried, batches, keys: jax.lax.scan(step, carried, (batches, keys)))
    for begin in range(0, study.steps, CHUNK):
        count = min(CHUNK, study.steps - begin)
        drawn = [TASKS[study.task](rng, study.batch, study.size) for _ in range(count)]
        batches = Batch(*(np.stack(parts) for parts in zip(*drawn, strict=True)))
        carried, values = chunk(carried, batches, jax.random.split(jax.random.fold_in(key, begin), count))
        sys.stdout.write(f"step {begin + count}: objective {float(values.mean()):.4f}\n")
    return carried[0]


def evaluate(study: Study, params: Any, size: int) -> dict[str, Any]:
    """Shares of examples all of whose positions are right, by loops, and the agreement of states from four starts."""
    model = network(study)
    inputs, targets = TASKS[study.task](np.random.default_rng(2**31 + size), study.test_examples, size)
    numbers = [max(int(study.loops * growth), 1) for growth in GROWTH]

    def solved(logits: jax.Array, _: jax.Array) -> jax.Array:
        right = jnp.argmax(logits, axis=-1) == targets
        return jnp.mean(jnp.all(right, axis=tuple(range(1, right.ndim))))

    @jax.jit
    def run(params: Any, inputs: jax.Array) -> tuple[jax.Array, jax.Array, list[Loops]]:
        result = model.apply(params, inputs, loops=max(numbers), record=solved)
        state, apart = result.state, study.loops * 8
        noise = jax.nn.relu(jax.random.normal(jax.random.key(0), state.shape))
        early = model.apply(params, inputs, loops=study.loops).state
        starts = [None, jnp.zeros_like(state), noise, jnp.roll(early, 1, axis=0)]
        ends = [model.apply(params, inputs, state=start, loops=apart, record=solved) for start in starts]
        return result.records, jnp.sqrt(jnp.mean(state**2)), ends

    accuracies, size_of_state, ends = run(params, jnp.asarray(inputs))
    agreement = path_independence(jnp.stack([end.state for end in ends]))
    return {
        "loops": numbers,
        "accuracy": [float(accuracies[number]) for number in numbers],
        "best": float(jnp.max(accuracies)),
        "from other starts": [float(end.records[-1]) for end in ends],
        "path independence": float(jnp.mean(agreement)),
        "state": float(size_of_state),
    }


def run(study: Study) -> dict[str, Any]:
    """Trains and evaluates; returns the results, which it keeps in a file of ``study.out``."""
    begin = time.perf_counter()
    params = train(study)
    seconds = time.perf_counter() - begin
    results = {str(size): evaluate(study, params, size) for size in study.test_sizes}
    record = {"study": dataclasses.asdict(study), "seconds": round(seconds, 1), "results": results}
    folder = Path(study.out)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{study.task}-{study.method}-far{study.far}-seed{study.seed}.json"
    (folder / name).write_text(json.dumps(record), encoding="utf-8")
    return record


def table(folder: str | Path) -> str:
    """A table in Markdown of all results in a folder: means over seeds, and the smallest and largest value."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        study = record["study"]
        far = f", far starts to {study['far']}" if study["far"] else ""
        for size, results in record["results"].items():
            key = (study["task"], size, study["method"] + far)
            groups.setdefault(key, []).append(results)
    lines = []
    for (task, size, method), runs in sorted(groups.items()):
        columns = [*zip(*(run["accuracy"] for run in runs), strict=True), [run["path independence"] for run in runs]]
        heads = [str(number) for number in runs[0]["loops"]]
        header = f"| {task}, size {size} | seeds | {' | '.join(heads)} | agreement |"
        if header not in lines:
            lines += ["", header, "|---" * (len(heads) + 3) + "|"]
        cells = (f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in columns)
        lines.append(f"| {method} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"
