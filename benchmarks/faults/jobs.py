"""The commands that faults come over: how each is started, when it is in the middle, and what must come of it."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.kills import arguments, figures_without_times, newest, outcome
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.video import load

__all__ = ["JOBS", "Job", "fresh"]

SHORT = {"steps": 60}
SWEEP = {"over.seed": "0,1", "steps": 40}


class Job(NamedTuple):
    """One command, which works in one folder.

    Attributes:
      words: ``folder -> `` the arguments behind `unroll-jax`.
      begun: whether it is in the middle of its work; None where no file says so.
      result: what must be the same with and without a fault.
      damage: cuts a file as a disk might; None where nothing of the kind is read again.
    """

    words: Callable[[Path], list[str]]
    begun: Callable[[Path], bool] | None
    result: Callable[[Path], Any]
    damage: Callable[[Path], None] | None


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _halve_newest_checkpoint(folder: Path) -> None:
    files = (folder / "checkpoints" / str(newest(folder)) / "state").rglob("*")
    _halve(max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size))


def _prepared(folder: Path) -> str:
    """A checksum of the clips; how their records are packed differs from time to time."""
    data, checksum = load(DataConfig(prepared=str(folder))), hashlib.sha256()
    for split in SPLITS:
        for clips in data.examples(split, batch_size=500):
            checksum.update(clips.tobytes())
    return checksum.hexdigest()


def _evaluated(folder: Path) -> Any:
    return figures_without_times(json.loads((folder / "evaluation.json").read_text(encoding="utf-8")))


def _swept(folder: Path) -> Any:
    return json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["cells"]


def _run(folder: Path) -> list[str]:
    return arguments(folder, **SHORT)


def _sweep(folder: Path) -> list[str]:
    return ["sweep", *arguments(folder, **SWEEP)[1:]]


JOBS: dict[str, Job] = {
    "run": Job(_run, lambda folder: newest(folder) > 0, outcome, _halve_newest_checkpoint),
    "prepare": Job(
        lambda folder: ["prepare", "photos"],
        lambda folder: any(folder.rglob("incomplete.*")),
        _prepared,
        None,
    ),
    "evaluate": Job(
        lambda folder: ["evaluate", str(folder)],
        None,
        _evaluated,
        lambda folder: _halve(folder / "evaluation.json"),
    ),
    "sweep": Job(
        _sweep,
        lambda folder: newest(folder / "seed-1") > 0,
        _swept,
        lambda folder: _halve(folder / "sweep.json"),
    ),
}


def fresh(job: str, folder: Path, trained: Path | None) -> None:
    """The folder as it is before the command: what is evaluated is trained."""
    shutil.rmtree(folder, ignore_errors=True)
    if job == "evaluate":
        assert trained is not None
        shutil.copytree(trained, folder)
