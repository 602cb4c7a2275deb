"""Labelled images, and scenes with maps of classes, prepared once and read in reproducible batches."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from ..config.data import ImageConfig, SceneConfig
from ..config.errors import UserError
from . import cifar10, generated, image_folder, road_scenes
from .files import Log
from .pictures import PICTURES, Examples, LabelledImages, PictureData, PictureSet, picture_records
from .prepare import Originals, Source, origin, prepare_from
from .reader import open_prepared
from .splits import SPLITS, check_share, cut_from_train

IMAGES: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": generated.DIGITS,
    "cifar10": cifar10.CIFAR10,
    "image_folder": image_folder.SOURCE,
}
SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": generated.SHAPES,
    "camvid": road_scenes.CAMVID,
    "cityscapes": road_scenes.CITYSCAPES,
}


def load(config: ImageConfig | SceneConfig, *, log: Log = print) -> PictureData:
    """Opens the images or scenes that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), PictureData)


def prepare(config: ImageConfig | SceneConfig, *, log: Log = print) -> Path:
    """Prepares what a config names, unless that is done, and returns the folder that holds it."""
    if isinstance(config, SceneConfig):
        if config.reduction < 1:
            raise UserError(f"data.reduction must be at least 1, got {config.reduction}")
        return prepare_from(SCENES, config, PICTURES, _scene_records, options=[str(config.reduction)], log=log)
    check_share(config.validation_share)
    # Records depend on the share; those of the digits do not, but that costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(IMAGES, config, PICTURES, _image_records, options=options, log=log)


def three_splits(
    splits: Mapping[str, LabelledImages], validation_share: float
) -> dict[str, tuple[LabelledImages, np.ndarray]]:
    """Images of each split and the numbers of those that are its own; validation is cut from train where missing."""
    everything = {split: (images, np.arange(len(images.labels))) for split, images in splits.items()}
    if "validation" not in everything:
        train = splits["train"]
        stay, held_out = cut_from_train(train.labels, validation_share, "images", "validation folder")
        everything |= {"train": (train, stay), "validation": (train, held_out)}
    return {split: everything[split] for split in SPLITS}


def _image_records(images: PictureSet[LabelledImages], config: ImageConfig, log: Log) -> Originals:
    chosen = three_splits(images.splits, config.validation_share)
    splits = {split: Examples(len(numbers), _read(pictures, numbers)) for split, (pictures, numbers) in chosen.items()}
    return picture_records(PictureSet(images.class_names, images.shape, splits), origin(config), log)


def _read(images: LabelledImages, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    yield from zip(images.read(numbers), images.labels[numbers].tolist(), strict=True)


def _scene_records(scenes: PictureSet[Examples], config: SceneConfig, log: Log) -> Originals:
    height, width, channels = scenes.shape
    factor = config.reduction
    if height % factor or width % factor:
        raise UserError(f"data.reduction={factor} must divide the size of the images, {width}x{height}")
    size = (height // factor, width // factor)
    splits = {
        split: Examples(examples.num_examples, _reduce(examples, factor)) for split, examples in scenes.splits.items()
    }
    return picture_records(PictureSet(scenes.class_names, (*size, channels), splits, size), origin(config), log)


def _reduce(pictures: Examples, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures.examples:
        smaller = np.asarray(Image.fromarray(image).reduce(factor)) if factor > 1 else image
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]
