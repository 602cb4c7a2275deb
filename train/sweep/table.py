"""Tables of a sweep: seeds averaged, paired differences between methods, or ranked trials; as text, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ..system.files import write_all
from ..system.terminal import Table, as_text
from .axes import Sweep
from .results import Result

RECORD = "sweep.json"
LEVEL = 0.95  # of the intervals


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
    finite = [{name: value if _is_finite(value) else None for name, value in row.items()} for row in rows]
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
    """Groups results by their values on the axes."""
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
    """Returns a value with four digits."""
    try:
        return "-" if value is None else f"{float(value):.4g}"
    except ValueError:
        return str(value)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or bool(np.isfinite(value))
