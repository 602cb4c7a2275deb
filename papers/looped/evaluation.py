"""Accuracy, exits and agreement at more loops than in training, and their table over
seeds."""

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

FEW = 64  # examples whose agreement is measured
GROWTH = (0.5, 1, 2, 4, 8, 25)  # loops of the evaluation over loops of training
EXITS = 8  # most loops with exits, likewise


def examples(study: Study, size: int, split: str) -> Batch:
    """Options of an evaluation."""
    rng = np.random.default_rng(2 ** (31 if split == "test" else 30) + size)
    return TASKS[study.task].draw(rng, study.test_examples, size)


@functools.partial(jax.jit, static_argnames="study")
def by_loops(
    study: Study, params: Any, inputs: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Examples all of whose positions are right after loops 1, 2, ..., changes of their
    states, and the last size.

    The first two are (loops, examples).
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
    """`path_independence` after 8 times the loops of training from the prelude,
    zeros, noise and other examples."""
    model = network(study)
    early = model.apply(params, inputs, loops=study.loops)[0]
    noise = jax.nn.relu(jax.random.normal(jax.random.key(0), early.shape))
    ends = [
        model.apply(
            params, inputs, state=start, loops=8 * study.loops, record=lambda *_: 0
        )[0]
        for start in (None, jnp.zeros_like(early), noise, jnp.roll(early, 1, axis=0))
    ]
    return jnp.mean(path_independence(jnp.stack(ends)))


def exits(
    changes: np.ndarray, solved: np.ndarray, threshold: float
) -> dict[str, float]:
    """Loops and accuracy with each example stopped by its rule, and the accuracy
    after all loops."""
    loops = exit_loops(changes, threshold)
    accuracy = solved[loops - 1, np.arange(len(loops))].mean()
    low, high = np.quantile(loops, [0.05, 0.95])
    mean = loops.mean()
    numbers = {
        "threshold": threshold,
        "loops": mean,
        "low": low,
        "high": high,
        "accuracy": accuracy,
    }
    return {
        name: float(value)
        for name, value in (numbers | {"all loops": solved[-1].mean()}).items()
    }


def evaluate(study: Study, params: Any, size: int, threshold: float) -> dict[str, Any]:
    """Shares of examples solved by loops, their exits, and the agreement of states
    from four starts."""
    numbers = [max(int(study.loops * growth), 1) for growth in GROWTH]
    batch, most = examples(study, size, study.split), EXITS * study.loops
    solved, changes, state = map(np.asarray, by_loops(study, params, *batch))
    accuracies = solved.mean(axis=1)
    return {
        "loops": numbers,
        "accuracy": [float(accuracies[number - 1]) for number in numbers],
        "best": float(accuracies.max()),
        "exit": exits(changes[:most], solved[:most], threshold),
        "path independence": float(agreement(study, params, batch.inputs[:FEW])),
        "state": float(state),
    }


def run(study: Study) -> dict[str, Any]:
    """Trains and evaluates; returns the results, which it keeps in a file of
    ``study.out``.

    The threshold of exits is calibrated on validation examples of the training size.
    """
    begin = time.perf_counter()
    params = train(study)
    seconds = time.perf_counter() - begin
    solved, changes, _ = map(
        np.asarray, by_loops(study, params, *examples(study, study.size, "validation"))
    )
    most = EXITS * study.loops
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
    name = f"{label(record['study']).replace(', ', '-').replace(' ', '')}-{study.task}-seed{study.seed}.json"
    (folder / name).write_text(json.dumps(record), encoding="utf-8")
    return record


def label(study: dict[str, Any]) -> str:
    """The name of a row: the method, and the options that differ from the defaults."""
    far = f", far starts to {study['far']}" if study["far"] else ""
    still = f", steps penalised by {study['still']:g}" if study.get("still") else ""
    usual = dataclasses.asdict(Study())
    named = (
        "method",
        "far",
        "still",
        "seed",
        "out",
        "task",
        "test_sizes",
        "test_examples",
        "learning_rate",
    )
    rate = (
        ""
        if study["learning_rate"] == usual["learning_rate"]
        else f", rate {study['learning_rate']:g}"
    )
    others = [
        name
        for name in usual
        if name not in named and study.get(name, usual[name]) != usual[name]
    ]
    return f"{study['method']}{far}{still}{rate}" + "".join(
        f", {name} {study[name]}" for name in others
    )


def table(folder: str | Path) -> str:
    """A table in Markdown of all results in a folder: means over seeds, with 95%
    intervals of Student's t.

    The last columns are the accuracy lost after the most loops, from the best over all
    loops, and the agreement.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        study = record["study"]
        for size, results in record["results"].items():
            groups.setdefault((study["task"], int(size), label(study)), []).append(
                results
            )
    lines = []
    for (task, size, name), runs in sorted(groups.items()):
        lost = [run["best"] - run["accuracy"][-1] for run in runs]
        columns = [*zip(*(run["accuracy"] for run in runs), strict=True), lost]
        heads = [str(number) for number in runs[0]["loops"]]
        header = (
            f"| {task}, size {size} | seeds | {' | '.join(heads)} | lost | agreement |"
        )
        if header not in lines:
            lines += ["", header, "|---" * (len(heads) + 4) + "|"]
        cells = " | ".join(
            map(interval, [*columns, [run["path independence"] for run in runs]])
        )
        lines.append(f"| {name} | {len(runs)} | {cells} |")
    return "\n".join(lines[1:]) + "\n"


def interval(values: Sequence[float]) -> str:
    """The mean, and half of the 95% interval of Student's t where there are two
    values or more that differ."""
    half = (
        0.0
        if len(values) < 2
        else float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    )
    return f"{np.mean(values):.3f}" + (f" ± {half:.3f}" if half > 5e-4 else "")
