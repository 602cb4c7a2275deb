"""Two runs of the benchmarks side by side."""

import json
from pathlib import Path
from typing import Any

from benchmarks.timing import table

__all__ = ["Unreadable", "comparison", "read_records"]

# Bytes and counts are the same in every run but for rounding; of others without a
# spread, less is taken for noise.
EXACT, NOISE = 1e-3, 0.1
COUNTED = ("bytes", "compiled", "count")


class Unreadable(ValueError):
    """A file that is not the record of a run; the message is for the user."""


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder or of one JSON file, by the name of the benchmark.

    Raises:
      Unreadable: if there are none, or one is not what `benchmarks.record.write`
        writes.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise Unreadable(
            f"{path}: no records of benchmarks; pass the --out folder of an earlier"
            " run, or a file in it"
        )
    records = [_read(file) for file in files]
    return {record["benchmark"]: record for record in records}


def comparison(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> str:
    """A table of every figure in both, new over old, ``*`` where it changed by more
    than the spreads together."""
    shared = [name for name in old if name in new]
    rows = [row for name in shared for row in _rows(name, old[name], new[name])]
    remarks = [
        remark for name in shared for remark in _remarks(name, old[name], new[name])
    ]
    marked = sum(row[-1] == "*" for row in rows)
    words = [
        table(["figure", "old", "new", "new/old", "spread", ""], rows),
        *dict.fromkeys(remarks),
    ]
    return "\n".join(
        [
            *words,
            (
                f"{len(rows)} figures in both, {marked} changed beyond the spread of"
                " their runs (*)"
            ),
        ]
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        complete = {"benchmark", "figures", "spreads"} <= set(record)
    except (OSError, ValueError, TypeError) as error:
        raise Unreadable(
            f"{file}: cannot be read ({error}); pass a record of an earlier run"
        ) from error
    if not complete:
        raise Unreadable(
            f"{file}: not a record that this version writes; run the benchmark again"
        )
    return record


def _rows(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[list[str]]:
    rows = []
    for figure, before in old["figures"].items():
        after = new["figures"].get(figure)
        if before is None or after is None:
            continue
        spread = sum(record["spreads"].get(figure, 0.0) for record in (old, new))
        change = (
            after / before if before else (1.0 if after == before else float("inf"))
        )
        allowed = spread or (
            EXACT if any(word in figure for word in COUNTED) else NOISE
        )
        beyond = abs(change - 1.0) > max(allowed, EXACT)
        values = [
            f"{before:.4g}",
            f"{after:.4g}",
            f"{change:.3f}",
            f"{spread:.1%}" if spread else "",
        ]
        rows.append([f"{name}: {figure}", *values, "*" if beyond else ""])
    return rows


def _remarks(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lists other differences between two runs, as their figures may not be
    comparable."""
    remarks = []
    if old.get("quick") != new.get("quick"):
        remarks.append(f"{name}: one of the two was run with --quick, on other sizes")
    for what in ("machine", "versions", "allocator"):
        before, after = old.get(what) or {}, new.get(what) or {}
        differ = [
            key for key in {**before, **after} if before.get(key) != after.get(key)
        ]
        remarks += [
            f"{key} differs: {before.get(key)}; {after.get(key)}" for key in differ
        ]
    return remarks
