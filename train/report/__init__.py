"""The report: figures, a self-contained page, strict-JSON summary and terminal tables from evaluated run folders."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from train.report.groups import Setting
from train.report.page import render
from train.report.plots import draw_all
from train.report.publish import publish
from train.report.read import Run
from train.report.tables import Table, cost_table, feasibility_table, rmse_table
from train.report.verdict import compare, notes, run_verdict

__all__ = ["write_report"]


def write_report(run_folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compares evaluated runs on video, as `train.report.publish.publish` says.

    Returns:
      The summary, as in summary.json. Its ``methods`` and ``noisy_input`` describe the headline setting: the first
      in the order of ``run_folders`` that holds both methods (else the first), its first constrained variant and
      the plain one that this is compared with.
    """
    return publish(run_folders, out, draw=draw_all, render=render, tables=_tables, verdicts=_verdicts, log=log)


def _tables(settings: Sequence[Setting]) -> Iterator[Table]:
    for setting in settings:
        yield rmse_table(setting)
        yield from (feasibility_table(setting, variant) for variant in setting.variants)
    cost = cost_table(settings)
    if cost and len(cost.rows) > 1:
        yield cost


def _verdicts(settings: Sequence[Setting], runs: Sequence[Run]) -> list[str]:
    return [*map(run_verdict, runs), *map(compare, settings), *notes(settings)]
