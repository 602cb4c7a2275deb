"""Results of a sweep, read from its run folders, and their tables as text, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config.run import Judgement
from ..metrics import read_metrics
from ..report.specs import REPORTS
from ..report.tables import interval, text_of
from ..runs import read_status
from ..system.files import read_object, write_all
from ..system.terminal import Table, as_text
from .axes import Cell, Sweep

RECORD = "sweep.json"


class Result(NamedTuple):
    """The figures of a cell: the state of its run, and the step and judgement of its best checkpoint. ``test`` has the
    score on the test split by name; over noise, its mean over the test gammas, at training's, and above it."""

    cell: Cell
    state: str
    step: int | None
    validation: Judgement | None
    test: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns the figures by name, unrounded; None for those that are not finite."""
        feasible, excess, metric = self.validation or (None,) * 3
        figures = {"step": self.step, "feasible": feasible, "excess": excess, "validation": metric, **self.test}
        known = {name: x if x is not None and np.isfinite(x) else None for name, x in figures.items()}
        return {"cell": self.cell.name, **self.cell.values, "state": self.state, **known}


def read_result(sweep: Sweep, cell: Cell) -> Result:
    """Reads the figures of a cell; one that failed has none."""
    folder, path = sweep.folder / cell.name, sweep.folder / cell.name / "evaluation.json"
    state = read_status(folder).get("state", "")
    if state == "failed" or not path.exists():
        return Result(cell, state, None, None, {})
    evaluation = read_object(path)
    step, rows = evaluation["best_step"], read_metrics(folder / "metrics.jsonl")
    best = next((row for row in rows if row["kind"] == "validation" and row["step"] == step), None)
    validation = None if best is None else cell.config.judge(best)
    return Result(cell, state, step, validation, _test_figures(cell, evaluation))


def grid_tables(sweep: Sweep, results: Sequence[Result]) -> list[Table]:
    """Returns the table of a grid, a row for all seeds of a setting, and paired differences between methods."""
    axes, test = [axis.name for axis in sweep.axes], list(dict.fromkeys(name for one in results for name in one.test))
    rows, whole = [], [name for name in axes if name != "seed"]
    for values, group in _groups(results, whole):
        judged = [result.validation for result in group if result.validation is not None]
        counts = (f"{len(judged)}/{len(group)}", f"{sum(one.feasible for one in judged)}/{len(judged)}")
        columns = [[result.test[name] for result in group if name in result.test] for name in test]
        rows.append((*values, *counts, *map(text_of, [[one.metric for one in judged], *columns])))
    note = f"Mean [smallest, largest] over seeds. validation: {sweep.config.metric}; then figures of the test split."
    header = (*whole, "runs", "feasible", "validation", *test)
    tables, pairs = [Table(f"Sweep of {sweep.experiment}", header, tuple(rows), note)], []
    methods = next((list(axis.values) for axis in sweep.axes if axis.name == "method"), [])
    others = [name for name in whole if name != "method"]
    for values, group in _groups([result for result in results if result.test], others):
        by_run = {(result.cell.values.get("method"), result.cell.values.get("seed")): result.test for result in group}
        for method in methods[1:]:
            seeds = [seed for name, seed in by_run if name == method and (methods[0], seed) in by_run]
            gaps = [[by_run[method, seed][name] - by_run[methods[0], seed][name] for seed in seeds] for name in test]
            pairs.append(
                (*values, f"{method} - {methods[0]}", str(len(seeds)), *(interval(gap, "+.4g") for gap in gaps))
            )
    note = "Mean difference over equal seeds [95% interval, Student's t], test split."
    paired = Table("Paired differences", (*others, "methods", "pairs", *test), tuple(pairs), note)
    return [*tables, *([paired] if pairs else [])]


def write_tables(sweep: Sweep, results: Sequence[Result], tables: Sequence[Table]) -> None:
    """Writes table.md, table.csv and sweep.json, and prints the tables."""
    rows, file = [result.row() for result in results], io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    record = {"experiment": sweep.experiment, "over": {a.name: list(a.values) for a in sweep.axes}, "cells": rows}
    texts = {
        "table.md": "\n\n".join(f"```\n{as_text(table)}\n```" for table in tables) + "\n",
        "table.csv": file.getvalue(),
        RECORD: json.dumps(record, indent=2, allow_nan=False) + "\n",
    }
    write_all(sweep.folder, {name: text.encode() for name, text in texts.items()})
    print("\n\n".join(map(as_text, tables)))
    print(f"\ntable: {', '.join(str(sweep.folder / name) for name in texts)}")


def _groups(results: Iterable[Result], axes: Sequence[str]) -> Iterable[tuple[tuple[str, ...], list[Result]]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.cell.values[name] for name in axes), []).append(result)
    return groups.items()


def _test_figures(cell: Cell, evaluation: dict[str, Any]) -> dict[str, float]:
    spec = REPORTS[cell.config.task]
    if spec.metric not in evaluation:
        return {}
    name, value = spec.title, evaluation[spec.metric]
    if not isinstance(value, dict):
        return {name: np.nan if value is None else value}
    by_gamma = {float(gamma): np.nan if figure is None else figure for gamma, figure in value.items()}
    training, tested = float(evaluation["train_gamma"]), list(map(float, evaluation["test_gammas"]))
    above = [gamma for gamma in tested if gamma > training]
    parts = {name: tested, f"{name} at training": [training], f"{name} above": above}
    return {part: float(np.mean([by_gamma[gamma] for gamma in gammas])) for part, gammas in parts.items() if gammas}
