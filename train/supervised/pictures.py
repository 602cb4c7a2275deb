"""Predictions of a segmenter beside the labels."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from train.data.pictures import NOT_COUNTED
from train.report.panels import DPI, WIDTH
from train.supervised.task import Task

__all__ = ["draw_predictions"]

SHOWN = 4  # scenes: evenly spread over the test split
UNCOUNTED = (0.0, 0.0, 0.0)


def draw_predictions(path: Path, task: Task, data: Any, params: Any) -> None:
    """Draws some scenes of the test split: the picture, the labels, the predictions; one colour a class."""
    batch = _spread(data)
    logits, _ = jax.jit(task.logits)(params, batch.images)
    predicted = np.asarray(np.argmax(np.asarray(logits), axis=-1))
    labels = np.asarray(batch.labels)
    rows = len(labels)
    height, width = labels.shape[1:]
    figure = Figure(figsize=(WIDTH, WIDTH / 3 * height / width * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, 3, squeeze=False)
    for axes, title in zip(grid[0], ("scene", "labels (black: not counted)", "prediction"), strict=True):
        axes.set_title(title, fontsize="medium")
    for row, image, label, guess in zip(grid, np.asarray(batch.images), labels, predicted, strict=True):
        for axes, picture in zip(row, (image, _coloured(label), _coloured(guess)), strict=True):
            axes.imshow(picture, interpolation="nearest")
            axes.set_axis_off()
    patches = [Patch(color=_colour(place), label=name) for place, name in enumerate(data.class_names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize="small")
    figure.savefig(path, dpi=DPI, facecolor="white")


def _spread(data: Any) -> Any:
    wanted = set(np.linspace(0, data.num_examples("test") - 1, SHOWN).astype(int).tolist())
    batches = enumerate(data.examples("test", batch_size=1))
    chosen = [batch for place, batch in batches if place in wanted]
    return type(chosen[0])(*(np.concatenate(parts) for parts in zip(*chosen, strict=True)))


def _colour(place: int) -> tuple[float, float, float]:
    return colormaps["tab20"](place % 20)[:3]


def _coloured(labels: np.ndarray) -> np.ndarray:
    colours = np.zeros((NOT_COUNTED + 1, 3))
    colours[:NOT_COUNTED] = [_colour(place) for place in range(NOT_COUNTED)]
    colours[NOT_COUNTED] = UNCOUNTED
    return colours[labels]
