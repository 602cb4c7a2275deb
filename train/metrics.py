"""Files of a run's measurements: metrics.jsonl, TensorBoard files and status.json."""

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .config.errors import UserError
from .system.files import strict_json, write_all
from .trackers import Tracker

LOST = "metrics.jsonl lacks"  # how the message that rows of it are gone begins


class MetricsWriter:
    """Appends to metrics.jsonl and to trackers; reopening at a step forgets what came after it.

    Lines hold no times, so a run that was interrupted and resumed writes the same file as one that was not.

    Attributes:
      lost: how many steps of training before that step have no row: somebody deleted or cut the file.
    """

    def __init__(self, folder: Path, *, after_step: int, trackers: Sequence[Callable[[], Tracker]] = ()):
        """Opens metrics.jsonl in ``folder``, keeping rows up to ``after_step``; then the trackers."""
        path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(path) if row["step"] <= after_step]
        self.lost = _lost_steps(kept, after_step)
        write_all(folder, {path.name: "".join(map(_line, kept)).encode()})
        self._file, self._trackers = path.open("a", encoding="utf-8"), list[Tracker]()
        with contextlib.ExitStack() as opened:
            opened.push(self)  # closes the others where one cannot be opened
            for tracker in trackers:
                self._trackers.append(tracker())
            opened.pop_all()

    def __enter__(self) -> "MetricsWriter":
        """Returns itself; leaving the context closes the files."""
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Closes the files; a full disk is not reported a second time."""
        told = contextlib.nullcontext() if kind is None else contextlib.suppress(OSError)
        with told, contextlib.ExitStack() as closed:
            for tracker in self._trackers:
                closed.callback(tracker.close)
            self._file.close()

    def write(self, row: dict[str, Any]) -> None:
        """Writes a row ``{"kind", "step", name: number or list, ...}``; trackers get all but nulls.

        A list such as violations whose entries the row has by name too (violation/layer 1) is not shown there twice.
        """
        self._file.write(_line(row))
        numbers = {f"{row['kind']}/{name}": number for name, number in _curves(row)}
        for tracker in self._trackers:
            tracker.add(numbers, row["step"])

    def flush(self) -> None:
        """Hands everything to the operating system, so that a killed process loses nothing before this point."""
        self._file.flush()
        for tracker in self._trackers:
            tracker.flush()


def tell_lost(
    messages: tuple[str, ...], lost: int, step: int, folder: Path, log: Callable[[str], None]
) -> tuple[str, ...]:
    """The messages of a run, with one that rows of metrics are gone where they are: the state does not depend on them.

    A message of an earlier process is not repeated; where another number of rows is lost, the message is replaced.
    """
    message = f"{LOST} {lost} of the rows of training: it was deleted or cut; what they recorded is lost"
    if message in messages:
        return messages
    others = tuple(known for known in messages if not known.startswith(LOST))
    if not lost:
        return others
    log(
        f"{folder}: {message} (the checkpoint that the run goes on from is of step {step}); "
        "restore the file, with the run ended, to have them back"
    )
    return (*others, message)


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


def _row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
        raise ValueError("a row must be an object with kind and step")
    return row


def _curves(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    named = {name.partition("/")[0] + "s" for name in row if "/" in name}
    for name, value in row.items():
        if name not in ("kind", "step", *named):
            entries = {f"{name}/{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value}
            yield from ((tag, float(number)) for tag, number in entries.items() if number is not None)


def _lost_steps(rows: list[dict[str, Any]], steps: int) -> int:
    return steps - len({row["step"] for row in rows if row["kind"] == "train"} & set(range(1, steps + 1)))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


PREDICTIONS = "predictions.npz"


class Predictions(NamedTuple):
    """Some scenes (scenes, height, width, 3) and the classes of their pixels, all uint8: labels and predictions."""

    images: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray


def write_predictions(folder: Path, predictions: Predictions) -> None:
    """Keeps predictions in a run folder."""
    np.savez_compressed(folder / PREDICTIONS, allow_pickle=False, **predictions._asdict())


def read_predictions(folder: Path) -> Predictions:
    """The predictions that `write_predictions` kept."""
    path, again = folder / PREDICTIONS, f"run `unroll-jax evaluate {folder}` again"
    try:
        with np.load(path, allow_pickle=False) as file:
            return Predictions(*(file[name] for name in Predictions._fields))
    except FileNotFoundError:
        raise UserError(f"run {folder} has no {PREDICTIONS}; {again}") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); {again}") from None
