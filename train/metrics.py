"""Where a run writes what it measures: metrics.jsonl, TensorBoard files and status.json."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.errors import UserError

__all__ = ["PARTIAL", "MetricsWriter", "numbers", "read_metrics", "write_json"]

PARTIAL = ".partial"  # suffix of a file that is being written


class MetricsWriter:
    """Appends to metrics.jsonl and TensorBoard; reopening at a step forgets what came after it.

    Lines hold no times, so a run that was interrupted and resumed writes the same file as one that was not.
    """

    def __init__(self, folder: Path, *, after_step: int):
        """Opens the writers in ``folder``, keeping what was recorded up to ``after_step``."""
        # It imports torch where that is installed: a second or more, which commands that train nothing need not wait.
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        _replace(path, "".join(_line(row) for row in read_metrics(path) if row["step"] <= after_step))
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=after_step + 1)

    def __enter__(self) -> "MetricsWriter":
        """Returns itself; leaving the context closes the files."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the files."""
        self._file.close()
        self._board.close()

    def write(self, row: dict[str, Any]) -> None:
        """Writes a row ``{"kind", "step", name: number or list, ...}``; TensorBoard gets all but nulls.

        A list such as violations whose entries the row has by name too (violation/layer 1) is not shown there twice.
        """
        self._file.write(_line(row))
        named = {name.partition("/")[0] + "s" for name in row if "/" in name}
        for name, value in row.items():
            if name in ("kind", "step", *named):
                continue
            entries = {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
            for tag, number in entries.items():
                if number is not None:
                    self._board.add_scalar(f"{row['kind']}/{tag}".replace(" ", "_"), float(number), row["step"])

    def flush(self) -> None:
        """Hands everything to the operating system, so that a killed process loses nothing before this point."""
        self._file.flush()
        self._board.flush()


def numbers(values: Iterable[float], *, length: int = 0) -> list[float | None]:
    """Numbers as JSON has them: null for what is not finite, and nulls in front to make up ``length``."""
    found = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(found)) + found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a kill is left out.

    Raises:
      UserError: naming the line, if another one is damaged.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path} is damaged in line {number}; move the run folder away and train again") from error
    return rows


def write_json(path: Path, value: Any) -> None:
    """Writes JSON in one move: a reader sees the old file or the new one, never half of it."""
    _replace(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(PARTIAL)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
