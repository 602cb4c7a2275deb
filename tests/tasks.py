"""Claims about a small run of any task, which its tests make, and data in memory to
train one on."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.train.commands import quiet, read
from unroll_jax.train import Model, load
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit


class InMemory:
    splits: dict[str, Any]

    def num_examples(self, split: str) -> int:
        return len(self.splits[split][0])

    def whole(self, split: str) -> Any:
        return self.splits[split]

    def read(self, split: str, numbers: Any) -> Any:
        whole = self.splits[split]
        return type(whole)(*(part[numbers] for part in whole))

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[Any]:
        step = start_step
        while True:
            numbers = np.random.default_rng((seed, step)).integers(
                0, self.num_examples(split), batch_size
            )
            yield self.read(split, numbers if rows is None else numbers[rows])
            step += 1

    def examples(self, split: str, *, batch_size: int) -> Iterator[Any]:
        for start in range(0, self.num_examples(split), batch_size):
            yield self.read(split, slice(start, start + batch_size))


def drawn(task: Any) -> Any:
    """Parameters of a task as they start, of one program."""
    return jax.jit(lambda: task.init(jax.random.key(0)))()


def assert_same_bits(tree: Any, other: Any) -> None:
    """The leaves of two trees of one structure, scalars and NaN too."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    pairs = zip(*map(jax.tree.leaves, (tree, other)), strict=True)
    for one, another in (map(np.asarray, pair) for pair in pairs):
        assert (one.dtype, one.shape) == (another.dtype, another.shape)
        assert one.tobytes() == another.tobytes()


def without_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("unroll_jax.train.report.write_report", lambda *_, **__: None)


def perturbed(params: Any) -> Any:
    rng = np.random.default_rng(0)
    move = lambda leaf: 0.05 * rng.normal(size=leaf.shape) + np.asarray(leaf)
    return jax.device_put(jax.tree.map(move, params))


def assert_resumes(
    config: Any, whole: Path, again: Path, *, experiment: str, steps: tuple[int, int]
) -> dict[str, Any]:
    """A copy of a run that is cut back to the first of two checkpoints ends as the
    whole. Returns its evaluation."""
    log: list[str] = []
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / str(steps[1]))
    for name in ("status.json", "evaluation.json"):
        (again / name).unlink()
    with pytest.MonkeyPatch.context() as patch:
        without_report(patch)
        fit(config, out=again, experiment=experiment, log=log.append)
    assert f"going on from the checkpoint of step {steps[0]}" in log
    assert_same_end(whole, again, step=steps[1])
    return read(again / "evaluation.json")


def assert_same_end(whole: Path, again: Path, *, step: int) -> None:
    """Two runs have the same metrics, evaluation and last state, bit for bit."""

    def end(run: Path) -> tuple[bytes, dict[str, Any], str]:
        evaluation = read(run / "evaluation.json") | {"train_seconds": None}
        notes = read(run / f"checkpoints/{step}/notes/metadata")
        return (run / "metrics.jsonl").read_bytes(), evaluation, notes["digest"][0]

    assert end(whole) == end(again)


@contextlib.contextmanager
def without_data(run: Path, out: Path, place: str) -> Iterator[list[Model]]:
    export(run, out, log=quiet)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("data are read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, refuse)
        models = [load(folder, log=quiet) for folder in (run, out)]
        assert {model.card["step"] for model in models} == {
            read(run / "evaluation.json")["best_step"]
        }
        yield models
