"""The report: figures, a self-contained page, strict-JSON summary and terminal tables from evaluated run folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.report.files import write_files
from train.report.groups import Setting, group
from train.report.page import render
from train.report.panels import png
from train.report.paths import without_folders
from train.report.plots import draw_all
from train.report.read import Run, read_runs
from train.report.summary import summarise
from train.report.tables import as_text, cost_table, feasibility_table, rmse_table
from train.report.verdict import compare, notes, run_verdict

__all__ = ["write_report"]


def write_report(run_folders: Sequence[Path], out: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compare evaluated runs: write ``index.html``, ``*.png`` and ``summary.json`` into ``out``, tables to ``log``.

    Runs are put into settings (depth and training gamma); within one, runs of one method whose configs differ only by
    the seed are averaged, other config differences make them separate variants.

    Args:
      run_folders: Run folders with config.json, metrics.jsonl, status.json and evaluation.json.
      out: Folder to write into; made if needed, files of an earlier report are overwritten.
      log: Called with each block of text for the terminal.

    Returns:
      The summary, as in summary.json. Its ``methods`` and ``noisy_input`` describe the headline setting: the first
      in the order of ``run_folders`` that holds both methods (else the first), and the first variant of each method.

    Raises:
      UserError: if a folder is missing, damaged or not evaluated, or the runs cannot be compared.
    """
    runs = read_runs([Path(folder) for folder in run_folders])
    settings = group(runs)
    summary = without_folders(summarise(settings, runs))
    pictures = {name: png(figure) for name, figure in draw_all(settings).items()}
    write_files(out, pictures=pictures, page=render(settings, runs, pictures), summary=summary)
    _tell(settings, runs, log)
    log(f"report: {out / 'index.html'}")
    return summary


def _tell(settings: Sequence[Setting], runs: Sequence[Run], log: Callable[[str], None]) -> None:
    for setting in settings:
        log(as_text(rmse_table(setting)) + "\n")
        for variant in setting.variants:
            log(as_text(feasibility_table(setting, variant)) + "\n")
    cost = cost_table(settings)
    if cost and len(cost.rows) > 1:
        log(as_text(cost) + "\n")
    for line in (*map(run_verdict, runs), *map(compare, settings), *notes(settings)):
        log(line)
    for run in runs:
        for message in run.status.get("messages") or []:
            log(f"{run.name}: {without_folders(str(message))}")
