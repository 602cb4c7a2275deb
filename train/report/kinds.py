"""The report that runs have by their task."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..registry import TASKS, imported
from ..runs import read_config, read_recorded
from ..system.files import read_object
from . import Report, write

Kind = Callable[[Sequence[Path]], Report]

# What an evaluation of a task of your own has where `constrained.layered` reports on it.
LAYERED = {"method", "num_examples", "loss", "layer_losses", "bounds"}


def write_report(folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compares evaluated runs of one kind of task; writes a page and returns its summary."""
    return write(report_of(folders), folders, out, log=log)


def report_of(folders: Sequence[Path]) -> Kind:
    """The report of runs, by the task that each names; runs of different kinds are refused."""
    kinds = [_kind(folder) for folder in folders]
    for folder, kind in zip(folders, kinds, strict=True):
        if kind != kinds[0]:
            raise UserError(f"{folders[0]} and {folder} are of different kinds of experiments; report them separately")
    return kinds[0][0]


def _kind(folder: Path) -> tuple[Kind, str]:
    """The report of a run, and the name of its task where that is not registered."""
    task, path = read_recorded(folder).task, folder / "evaluation.json"
    row = TASKS.get(task)
    if row is not None:
        read_config(folder)  # refuses one that was changed
        if row.functions is not None:
            return imported(row.functions.report), ""
    layered = path.is_file() and read_object(path).keys() >= LAYERED
    return imported("report.constrained:layered" if layered else "report.plain:plain"), "" if row else task
