"""Reports on evaluated run folders: `make_report` by the task that each names, and `write_report`.

Commands, exports and sweeps import this room. `records` and `groups` read and group runs; `tables`, `figures` and
`verdict` are its content; `layered`, `supervised` and `plain` put these together; `page` writes them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..registry import TASKS
from ..runs import read_config, read_recorded
from ..system.terminal import as_text
from .layered import layered_report
from .page import Report, write_files
from .plain import plain_report
from .records import Run, read_runs
from .supervised import supervised_report

__all__ = ["make_report", "write", "write_report"]


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
    """The report on runs, by the task that each names.

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
        return plain_report(runs)
    return supervised_report(runs, spec) if spec.measures is not None else layered_report(runs)


def _kind(run: Run) -> tuple[Any, str]:
    """The spec of the report on a run, and the name of its task where that is not registered."""
    task = read_recorded(run.folder).task
    row = TASKS.get(task)
    if row is not None:
        read_config(run.folder)  # raises if it was changed
    return run.spec, "" if row is not None else task
