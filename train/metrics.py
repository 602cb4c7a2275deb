"""Where a run writes what it measures: metrics.jsonl, TensorBoard files and status.json."""

import contextlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.board import Board
from train.errors import UserError
from train.storage import overwrite, write_all

__all__ = ["MetricsWriter", "numbers", "read_metrics", "strict_json", "write_json"]


class MetricsWriter:
    """Appends to metrics.jsonl and TensorBoard; reopening at a step forgets what came after it.

    Lines hold no times, so a run that was interrupted and resumed writes the same file as one that was not.

    Attributes:
      lost: how many steps of training before that step have no row: somebody deleted or cut the file.
    """

    def __init__(self, folder: Path, *, after_step: int):
        """Opens the writers in ``folder``, keeping what was recorded up to ``after_step``."""
        path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(path) if row["step"] <= after_step]
        self.lost = _lost_steps(kept, after_step)
        write_all(folder, {path.name: "".join(map(_line, kept)).encode()})
        self._board = Board(folder / "tensorboard", first_step=after_step + 1)
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> "MetricsWriter":
        """Returns itself; leaving the context closes the files."""
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Closes the files; that a disk is full is not told a second time."""
        with (
            contextlib.nullcontext() if kind is None else contextlib.suppress(OSError),
            contextlib.closing(self._board),
        ):
            self._file.close()

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
                    self._board.add(f"{row['kind']}/{tag}".replace(" ", "_"), float(number), row["step"])

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
            rows.append(_row(strict_json(line)))
        except ValueError as error:
            raise UserError(
                f"{path} is damaged in line {number}; restore it, or move it away: a run goes on without it"
            ) from error
    return rows


def strict_json(content: str | bytes) -> Any:
    """The value of a JSON text; NaN and infinities, which are no JSON, are a ValueError like other damage."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_json(path: Path, value: Any, *, or_in_place: bool = False) -> None:
    """Writes JSON in one move: a reader sees the old file or the new one, never half of it.

    Args:
      path: of the file.
      value: to be written.
      or_in_place: whether, where the system refuses a new file, as a full disk does, the old one is written over.
    """
    content = (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
    try:
        write_all(path.parent, {path.name: content})
    except OSError:
        if not or_in_place:
            raise
        overwrite(path, content)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
        raise ValueError("a row must be an object with kind and step")
    return row


def _lost_steps(rows: list[dict[str, Any]], steps: int) -> int:
    return steps - len({row["step"] for row in rows if row["kind"] == "train"} & set(range(1, steps + 1)))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
