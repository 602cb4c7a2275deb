"""Scenes with maps of classes prepared once and read in reproducible batches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ..config.data import SceneConfig
from ..config.errors import UserError
from . import road_scenes, shapes
from .augmentation import flip_and_crop
from .files import Log
from .pictures import PICTURES, Examples, PictureData, PictureSet, picture_records
from .prepare import Originals, Source, origin, prepare_from
from .reader import open_prepared

SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": shapes.SOURCE,
    "camvid": road_scenes.CAMVID,
    "cityscapes": road_scenes.CITYSCAPES,
}
augment = flip_and_crop  # what training may do to a batch: (key, images, labels) -> (images, labels)


class SceneData(PictureData):
    """Prepared scenes and their maps of classes."""


def load(config: SceneConfig, *, log: Log = print) -> SceneData:
    """Opens the scenes that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), SceneData)


def prepare(config: SceneConfig, *, log: Log = print) -> Path:
    """Prepares the scenes that a config names, unless that is done, and returns the folder that holds them."""
    if config.reduction < 1:
        raise UserError(f"data.reduction must be at least 1, got {config.reduction}")
    return prepare_from(SCENES, config, PICTURES, _records, options=[str(config.reduction)], log=log)


def _records(scenes: PictureSet[Examples], config: SceneConfig, log: Log) -> Originals:
    height, width, channels = scenes.shape
    factor = config.reduction
    if height % factor or width % factor:
        raise UserError(f"data.reduction={factor} must divide the size of the images, {width}x{height}")
    size = (height // factor, width // factor)
    splits = {split: Examples(found.num_examples, _reduce(found, factor)) for split, found in scenes.splits.items()}
    return picture_records(PictureSet(scenes.class_names, (*size, channels), splits, size), origin(config), log)


def _reduce(pictures: Examples, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures.examples:
        smaller = np.asarray(Image.fromarray(image).reduce(factor)) if factor > 1 else image
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]
