"""Predictions of segmenters beside the labels."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from train.data.pictures import NOT_COUNTED
from train.errors import UserError
from train.processes import fetch
from train.report.panels import WIDTH
from train.supervised.task import Task

__all__ = ["Predictions", "draw_predictions", "predict", "read_predictions", "write_predictions"]

FILE = "predictions.npz"
SHOWN = 4  # scenes: evenly spread over the test split
UNCOUNTED = (0.0, 0.0, 0.0)


class Predictions(NamedTuple):
    """Some scenes and what a segmenter says of them.

    Attributes:
      images: uint8 (scenes, height, width, 3).
      labels: class of each pixel, uint8 (scenes, height, width).
      predicted: likewise.
    """

    images: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray


def predict(task: Task, data: Any, params: Any) -> Predictions:
    """Predictions for some scenes of the test split, the same ones every time."""
    batch = _spread(data)
    logits, _ = jax.jit(task.logits)(params, batch.images)
    predicted = np.argmax(fetch(logits), axis=-1).astype(np.uint8)
    return Predictions(np.asarray(batch.images), np.asarray(batch.labels), predicted)


def write_predictions(folder: Path, found: Predictions) -> None:
    """Keeps predictions in a run folder."""
    np.savez_compressed(folder / FILE, allow_pickle=False, **found._asdict())


def read_predictions(folder: Path) -> Predictions:
    """The predictions that `write_predictions` kept.

    Raises:
      UserError: if there are none, or their file is damaged.
    """
    path, again = folder / FILE, f"run `python -m train evaluate {folder}` again"
    try:
        with np.load(path, allow_pickle=False) as file:
            return Predictions(*(file[name] for name in Predictions._fields))
    except FileNotFoundError:
        raise UserError(f"run {folder} has no {FILE}; {again}") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); {again}") from None


def draw_predictions(found: Mapping[str, Predictions], class_names: Sequence[str]) -> Figure:
    """Scenes, their labels, and a column of predictions of each network by its name; one colour a class."""
    scenes = next(iter(found.values()))
    columns = {"scene": scenes.images, "labels (black: not counted)": _coloured(scenes.labels)}
    columns |= {name: _coloured(predictions.predicted) for name, predictions in found.items()}
    rows, height, width = scenes.labels.shape
    figure = Figure(figsize=(WIDTH, WIDTH / len(columns) * height / width * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for axes, (title, pictures) in zip(grid.T, columns.items(), strict=True):
        axes[0].set_title(title, fontsize="medium")
        for place, picture in zip(axes, pictures, strict=True):
            place.imshow(picture, interpolation="nearest")
            place.set_axis_off()
    patches = [Patch(color=_colour(place), label=name) for place, name in enumerate(class_names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize="small")
    return figure


def _spread(data: Any) -> Any:
    wanted = set(np.linspace(0, data.num_examples("test") - 1, SHOWN).astype(int).tolist())
    batches = enumerate(data.examples("test", batch_size=1))
    chosen = [batch for place, batch in batches if place in wanted]
    return type(chosen[0])(*(np.concatenate(parts) for parts in zip(*chosen, strict=True)))


def _colour(place: int) -> tuple[float, float, float]:
    """Of tab20, which has pairs of a strong and a pale colour: the ten strong ones first."""
    return colormaps["tab20"](2 * place % 20 + place // 10 % 2)[:3]


def _coloured(labels: np.ndarray) -> np.ndarray:
    colours = np.zeros((NOT_COUNTED + 1, 3))
    colours[:NOT_COUNTED] = [_colour(place) for place in range(NOT_COUNTED)]
    colours[NOT_COUNTED] = UNCOUNTED
    return colours[labels]
