"""Results of a sweep, read from its run folders: the number that ranks them, and tables as text, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ..config.run import Judgement, RunConfig
from ..constraints import INFEASIBLE
from ..metrics import read_metrics
from ..registry import TASKS
from ..runs import read_status
from ..system.files import read_object, write_all
from ..system.terminal import Table, as_text
from .axes import Cell, Sweep

RECORD = "sweep.json"
LEVEL = 0.95  # of the intervals


class Result(NamedTuple):
    """The figures of a cell: the state of its run, and the step and judgement of its best checkpoint.

    ``test`` has figures of the test split by name: the score, or over noise its mean over the test gammas, that at the
    gamma of training, and the mean over the gammas above it.
    """

    cell: Cell
    state: str
    step: int | None
    validation: Judgement | None
    test: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns the figures by name, unrounded."""
        feasible, excess, metric, _ = self.validation or (None,) * 4
        figures = {"feasible": feasible, "excess": excess, "validation": metric, **self.test}
        return {"cell": self.cell.name, **self.cell.values, "state": self.state, "step": self.step, **figures}


def read_result(sweep: Sweep, cell: Cell) -> Result:
    """Reads the figures of a cell; its best checkpoint is the one that its validations rank first."""
    folder, state = sweep.folder / cell.name, read_status(sweep.folder / cell.name).get("state", "")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "validation"]
    judged = [(cell.config.judge(row), row["step"]) for row in rows] if state != "failed" else []
    validation, step = max(judged, key=lambda pair: score(pair[0], cell.config, within=True), default=(None, None))
    path = folder / "evaluation.json"
    return Result(cell, state, step, validation, _test_figures(cell, read_object(path)) if path.exists() else {})


def score(judgement: Judgement | None, config: RunConfig, *, within: bool = False) -> float:
    """Returns the number that ranks models: feasible ones by the metric, all others below by their excess.

    Args:
      judgement: of a model; None for a run that failed, which is last.
      config: of its run.
      within: True to rank the checkpoints of one run, which under resilience have their cost in common.
    """
    if judgement is None:
        return -np.inf
    if not judgement.feasible:
        relaxed = judgement.relaxed if within else None
        return INFEASIBLE - ((judgement.excess or 0.0) if relaxed is None else relaxed)
    return judgement.metric if config.larger_is_better else -judgement.metric


def grid_tables(sweep: Sweep, results: Sequence[Result]) -> list[Table]:
    """Returns the table of a grid, a row for all seeds of a setting, and paired differences between methods."""
    names, test = [axis.name for axis in sweep.axes], _test_names(results)
    axes, rows = [name for name in names if name != "seed"], []
    for values, group in _groups(results, axes):
        judged = [result.validation for result in group if result.validation is not None]
        counts = (f"{len(judged)}/{len(group)}", f"{sum(one.feasible for one in judged)}/{len(judged)}")
        figures = [[result.test[name] for result in group if name in result.test] for name in test]
        rows.append((*values, *counts, *map(_ranged, [[one.metric for one in judged], *figures])))
    note = f"Mean [smallest, largest] over seeds. validation: {sweep.config.metric}; then figures of the test split."
    whole = Table(f"Sweep of {sweep.experiment}", (*axes, "runs", "feasible", "validation", *test), tuple(rows), note)
    return [whole, *([_differences(sweep, results)] if "method" in names and test else [])]


def trial_tables(sweep: Sweep, results: Sequence[Result]) -> list[Table]:
    """Returns the table of ranked trials."""
    names, rows = [axis.name for axis in sweep.axes], []
    for result in results:
        feasible, excess, metric, _ = result.validation or (None,) * 4
        figures = ("-" if feasible is None else "yes" if feasible else "no", excess, metric, result.step)
        rows.append((result.cell.name, *map(_shown, [*result.cell.values.values(), *figures]), result.state))
    header = ("trial", *names, "feasible", "excess", "validation", "step", "run")
    note = f"Feasible trials first, then by validation: {sweep.config.metric}. excess: over a bound, as a share of it."
    return [Table(f"Trials of {sweep.experiment}", header, tuple(rows), note)]


def write_tables(sweep: Sweep, results: Sequence[Result], tables: Sequence[Table]) -> None:
    """Writes table.md, table.csv and sweep.json, and prints the tables."""
    rows, file = [result.row() for result in results], io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    over = {axis.name: list(axis.texts) for axis in sweep.axes}
    finite = [
        {name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]
    record = {"experiment": sweep.experiment, "over": over, "cells": finite}
    files = {
        "table.md": "\n\n".join(map(_markdown, tables)) + "\n",
        "table.csv": file.getvalue(),
        RECORD: json.dumps(record, indent=2, allow_nan=False) + "\n",
    }
    write_all(sweep.folder, {name: text.encode() for name, text in files.items()})
    print("\n\n".join(map(as_text, tables)))
    print(f"\ntable: {', '.join(str(sweep.folder / name) for name in files)}")


def _differences(sweep: Sweep, results: Sequence[Result]) -> Table:
    """Returns the differences of each method from the first, over the seeds that both have."""
    axes, test = [axis.name for axis in sweep.axes if axis.name not in ("seed", "method")], _test_names(results)
    first, *others = next(axis.texts for axis in sweep.axes if axis.name == "method")
    rows = []
    for values, group in _groups([result for result in results if result.test], axes):
        by_run = {(result.cell.values["method"], result.cell.values.get("seed")): result.test for result in group}
        seeds = list(dict.fromkeys(seed for _, seed in by_run))
        for method in others:
            pairs = [(by_run[method, s], by_run[first, s]) for s in seeds if {(method, s), (first, s)} <= set(by_run)]
            columns = [_interval([one[name] - two[name] for one, two in pairs]) for name in test]
            rows.append((*values, f"{method} - {first}", str(len(pairs)), *columns))
    note = f"Mean difference over equal seeds [{LEVEL:.0%} interval, Student's t], test split."
    return Table("Paired differences", (*axes, "methods", "pairs", *test), tuple(rows), note)


def _groups(results: Iterable[Result], axes: Sequence[str]) -> list[tuple[tuple[str, ...], list[Result]]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.cell.values[name] for name in axes), []).append(result)
    return list(groups.items())


def _test_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.test))


def _markdown(table: Table) -> str:
    rule = ("---", *("---:" for _ in table.header[1:]))
    rows = "\n".join(f"| {' | '.join(row)} |" for row in (table.header, rule, *table.rows))
    return f"## {table.title}\n\n{rows}\n\n{table.note}"


def _interval(values: Sequence[float]) -> str:
    """Returns the mean and, of several values, its interval."""
    if len(values) < 2:
        return f"{values[0]:+.4g}" if values else "-"
    mean, reach = np.mean(values), stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * stats.sem(values)
    return f"{mean:+.4g} [{mean - reach:+.4g}, {mean + reach:+.4g}]"


def _ranged(values: Sequence[float]) -> str:
    """Returns the mean and, of several values, the smallest and the largest."""
    if len(values) < 2:
        return _shown(values[0] if values else None)
    return f"{np.mean(values):.4g} [{min(values):.4g}, {max(values):.4g}]"


def _shown(value: Any) -> str:
    try:
        return "-" if value is None else f"{float(value):.4g}"
    except ValueError:
        return str(value)


def _test_figures(cell: Cell, evaluation: dict[str, Any]) -> dict[str, float]:
    spec = TASKS[cell.config.task].report
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
