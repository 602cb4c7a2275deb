"""Measurements of a run: finite numbers, metrics.jsonl, callbacks, trackers, and
predictions."""

import contextlib
import json
import math
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from ..config.errors import UserError, kind_of
from ..config.options import to_json
from ..config.run import RunConfig, Tracker
from ..system.files import LARGEST, open_regular, strict_json, write_all

EVENTS = ("on_step", "on_validation", "on_end")  # the methods of `Callbacks`
PREDICTIONS = "predictions.npz"


class NotFiniteError(UserError):
    """A number of a training run is not finite. The loop adds the last checkpoint
    and the way out."""


def require_finite(
    step: int, values: Any, what: str, *, each: str | None = None
) -> None:
    """Checks that a number, or each of a list, is finite. The error names the first
    place of a list, as "layer"."""
    broken = np.flatnonzero(~np.isfinite(np.asarray(values)))
    if broken.size:
        place = "" if each is None else f", first at {each} {broken[0]}"
        raise NotFiniteError(f"the {what} is not finite at step {step}{place}")


def json_value(value: Any, name: str) -> Any:
    """Returns a figure as a value of JSON, from numbers and arrays of NumPy and JAX.
    ``name`` is for messages."""
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise UserError(f"names in {name} must be texts, got {wrong[0]!r}; mend it")
        parts = value.items()
        return {key: json_value(part, f"{name}[{key!r}]") for key, part in parts}
    if isinstance(value, list | tuple):
        parts = enumerate(value)
        return [json_value(part, f"{name}[{place}]") for place, part in parts]
    if hasattr(value, "tolist"):
        return json_value(value.tolist(), name)
    if value is None or isinstance(value, str):
        return value
    # the whole numbers that are read as they were written
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    given = value if isinstance(value, float) else type(value).__name__
    raise UserError(
        f"{name} must be finite numbers, whole ones of 64 bits, texts, None, or lists"
        f" or dicts of these, got {given}; mend it"
    )


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Returns a mapping as an object of JSON."""
    if not isinstance(value, Mapping):
        raise UserError(
            f"{name} must be a dict, got {type(value).__name__}; return one"
        )
    return json_value(value, name)


def json_numbers(values: Iterable[Any], *, length: int = 0) -> list[float | None]:
    """Returns numbers for JSON: null for those that are not finite, and nulls in front
    to make up ``length``."""
    finite = [value if math.isfinite(value) else None for value in map(float, values)]
    return [None] * (length - len(finite)) + finite


class Callbacks(Protocol):
    """Callbacks of a run, for notebooks: subclass it and override the methods of the
    events you want.

    Example:
      >>> class Losses(Callbacks):
      ...     def __init__(self):
      ...         self.losses = []
      ...
      ...     def on_step(self, row):
      ...         self.losses.append(row["loss"])
      >>> mine = Losses()
      >>> mine.on_step({"step": 1, "loss": 0.5})  # as `fit(..., callbacks=[mine])` does
      >>> mine.losses
      [0.5]
    """

    def on_step(self, row: dict[str, Any]) -> None:
        """After a step, one step late, its row of metrics.jsonl."""

    def on_validation(self, row: dict[str, Any]) -> None:
        """After a validation, its row."""

    def on_end(self, folder: Path) -> None:
        """After the last step."""


class MetricsWriter(contextlib.AbstractContextManager["MetricsWriter"]):
    """Appends to metrics.jsonl. Reopening at a step forgets all that came after it.
    Lines hold no times, so a run that was interrupted and resumed writes the same file
    as one that was not.
    """

    def __init__(self, folder: Path, *, after_step: int):
        """Opens metrics.jsonl in ``folder``, keeping rows up to ``after_step``."""
        path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(path) if row["step"] <= after_step]
        write_all(folder, {path.name: "".join(map(_line, kept)).encode()})
        self._file = path.open("a", encoding="utf-8")

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Closes the file. A full disk is not reported a second time."""
        with contextlib.nullcontext() if kind is None else contextlib.suppress(OSError):
            self._file.close()

    def write(self, row: dict[str, Any]) -> None:
        """Writes a row ``{"kind", "step", name: number or list, ...}``."""
        self._file.write(_line(row))

    def flush(self) -> None:
        """Hands everything to the operating system: a killed process loses nothing
        before this point."""
        self._file.flush()
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise UserError(
                f"{self._file.name} was deleted under the run; the same command goes on"
            )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. A last line cut short by a kill is left out."""
    rows = []
    mend = "restore it, or move it away: a run goes on without it"
    if not path.exists():
        return rows
    with open_regular(path, where=str(path), mend=mend) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                rows.append(strict_json(line))
                if not (
                    isinstance(rows[-1]["kind"], str) and type(rows[-1]["step"]) is int
                ):
                    raise ValueError("kind must be a text, and step a whole number")
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path} is damaged in line {number}; {mend}"
                ) from error
    return rows


@contextlib.contextmanager
def open_tracker(
    name: Tracker, folder: Path, config: RunConfig, *, experiment: str, after_step: int
) -> Iterator[Callbacks]:
    """Opens TensorBoard or Weights & Biases for a run that goes on after a step. Their
    files are in the run folder."""
    if name == "tensorboard":
        from tensorboardX import SummaryWriter  # pyright: ignore

        # TensorBoard forgets the rows that a run writes again after a kill. Two files
        # of one second would have one name.
        with SummaryWriter(
            str(folder / "tensorboard"),
            purge_step=after_step + 1,
            filename_suffix=str(after_step),
        ) as writer:
            yield _Tracked(
                lambda row, step: [
                    writer.add_scalar(tag, value, step) for tag, value in row.items()
                ]
            )
        return
    import wandb  # pyright: ignore

    with wandb.init(
        project=f"unroll_jax-{experiment}",
        name=folder.name,
        id=_wandb_id(folder / "wandb/id"),
        resume="allow",
        dir=str(folder),
        config=to_json(config),
    ) as run:
        # Rows of steps that it has are left out: a resumed run writes the same.
        yield _Tracked(lambda row, step: run.log(row, step=step))


class _Tracked(Callbacks):
    """Writes rows by a function of scalars by name and the step."""

    def __init__(self, write: Any):
        self._write = write

    def on_step(self, row: dict[str, Any]) -> None:
        self._write(scalars("train", row), row["step"])

    def on_validation(self, row: dict[str, Any]) -> None:
        self._write(scalars("validation", row), row["step"])


def validation_of(folder: Path, step: int | None) -> dict[str, Any] | None:
    """Returns the row of the validation of a run at a step, or None where there is
    none."""
    rows = read_metrics(folder / "metrics.jsonl")
    found = [r for r in rows if r["kind"] == "validation" and r["step"] == step]
    return next(reversed(found), None)


def furthest_out(row: Mapping[str, Any], excess: float) -> str:
    """Returns how far the worst layer of a validation is from its bound, and which
    layers exceed theirs."""
    over = [name for name in row if "violation/" in name and (row[name] or 0.0) > 0.0]
    if not over:
        return f"the layer furthest out is {abs(excess):.1%} below its bound"
    names = ", ".join(over).replace("violation/", "")
    return f"above the bound is {names}, by {excess:.1%} at most"


def scalars(kind: str, row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row by ``kind/name``, of lists by ``kind/name/place``.
    Those that are not known are left out.

    Example:
      >>> scalars("train", {"step": 1, "loss": 0.5, "layer_losses": [2.0, None]})
      {'train/loss': 0.5, 'train/layer_losses/0': 2.0}
    """
    named: dict[str, float] = {}
    for name, value in row.items():
        values = {f"{kind}/{name}": value}
        if isinstance(value, list):
            values = {f"{kind}/{name}/{place}": one for place, one in enumerate(value)}
        named |= {key: float(one) for key, one in values.items() if one is not None}
    named.pop(f"{kind}/step")
    return named


def _wandb_id(path: Path) -> str:
    """Returns the number of the run at Weights & Biases. A run that begins anew gets
    another one."""
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_all(path.parent, {path.name: uuid.uuid4().hex[:8].encode()})
    return path.read_text(encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def check_callbacks(callbacks: Any) -> None:
    """Raises UserError unless callbacks are a list of objects with every method of
    `Callbacks`."""
    listed = isinstance(callbacks, list | tuple)
    for one in callbacks if listed else [callbacks]:
        if (
            not listed
            or isinstance(one, type)
            or not all(hasattr(one, name) for name in EVENTS)
        ):
            raise UserError(
                f"callbacks must be a list of objects with {', '.join(EVENTS)}, got"
                f" {kind_of(one)}; pass callbacks=[Mine()], where Mine is a subclass of"
                " Callbacks"
            )


class Predictions(NamedTuple):
    """Some scenes (scenes, height, width, 3) and the classes of their pixels, all
    uint8: labels and predictions."""

    images: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray


def write_predictions(folder: Path, predictions: Predictions) -> None:
    """Keeps predictions in a run folder."""
    np.savez_compressed(
        folder / PREDICTIONS, allow_pickle=False, **predictions._asdict()
    )


def read_predictions(folder: Path) -> Predictions:
    """The predictions that `write_predictions` kept."""
    path, mend = folder / PREDICTIONS, f"run `unroll-jax evaluate {folder}` again"
    try:
        with (
            open_regular(path, where=str(path), mend=mend) as content,
            np.load(content, allow_pickle=False) as file,
        ):
            if sum(member.file_size for member in file.zip.infolist()) > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST >> 20} MiB")
            return Predictions(*(file[name] for name in Predictions._fields))
    except (
        AttributeError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        MemoryError,
        zipfile.BadZipFile,
    ) as error:
        raise UserError(f"{path} is damaged ({error}); {mend}") from None


def ratio_figures(
    sample_losses: Float[np.ndarray, "samples layers_and_one"],
) -> dict[str, Any]:
    """Ratios f_l / f_{l-1} of losses of single samples, for which training promises
    nothing, as values of JSON. Counts by layer are in bins from 0 to 2, the last one
    open. Shares and means come by layer and of all layers. The share of a layer is None
    if a loss is NaN, and means leave out losses before the layer that are 0.
    """
    before, after = sample_losses[:, :-1], sample_losses[:, 1:]
    edges = np.append(np.round(np.linspace(0.0, 2.0, 81), 3), np.inf)
    ratios = np.divide(
        after, before, out=np.full_like(after, np.nan), where=before > 0.0
    )
    counts = [
        np.histogram(column[np.isfinite(column)], edges)[0].tolist()
        for column in ratios.T
    ]
    known, positive = ratios[np.isfinite(ratios)], ~(before <= 0.0)
    descending = np.mean(
        np.where(np.isnan(before) | np.isnan(after), np.nan, after < before), axis=0
    )
    several = np.sum(positive, axis=0)
    sums = np.sum(ratios, axis=0, where=positive, dtype=np.float64)
    means = np.divide(
        sums, several, out=np.full(len(several), np.nan), where=several > 0
    )
    return {
        "descend_share": json_numbers(descending),
        "mean_ratio": json_numbers(means),
        "ratio_histogram": {"edges": [*edges[:-1].tolist(), None], "counts": counts},
        "share_descending": float(np.mean(after < before)),
        "mean_ratio_all": (
            float(np.mean(known, dtype=np.float64)) if known.size else None
        ),
    }
