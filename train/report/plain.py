"""The report on tasks of your own whose evaluation has no figures of layers: every figure, and curves of the losses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..system.files import without_folders
from ..system.terminal import Table
from . import Block, Picture, Report
from .panels import WIDTH, tidy
from .record import Run, flat, floats, read_runs
from .tables import runs_table

SHOWN = 16  # numbers of a list that a cell holds


def plain(folders: Sequence[Path]) -> Report:
    """The report on runs of a task of any make."""
    runs = read_runs(folders)
    table, blocks = _figures(runs), list[Block]()
    if any(_has(row, "loss") for run in runs for row in run.metrics):
        words = "Loss on training batches (lines) and on the validation split (dots)."
        blocks.append(Picture("loss", words, _losses(runs)))
    layered = [run for run in runs if any(_has(row, "layer_losses") for row in run.metrics)]
    if layered:
        blocks.append(Picture("layer_losses", "Loss after every layer, against training steps.", _layers(layered)))
    title = ", ".join(dict.fromkeys(str(run.config["experiment"]) for run in runs))
    sections = [("", [*blocks, table]), ("Runs", [runs_table(runs)])]
    return Report(title, sections, without_folders({"runs": [run.summary() for run in runs]}), tables=[table])


def _figures(runs: Sequence[Run]) -> Table:
    figures = [flat(run.evaluation) for run in runs]
    names = dict.fromkeys(name for column in figures for name in column)
    rows = tuple((name, *(_text(column.get(name)) for column in figures)) for name in names)
    return Table("Figures of the evaluation", ("", *(run.name for run in runs)), rows)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) if len(value) <= SHOWN else f"{len(value)} values"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(without_folders(value))


def _losses(runs: Sequence[Run]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    tidy(axes, "Loss")
    for place, run in enumerate(runs):
        for kind, style in (("train", "-"), ("validation", "o")):
            rows = [row for row in run.rows(kind) if _has(row, "loss")]
            if rows:
                _draw(axes, rows, floats([row["loss"] for row in rows]), style, f"C{place}", f"{run.name}, {kind}")
    axes.set_xlabel("training step")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _layers(runs: Sequence[Run]) -> Figure:
    """A row a run: layers' losses on training batches, and on the validation split."""
    figure = Figure(figsize=(WIDTH, 3.4 * len(runs)), layout="constrained")
    for panels, run in zip(figure.subplots(len(runs), 2, squeeze=False), runs, strict=True):
        for axes, kind in zip(panels, ("train", "validation"), strict=True):
            tidy(axes, f"{run.name}, {kind}")
            axes.set_xlabel("training step")
            rows = [row for row in run.rows(kind) if _has(row, "layer_losses")]
            columns = floats([row["layer_losses"] for row in rows]).T
            shades = colormaps["viridis"](np.linspace(0.0, 0.88, len(columns)))
            for layer, (losses, shade) in enumerate(zip(columns, shades, strict=True)):
                _draw(axes, rows, losses, ".-", shade, f"layer {layer}")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], values: Any, style: str, colour: Any, label: str) -> None:
    axes.plot([row["step"] for row in rows], values, style, color=colour, markersize=4, label=label)


def _has(row: dict[str, Any], name: str) -> bool:
    """Returns whether a row of metrics has a loss, or a list of losses of layers."""
    value = row.get(name)
    return isinstance(value, list) if name == "layer_losses" else isinstance(value, int | float)
