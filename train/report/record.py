"""Evaluated runs as reports read them: a typed record of the files of each; what does not fit is refused in a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError
from ..metrics import read_metrics
from ..system.files import WRITTEN, no_run, read_object

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One evaluated run: its files as they are."""

    folder: Path
    config: dict[str, Any]
    status: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Folder name without its parents."""
        return self.folder.resolve().name

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind: train or validation."""
        return [row for row in self.metrics if row["kind"] == kind]

    def summary(self) -> dict[str, Any]:
        """Its row of summary.json: how it ended, and its evaluation."""
        status = {key: self.status.get(key) for key in ("state", "steps", "compile_seconds", "messages")}
        return {"run": self.name, **status, **self.evaluation}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The evaluated runs in folders, each given once."""
    check_folders(folders)
    return [read_run(folder) for folder in folders]


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    evaluation, config, status = (read_object(folder / f"{name}.json") for name in ("evaluation", "config", "status"))
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"run {folder} has no metrics.jsonl; restore it: without it there are no curves")
    return Run(folder, config, status, evaluation, read_metrics(path))


def check_folders(folders: Sequence[Path]) -> None:
    """Refuses folders that are not those of evaluated runs, or given twice."""
    if not folders:
        raise UserError("report needs at least one run folder, got none; give folders such as runs/NAME")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"run folder {folder} is given twice; give each run once")
        seen.add(folder.resolve())
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"run folder {folder} does not exist; {WRITTEN}")
        if not (folder / "config.json").is_file():
            raise UserError(no_run(folder))
        if not (folder / "evaluation.json").is_file():
            raise UserError(f"run {folder} has no evaluation.json; run `unroll-jax evaluate {folder}` first")


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config as one dict with dotted names."""
    items: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        items.update(flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return items


def floats(values: Any) -> Array:
    """A number, a list, or a list of lists as floats; what is not a finite number (None, inf) becomes NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)
