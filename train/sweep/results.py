"""Results of a sweep, read from its run folders, and their tables as text, CSV and
JSON."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config.run import Judgement
from ..metrics import read_metrics
from ..report.specs import REPORTS
from ..report.tables import text_of
from ..runs import read_status
from ..system.files import read_object, write_all
from ..system.terminal import Table, as_text
from .axes import Cell, Sweep

RECORD = "sweep.json"


class Result(NamedTuple):
    """The figures of a cell: the state of its run, and the step and judgement of its
    best checkpoint. ``test`` has the score on the test split by name; over noise, its
    mean over the test gammas, at training's, and above it.
    """

    cell: Cell
    state: str
    step: int | None
    validation: Judgement | None
    test: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns the figures by name, unrounded; None for those that are not
        finite."""
        feasible, excess, metric = self.validation or (None,) * 3
        figures = {
            "step": self.step,
            "feasible": feasible,
            "excess": excess,
            "validation": metric,
            **self.test,
        }
        known = {
            name: x if x is not None and np.isfinite(x) else None
            for name, x in figures.items()
        }
        return {
            "cell": self.cell.name,
            **self.cell.values,
            "state": self.state,
            **known,
        }


def read_result(sweep: Sweep, cell: Cell) -> Result:
    """Reads the figures of a cell; one that failed has none."""
    folder, path = (
        sweep.folder / cell.name,
        sweep.folder / cell.name / "evaluation.json",
    )
    state = read_status(folder).get("state", "")
    if state == "failed" or not path.exists():
        return Result(cell, state, None, None, {})
    evaluation = read_object(path)
    step, rows = evaluation.get("best_step"), read_metrics(folder / "metrics.jsonl")
    best = next(
        (row for row in rows if row["kind"] == "validation" and row["step"] == step),
        None,
    )
    validation = None if best is None else cell.config.judge(best)
    return Result(cell, state, step, validation, _test_figures(cell, evaluation))


def grid_table(sweep: Sweep, results: Sequence[Result]) -> Table:
    """Returns the table of a grid, a row for all seeds of a setting."""
    test, groups = (
        dict.fromkeys(name for one in results for name in one.test),
        dict[tuple[str, ...], list[Result]](),
    )
    whole = [axis.name for axis in sweep.axes if axis.name != "seed"]
    for result in results:
        groups.setdefault(tuple(result.cell.values[name] for name in whole), []).append(
            result
        )
    rows = []
    for values, group in groups.items():
        judged = [
            result.validation for result in group if result.validation is not None
        ]
        counts = (
            f"{len(judged)}/{len(group)}",
            f"{sum(one.feasible for one in judged)}/{len(judged)}",
        )
        columns = [
            [result.test[name] for result in group if name in result.test]
            for name in test
        ]
        rows.append(
            (
                *values,
                *counts,
                *map(text_of, [[one.metric for one in judged], *columns]),
            )
        )
    note = (
        f"Mean [smallest, largest] over seeds. validation: {sweep.config.metric}; then"
        " figures of the test split."
    )
    return Table(
        f"Sweep of {sweep.experiment}",
        (*whole, "runs", "feasible", "validation", *test),
        tuple(rows),
        note,
    )


def write_tables(sweep: Sweep, results: Sequence[Result]) -> None:
    """Writes table.md, table.csv and sweep.json, and prints the table."""
    rows, file, shown = (
        [result.row() for result in results],
        io.StringIO(),
        as_text(grid_table(sweep, results)),
    )
    writer = csv.DictWriter(
        file, list(dict.fromkeys(name for row in rows for name in row))
    )
    writer.writeheader()
    writer.writerows(rows)
    record = {
        "experiment": sweep.experiment,
        "over": {a.name: list(a.values) for a in sweep.axes},
        "cells": rows,
    }
    texts = {
        "table.md": f"```\n{shown}\n```\n",
        "table.csv": file.getvalue(),
        RECORD: json.dumps(record, indent=2, allow_nan=False) + "\n",
    }
    write_all(sweep.folder, {name: text.encode() for name, text in texts.items()})
    print(f"{shown}\n\ntable: {', '.join(str(sweep.folder / name) for name in texts)}")


def _test_figures(cell: Cell, evaluation: dict[str, Any]) -> dict[str, float]:
    spec = REPORTS[cell.config.task]
    if spec.metric not in evaluation:
        return {}
    name, value = spec.title, evaluation[spec.metric]
    if not isinstance(value, dict):
        return {name: np.nan if value is None else value}
    by_gamma = {
        float(gamma): np.nan if figure is None else figure
        for gamma, figure in value.items()
    }
    training, tested = (
        float(evaluation["train_gamma"]),
        list(map(float, evaluation["test_gammas"])),
    )
    above = [gamma for gamma in tested if gamma > training]
    parts = {name: tested, f"{name} at training": [training], f"{name} above": above}
    return {
        part: float(np.mean([by_gamma[gamma] for gamma in gammas]))
        for part, gammas in parts.items()
        if gammas
    }
