"""The report on a task without layers or shares: every figure of its evaluation, and curves of the losses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ..system.files import without_folders
from ..system.terminal import Table
from .page import Picture, Report
from .panels import WIDTH, tidy
from .records import Run, flat, floats
from .tables import runs_table

SHOWN = 16  # numbers of a list that a cell holds


def plain_report(runs: Sequence[Run]) -> Report:
    """The report on runs of a task of any make: every figure of the evaluation, and curves of the losses."""
    columns = [flat(run.evaluation) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    cells = tuple((name, *(_text(column.get(name)) for column in columns)) for name in names)
    table = Table("Figures of the evaluation", ("", *(run.name for run in runs)), cells)
    captions = {
        "loss": "Loss against training steps.",
        "layer_losses": "Loss after every layer, against training steps.",
    }
    drawn = {name: _losses(runs, name) for name in captions}
    blocks = [Picture(name, captions[name], figure) for name, figure in drawn.items() if figure is not None]
    title = ", ".join(dict.fromkeys(str(run.config["experiment"]) for run in runs))
    summary = without_folders({"runs": [run.summary() for run in runs]})
    return Report(title, [("", [*blocks, table]), ("Runs", [runs_table(runs)])], summary, [table])


def _losses(runs: Sequence[Run], name: str) -> Figure | None:
    """A row a run: a loss, or that of every layer, on training batches and on the validation split."""
    kind = list if name == "layer_losses" else (int, float)
    shown = [run for run in runs if any(isinstance(row.get(name), kind) for row in run.metrics)]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH, 3.4 * len(shown)), layout="constrained")
    for panels, run in zip(figure.subplots(len(shown), 2, squeeze=False), shown, strict=True):
        for axes, split in zip(panels, ("train", "validation"), strict=True):
            tidy(axes, f"{run.name}, {split}")
            axes.set(xlabel="training step", ylabel="loss")
            rows = [row for row in run.rows(split) if isinstance(row.get(name), kind)]
            columns = np.atleast_2d(floats([row[name] for row in rows]).T)
            for layer, losses in enumerate(columns):
                shade = colormaps["viridis"](0.88 * layer / max(len(columns) - 1, 1))
                axes.plot([row["step"] for row in rows], losses, ".-", color=shade, label=f"layer {layer}")
        if name == "layer_losses":
            panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) if len(value) <= SHOWN else f"{len(value)} values"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(without_folders(value))
