"""Accuracy, exits and agreement at more loops than in training, and their table."""

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from papers.looped.exits import exit_loops, exit_threshold, state_changes
from papers.looped.study import Study, network, train
from papers.looped.tasks import TASKS, Batch
from unroll_jax.looped import path_independence

__all__ = ["evaluate", "run", "table"]

AGREEMENT_EXAMPLES = 64  # examples whose agreement is measured
# Multiples of the loops of training.
GROWTH = (0.5, 1, 2, 4, 8, 25)  # loops of the evaluation
MAX_EXIT = 8  # most loops before an exit
# Fields of a study that `label` leaves out.
UNLABELLED = ("method", "far", "still", "learning_rate", "seed", "out", "task")
UNLABELLED += ("test_sizes", "test_examples")


def examples(study: Study, size: int, split: str) -> Batch:
    """Examples of a split. Each size has different ones."""
    rng = np.random.default_rng(2 ** (31 if split == "test" else 30) + size)
    return TASKS[study.task].draw(rng, study.test_examples, size)


@functools.partial(jax.jit, static_argnames="study")
def by_loops(
    study: Study, params: Any, inputs: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Examples solved by loops, changes of their states, and the last size of states.

    The first two are of loops 1, 2, ..., (loops, examples). An example is solved if all
    its positions are right.
    """
    model = network(study)

    def record(logits: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        right = jnp.argmax(logits, axis=-1) == targets
        return jnp.all(right, axis=tuple(range(1, right.ndim))), h

    def loop(h: jax.Array, _: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        solved, states = model.apply(params, inputs, loops=1, state=h, record=record)[1]
        return states[1], (solved[1], state_changes(states)[0])

    start = model.apply(params, inputs, loops=1, record=lambda _, h: h)[1][0]
    h, (solved, changes) = jax.lax.scan(loop, start, length=study.loops * GROWTH[-1])
    return solved, changes, jnp.sqrt(jnp.mean(h**2))


@functools.partial(jax.jit, static_argnames="study")
def agreement(study: Study, params: Any, inputs: jax.Array) -> jax.Array:
    """`path_independence` of states after 8 times the loops of training.

    They start from the prelude, zeros, noise and the states of other examples.
    """
    model = network(study)
    early, _ = model.apply(params, inputs, loops=study.loops)
    noise = jax.nn.relu(jax.random.normal(jax.random.key(0), early.shape))
    options = {"loops": 8 * study.loops, "record": lambda *_: 0}
    ends = []
    for start in (None, jnp.zeros_like(early), noise, jnp.roll(early, 1, axis=0)):
        end, _ = model.apply(params, inputs, state=start, **options)
        ends.append(end)
    return jnp.mean(path_independence(jnp.stack(ends)))


def exits(
    changes: np.ndarray, solved: np.ndarray, threshold: float
) -> dict[str, float]:
    """Loops and accuracy if each example exits by its changes, and without exits."""
    loops = exit_loops(changes, threshold)
    low, high = np.quantile(loops, [0.05, 0.95])
    figures = {
        "threshold": threshold,
        "loops": loops.mean(),
        "low": low,
        "high": high,
        "accuracy": solved[loops - 1, np.arange(len(loops))].mean(),
        "all loops": solved[-1].mean(),
    }
    return {name: float(value) for name, value in figures.items()}


def evaluate(study: Study, params: Any, size: int, threshold: float) -> dict[str, Any]:
    """Shares of examples solved by loops, their exits, and the agreement of states."""
    numbers = [max(int(study.loops * growth), 1) for growth in GROWTH]
    batch = examples(study, size, study.split)
    most = MAX_EXIT * study.loops
    solved, changes, state = map(np.asarray, by_loops(study, params, *batch))
    accuracies = solved.mean(axis=1)
    return {
        "loops": numbers,
        "accuracy": [float(accuracies[number - 1]) for number in numbers],
        "best": float(accuracies.max()),
        "exit": exits(changes[:most], solved[:most], threshold),
        "path independence": float(
            agreement(study, params, batch.inputs[:AGREEMENT_EXAMPLES])
        ),
        "state": float(state),
    }


def run(study: Study) -> dict[str, Any]:
    """Trains and evaluates, returns the results, and writes them into ``study.out``.

    The threshold of exits is calibrated on validation examples of the training size.
    """
    begin = time.perf_counter()
    params = train(study)
    seconds = time.perf_counter() - begin
    batch = examples(study, study.size, "validation")
    solved, changes, _ = map(np.asarray, by_loops(study, params, *batch))
    most = MAX_EXIT * study.loops
    threshold = exit_threshold(changes[:most], solved[:most])
    results = {
        str(size): evaluate(study, params, size, threshold) for size in study.test_sizes
    }
    record = {
        "study": dataclasses.asdict(study),
        "seconds": round(seconds, 1),
        "results": results,
    }
    folder = Path(study.out)
    folder.mkdir(parents=True, exist_ok=True)
    words = label(record["study"]).replace(", ", "-").replace(" ", "")
    file = folder / f"{words}-{study.task}-seed{study.seed}.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    return record


def label(study: dict[str, Any]) -> str:
    """The name of a row: the method, and the options that differ from the defaults."""
    usual = dataclasses.asdict(Study())
    words = [study["method"]]
    if study["far"]:
        words.append(f"far starts to {study['far']}")
    if study.get("still"):
        words.append(f"steps penalised by {study['still']:g}")
    if study["learning_rate"] != usual["learning_rate"]:
        words.append(f"rate {study['learning_rate']:g}")
    for name, value in usual.items():
        if name not in UNLABELLED and study.get(name, value) != value:
            words.append(f"{name} {study[name]}")
    return ", ".join(words)


def table(folder: str | Path) -> str:
    """A table in Markdown of all results in a folder: means and intervals over seeds.

    The last columns are the accuracy lost from the best over all loops to the most
    loops, and the agreement.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        study = record["study"]
        for size, results in record["results"].items():
            key = study["task"], int(size), label(study)
            groups.setdefault(key, []).append(results)
    lines = []
    for (task, size, name), runs in sorted(groups.items()):
        lost = [run["best"] - run["accuracy"][-1] for run in runs]
        agreed = [run["path independence"] for run in runs]
        columns = [*zip(*(run["accuracy"] for run in runs), strict=True), lost, agreed]
        loops = " | ".join(map(str, runs[0]["loops"]))
        header = f"| {task}, size {size} | seeds | {loops} | lost | agreement |"
        if header not in lines:
            lines += ["", header, "|---" * (len(columns) + 2) + "|"]
        cells = " | ".join(map(interval, columns))
        lines.append(f"| {name} | {len(runs)} | {cells} |")
    return "\n".join(lines[1:]) + "\n"


def interval(values: Sequence[float]) -> str:
    """The mean, and half of the 95% interval of Student's t if values differ."""
    half = 0.0
    if len(values) > 1:
        half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{np.mean(values):.3f}" + (f" ± {half:.3f}" if half > 5e-4 else "")
