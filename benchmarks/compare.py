"""Two runs of the benchmarks side by side."""

import json
from pathlib import Path
from typing import Any

from benchmarks.timing import table

__all__ = ["RecordError", "comparison", "read_records"]

EXACT = 1e-3  # relative change of bytes and counts, by rounding only
NOISE = 0.1  # relative change of other figures without a spread
COUNTED = ("bytes", "compiled", "count")


class RecordError(ValueError):
    """A file that is not the record of a run. The message is for the user."""


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder or of one JSON file, by the name of the benchmark.

    Raises:
      RecordError: if there are none, or one is not what `benchmarks.record.write`
        writes.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise RecordError(
            f"{path}: no records of benchmarks; pass the --out folder of an earlier"
            " run, or a file in it"
        )
    records = [_read(file) for file in files]
    return {record["benchmark"]: record for record in records}


def comparison(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> str:
    """A table of every figure in both, new over old.

    A ``*`` marks those that changed by more than both spreads together.
    """
    rows: list[list[Any]] = []
    remarks: dict[str, None] = {}  # in order, without repeats
    for name in old:
        if name in new:
            rows += _rows(name, old[name], new[name])
            remarks |= dict.fromkeys(_remarks(name, old[name], new[name]))
    marked = sum(row[-1] == "*" for row in rows)
    last = f"{len(rows)} figures in both, {marked} changed beyond their spread (*)"
    header = ["figure", "old", "new", "new/old", "spread", ""]
    return "\n".join([table(header, rows), *remarks, last])


def _read(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        complete = {"benchmark", "figures", "spreads"} <= set(record)
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(
            f"{file}: cannot be read ({error}); pass a record of an earlier run"
        ) from error
    if not complete:
        raise RecordError(
            f"{file}: not a record that this version writes; run the benchmark again"
        )
    return record


def _rows(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for figure, before in old["figures"].items():
        after = new["figures"].get(figure)
        if before is None or after is None:
            continue
        spread = sum(record["spreads"].get(figure, 0.0) for record in (old, new))
        counted = any(word in figure for word in COUNTED)
        change = _change(before, after)
        beyond = abs(change - 1.0) > max(spread or (0.0 if counted else NOISE), EXACT)
        mark = "*" if beyond else ""
        rows.append([f"{name}: {figure}", before, after, change, spread or "", mark])
    return rows


def _change(before: float, after: float) -> float:
    if before == after:
        return 1.0
    return after / before if before else float("inf")


def _remarks(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lists differences that may make the figures of two runs incomparable."""
    remarks = []
    if old.get("quick") != new.get("quick"):
        remarks.append(f"{name}: one of the two was run with --quick, on other sizes")
    for what in ("machine", "versions", "allocator"):
        before, after = (record.get(what, {}) for record in (old, new))
        for key in before | after:
            if before.get(key) != after.get(key):
                remarks.append(f"{key} differs: {before.get(key)}; {after.get(key)}")
    return remarks
