"""Labelled images prepared once and read in reproducible batches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..config.data import ImageConfig
from . import image_folder, small_images
from .augmentation import flip_and_shift
from .files import Log
from .pictures import PICTURES, Examples, LabelledImages, PictureData, PictureSet, picture_records
from .prepare import Originals, Source, origin, prepare_from
from .reader import open_prepared
from .splits import SPLITS, check_share, cut_from_train

IMAGES: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": small_images.DIGITS,
    "cifar10": small_images.CIFAR10,
    "image_folder": image_folder.SOURCE,
}
augment = flip_and_shift  # what training may do to a batch: (key, images, labels) -> (images, labels)


class ImageData(PictureData):
    """Prepared images and the class of each."""


def load(config: ImageConfig, *, log: Log = print) -> ImageData:
    """Opens the images that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), ImageData)


def prepare(config: ImageConfig, *, log: Log = print) -> Path:
    """Prepares the images that a config names, unless that is done, and returns the folder that holds them."""
    check_share(config.validation_share)
    # Records depend on the share; those of the digits do not, but that costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(IMAGES, config, PICTURES, _records, options=options, log=log)


def _records(images: PictureSet[LabelledImages], config: ImageConfig, log: Log) -> Originals:
    everything = {split: (images.splits[split], np.arange(len(images.splits[split].labels))) for split in images.splits}
    if "validation" not in everything:
        train = images.splits["train"]
        stay, held_out = cut_from_train(train.labels, config.validation_share, "images", "validation folder")
        everything |= {"train": (train, stay), "validation": (train, held_out)}
    splits = {split: Examples(len(everything[split][1]), _examples(*everything[split])) for split in SPLITS}
    return picture_records(PictureSet(images.class_names, images.shape, splits), origin(config), log)


def _examples(images: LabelledImages, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    yield from zip(images.read(numbers), images.labels[numbers].tolist(), strict=True)
