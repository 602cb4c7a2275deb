"""Labelled images prepared once and read in reproducible batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from train.data.dataset import open_prepared, prepare_from
from train.data.images.originals import ImageSet, LabelledImages
from train.data.images.sources import IMAGES, ImageConfig
from train.data.picture_data import PictureData
from train.data.pictures import Pictures, PictureSet, PictureSplit, write_pictures
from train.data.prepared import LocalBuilder, Records
from train.data.source import Log, fingerprint_source, open_source, origin, reading, resolve_source
from train.data.splits import SPLITS, hold_out
from train.errors import UserError

__all__ = ["ImageBatch", "ImageData", "load", "prepare"]


class ImageBatch(NamedTuple):
    """Images, uint8 (batch, height, width, channels), and their classes, int32 (batch,)."""

    images: np.ndarray
    labels: np.ndarray


class ImageData(PictureData[ImageBatch]):
    """Prepared images and their classes."""

    def __init__(self, builder: LocalBuilder) -> None:
        super().__init__(builder, self._read_batch)

    def _read_batch(self, records: Records, numbers: list[int]) -> ImageBatch:
        images, labels = zip(*records.read(numbers, "image", "label"), strict=True)
        pixels = np.frombuffer(b"".join(images), np.uint8)
        return ImageBatch(pixels.reshape(-1, *self.shape), np.array(labels, np.int32))


def load(config: ImageConfig, *, log: Log = print) -> ImageData:
    """Opens the images that a config names, preparing them on first use.

    Raises:
      UserError: if the original files cannot be used, or the prepared data are damaged.
    """
    return open_prepared(prepare(config, log=log), lambda data_dir: ImageData(Pictures(data_dir=data_dir)))


def prepare(config: ImageConfig, *, log: Log = print) -> Path:
    """Prepares the images that a config names, unless that is done, and returns the folder that holds them.

    Raises:
      UserError: if the original files cannot be used, or the folder cannot be written.
    """
    if not 0.0 < config.validation_share < 1.0:
        raise UserError(f"data.validation_share must be in (0, 1), got {config.validation_share}")
    source, root = resolve_source(IMAGES, config)

    def write(data_dir: Path) -> None:
        with open_source(source, root, config.prepared, log) as images:
            write_pictures(_pictures(images, config.validation_share), data_dir, origin(config), log)

    with reading(config):
        # Records depend on the share; those of the digits do not, but that costs nothing.
        key = f"{config.source}-{fingerprint_source(source, root)}-{config.validation_share:g}"
        return prepare_from(Pictures, key, config.prepared, prepare=write, log=log)


def _pictures(images: ImageSet, share: float) -> PictureSet:
    everything = {split: (images.splits[split], np.arange(len(images.splits[split].labels))) for split in images.splits}
    if "validation" not in everything:
        train = images.splits["train"]
        try:
            stay, held_out = hold_out(train.labels, share)
        except ValueError as error:
            raise UserError(
                f"data.validation_share={share:g} cannot be cut from the train images ({error}); give more of them, "
                "another share, or a validation folder"
            ) from error
        everything |= {"train": (train, stay), "validation": (train, held_out)}
    splits = {split: PictureSplit(len(everything[split][1]), _examples(*everything[split])) for split in SPLITS}
    return PictureSet(images.class_names, images.shape, (), splits)


def _examples(images: LabelledImages, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    labels = images.labels[numbers].tolist()
    yield from zip(images.read(numbers), labels, strict=True)
