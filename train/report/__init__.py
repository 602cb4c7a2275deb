"""Reports on evaluated run folders: `make_report` by the task that each names, and `write_report`.

`records` and `groups` read and group runs; `tables` and `figures` are the content; `layered` and `supervised` put these
together; `page` writes them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..registry import TASKS
from ..runs import read_config, read_recorded
from ..system.files import without_folders
from ..system.terminal import Table, as_text
from .layered import layered_report
from .page import Report, write_files
from .records import Run, flat, read_runs
from .supervised import supervised_report
from .tables import runs_table

__all__ = ["make_report", "write", "write_report"]

SHOWN = 16  # numbers of a list that a cell holds


def write_report(folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compares evaluated runs of one kind of task; writes a page and returns its summary."""
    return write(make_report(folders), out, log=log)


def write(report: Report, out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Writes the files of a report and logs its tables and verdict; returns its summary."""
    write_files(out, report)
    for text in (*(as_text(table) + "\n" for table in report.tables), *report.verdict, *report.warnings):
        log(text)
    log(f"report: {out / 'index.html'}")
    return report.summary


def make_report(folders: Sequence[Path]) -> Report:
    """Returns the report on runs, by the task that each names.

    Raises:
      UserError: if runs are of different kinds, or a folder is not that of an evaluated run.
    """
    runs = read_runs([Path(folder) for folder in folders])
    kinds = [_kind(run) for run in runs]
    for run, kind in zip(runs, kinds, strict=True):
        if kind != kinds[0]:
            raise UserError(
                f"{runs[0].folder} and {run.folder} are of different kinds of experiments; report them separately"
            )
    spec = runs[0].spec
    if spec is None:
        return _plain_report(runs)
    return supervised_report(runs, spec) if spec.measures is not None else layered_report(runs)


def _kind(run: Run) -> tuple[Any, str]:
    """Returns the spec of the report on a run, and the name of its task where that is not registered."""
    task = read_recorded(run.folder).task
    row = TASKS.get(task)
    if row is not None:
        read_config(run.folder)  # raises if it was changed
    return run.spec, "" if row is not None else task


def _plain_report(runs: Sequence[Run]) -> Report:
    """Returns the report on runs of a task without layers or shares: every figure of the evaluations."""
    columns = [{name: _text(value) for name, value in flat(run.evaluation).items()} for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    cells = tuple((name, *(column.get(name, "-") for column in columns)) for name in names)
    table = Table("Figures of the evaluation", ("", *(run.name for run in runs)), cells)
    title = ", ".join(dict.fromkeys(str(run.config["experiment"]) for run in runs))
    summary = without_folders({"runs": [run.summary() for run in runs]})
    return Report(title, [("", [table]), ("Runs", [runs_table(runs)])], summary, [table])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) if len(value) <= SHOWN else f"{len(value)} values"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(without_folders(value))
