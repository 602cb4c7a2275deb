"""What all reports on constrained training do with evaluated runs: group, draw, render, write, and tell."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from train.report.files import write_files
from train.report.groups import Setting, Variant, group
from train.report.panels import png
from train.report.paths import without_folders
from train.report.read import Run, read_runs
from train.report.summary import summarise
from train.report.tables import Table, as_text

__all__ = ["publish"]

Settings = Sequence[Setting]
Runs = Sequence[Run]


def publish(
    run_folders: Sequence[Path],
    out: Path,
    *,
    draw: Callable[[Settings], Mapping[str, Figure]],
    render: Callable[[Settings, Runs, Mapping[str, bytes]], str],
    tables: Callable[[Settings], Iterable[Table]],
    verdicts: Callable[[Settings, Runs], Iterable[str]],
    more: Callable[[Variant], dict[str, Any]] = lambda variant: {},
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compares evaluated runs: writes ``index.html``, ``*.png`` and ``summary.json`` into ``out``, tables to ``log``.

    Runs are put into settings (depth and training gamma); within one, runs of one method whose configs differ only by
    the seed are averaged, other config differences make them separate variants.

    Args:
      run_folders: Run folders with config.json, metrics.jsonl, status.json and evaluation.json.
      out: Folder to write into; made if needed, files of an earlier report are overwritten.
      draw: Figures by name.
      render: The page, given the pictures by name.
      tables: For the terminal.
      verdicts: Lines for the terminal.
      more: What the summary says of a variant besides.
      log: Called with each block of text for the terminal.

    Returns:
      The summary, as in summary.json.

    Raises:
      UserError: if a folder is missing, damaged or not evaluated, or the runs cannot be compared.
    """
    runs = read_runs([Path(folder) for folder in run_folders])
    settings = group(runs)
    summary = without_folders(summarise(settings, runs, more))
    pictures = {name: png(figure) for name, figure in draw(settings).items()}
    write_files(out, pictures=pictures, page=render(settings, runs, pictures), summary=summary)
    for table in tables(settings):
        log(as_text(table) + "\n")
    for line in verdicts(settings, runs):
        log(line)
    for run in runs:
        for message in run.status.get("messages") or []:
            log(f"{run.name}: {without_folders(str(message))}")
    log(f"report: {out / 'index.html'}")
    return summary
