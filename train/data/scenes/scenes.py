"""Scenes with maps of classes prepared once and read in reproducible batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from train.data.dataset import open_prepared, prepare_from
from train.data.picture_data import PictureData
from train.data.pictures import Pictures, PictureSet, PictureSplit, write_pictures
from train.data.prepared import LocalBuilder, Records
from train.data.scenes.sources import SCENES, SceneConfig
from train.data.source import Log, fingerprint_source, open_source, origin, reading, resolve_source
from train.errors import UserError

__all__ = ["SceneBatch", "SceneData", "load", "prepare"]


class SceneBatch(NamedTuple):
    """Images, uint8 (batch, height, width, 3), and the class of each pixel, uint8 (batch, height, width).

    A pixel labelled 255 neither trains nor counts.
    """

    images: np.ndarray
    labels: np.ndarray


class SceneData(PictureData[SceneBatch]):
    """Prepared scenes and their maps of classes."""

    def __init__(self, builder: LocalBuilder) -> None:
        super().__init__(builder, self._read_batch)

    def _read_batch(self, records: Records, numbers: list[int]) -> SceneBatch:
        images, labels = zip(*records.read(numbers, "image", "label"), strict=True)
        pixels, classes = (np.frombuffer(b"".join(values), np.uint8) for values in (images, labels))
        return SceneBatch(pixels.reshape(-1, *self.shape), classes.reshape(-1, *self.shape[:2]))


def load(config: SceneConfig, *, log: Log = print) -> SceneData:
    """Opens the scenes that a config names, preparing them on first use.

    Raises:
      UserError: if the original files cannot be used, or the prepared data are damaged.
    """
    return open_prepared(prepare(config, log=log), lambda data_dir: SceneData(Pictures(data_dir=data_dir)))


def prepare(config: SceneConfig, *, log: Log = print) -> Path:
    """Prepares the scenes that a config names, unless that is done, and returns the folder that holds them.

    Raises:
      UserError: if the original files cannot be used, or the folder cannot be written.
    """
    if config.reduction < 1:
        raise UserError(f"data.reduction must be at least 1, got {config.reduction}")
    source, root = resolve_source(SCENES, config)

    def write(data_dir: Path) -> None:
        with open_source(source, root, config.prepared, log) as scenes:
            write_pictures(_reduced(scenes, config.reduction), data_dir, origin(config), log)

    with reading(config):
        key = f"{config.source}-{fingerprint_source(source, root)}-{config.reduction}"
        return prepare_from(Pictures, key, config.prepared, prepare=write, log=log)


def _reduced(scenes: PictureSet, factor: int) -> PictureSet:
    height, width, channels = scenes.shape
    if height % factor or width % factor:
        raise UserError(f"data.reduction={factor} must divide the size of the images, {width}x{height}")
    size = (height // factor, width // factor)
    splits = {
        split: PictureSplit(pictures.num_examples, _reduce(pictures, factor))
        for split, pictures in scenes.splits.items()
    }
    return PictureSet(scenes.class_names, (*size, channels), size, splits)


def _reduce(pictures: PictureSplit, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures.examples:
        smaller = np.asarray(Image.fromarray(image).reduce(factor)) if factor > 1 else image
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]
