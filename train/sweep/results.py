"""Results of a sweep, read from its run folders, and their tables as text, CSV and
JSON."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.folder import read_status
from ..core.metrics import read_metrics
from ..report.records import floats
from ..report.specs import REPORTS
from ..report.tables import as_table, text_of
from ..system.files import read_object, to_bytes, write_all
from ..system.terminal import Table, as_text
from .axes import Cell, Sweep

RECORD = "sweep.json"
Row = dict[str, Any]
JUDGED = ("feasible", "excess", "validation")  # columns of a `Judgement`


def read_row(sweep: Sweep, cell: Cell) -> Row:
    """Returns the figures of a cell by name, unrounded: the state of its run, the step
    and judgement of its best checkpoint, and its score on the test split. Over noise
    that is the mean over the test gammas, the score at training's, and the mean above
    it. None for those that are not finite; a run that failed has none.
    """
    folder = sweep.folder / cell.name
    state = read_status(folder).get("state", "")
    row = {"cell": cell.name, **cell.values, "state": state, "step": None}
    row |= dict.fromkeys(JUDGED)
    if state == "failed" or not (folder / "evaluation.json").exists():
        return row
    evaluation = read_object(folder / "evaluation.json")
    row["step"] = evaluation.get("best_step")
    for line in read_metrics(folder / "metrics.jsonl"):
        if line["kind"] == "validation" and line["step"] == row["step"]:
            row |= dict(zip(JUDGED, cell.config.judge(line), strict=True))
    row |= _test_figures(cell, evaluation)
    for name, figure in row.items():
        if isinstance(figure, float) and not np.isfinite(figure):
            row[name] = None
    return row


def grid_table(sweep: Sweep, rows: Sequence[Row]) -> Table:
    """Returns the table of a grid, a row for all seeds of a setting."""
    ranges = [axis.name for axis in sweep.ranges]
    axes = [axis.name for axis in sweep.axes if axis.name not in ("seed", *ranges)]
    known = {"cell", "state", "step", "seed", *JUDGED, *axes, *ranges}
    scores = [name for row in rows for name in row if name not in known]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in axes), []).append(row)
    shown = []
    for values, group in groups.items():
        judged = [row for row in group if row["validation"] is not None]
        shown.append(dict(zip(axes, values, strict=True)))
        shown[-1]["runs"] = f"{len(judged)}/{len(group)}"
        shown[-1]["feasible"] = (
            f"{sum(row['feasible'] for row in judged)}/{len(judged)}"
        )
        for name in (*ranges, "validation", *scores):
            figures = [row.get(name) for row in judged]
            known_ones = [float(figure) for figure in figures if figure is not None]
            shown[-1][name] = text_of(known_ones)
    note = (
        f"Mean [smallest, largest] over seeds. validation: {sweep.config.metric}; then"
        " figures of the test split."
    )
    return as_table(f"Sweep of {sweep.experiment}", shown, note)


def write_tables(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Writes table.md, table.csv and sweep.json, and prints the table."""
    rows = [read_row(sweep, cell) for cell in cells]
    shown = as_text(grid_table(sweep, rows))
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names))
    writer.writeheader()
    writer.writerows(rows)
    over = {axis.name: list(axis.values) for axis in sweep.axes}
    record = {"experiment": sweep.experiment, "over": over, "trials": sweep.trials}
    files = {
        "table.md": f"```\n{shown}\n```\n".encode(),
        "table.csv": file.getvalue().encode(),
        RECORD: to_bytes(record | {"cells": rows}),
    }
    write_all(sweep.folder, files)
    print(f"{shown}\n\ntable: {', '.join(str(sweep.folder / name) for name in files)}")


def _test_figures(cell: Cell, evaluation: dict[str, Any]) -> dict[str, float]:
    spec = REPORTS[cell.config.task]
    if spec.metric not in evaluation:
        return {}
    name, value = spec.title, evaluation[spec.metric]
    if not isinstance(value, dict):
        return {name: np.nan if value is None else value}
    scores = {float(gamma): score for gamma, score in value.items()}
    training = float(evaluation["train_gamma"])
    tested = [float(gamma) for gamma in evaluation["test_gammas"]]
    above = [gamma for gamma in tested if gamma > training]
    parts = {name: tested, f"{name} at training": [training], f"{name} above": above}
    return {
        part: float(np.mean(floats([scores[gamma] for gamma in gammas])))
        for part, gammas in parts.items()
        if gammas
    }
