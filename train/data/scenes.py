"""Road scenes, each an image in colour and a map of classes: CamVid in the layout of SegNet; and their reduction."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..config.data import SceneConfig
from ..config.errors import UserError, option_text
from . import generated
from .files import Log, OriginalFile, root_error
from .pictures import (
    NOT_COUNTED,
    Examples,
    PictureSet,
    check_one_data_set,
    decode_in_order,
    fingerprint_images,
    levels,
    open_image_files,
    picture_records,
)
from .prepare import Originals, Source, origin

CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
UNLABELLED = len(CLASSES)
LAYOUT = "ROOT/train/NAME.png with its labels in ROOT/trainannot/NAME.png, and so for val and test"
FILE = re.compile(r"(?:(.*?)/)?(train|val|test)(annot)?/([^/]+)\.\w+", re.DOTALL)
FOLDERS = {"train": "train", "validation": "val", "test": "test"}


class SceneFiles(NamedTuple):
    """The files of one scene."""

    image: OriginalFile
    labels: OriginalFile


def scene_records(scenes: PictureSet[Examples], config: SceneConfig, log: Log) -> Originals:
    """Returns the records of scenes, reduced in size."""
    height, width, channels = scenes.shape
    factor = config.reduction
    if height % factor or width % factor:
        raise UserError(f"{option_text('data.reduction', factor)} must divide the size of the images, {width}x{height}")
    size = (height // factor, width // factor)
    splits = {
        split: Examples(examples.num_examples, _reduce(examples, factor)) for split, examples in scenes.splits.items()
    }
    return picture_records(PictureSet(scenes.class_names, (*size, channels), splits, size), origin(config), log)


@contextlib.contextmanager
def open_camvid(root: Path, _: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root, all of the size of the first; they can be read while the context lasts."""
    with open_image_files(root) as files:
        scene_files = _scene_files(files, root)
        splits = {split: _split(scene_files, folder, root) for split, folder in FOLDERS.items()}
        first = splits["train"][0].image
        height, width, _ = next(decode_in_order([first], _colours, root=root, what="image")).shape
        pictures = {
            split: Examples(len(scenes), _read(scenes, (height, width), first, root))
            for split, scenes in splits.items()
        }
        yield PictureSet(CLASSES, (height, width, 3), pictures, (height, width))


def _reduce(pictures: Examples, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures.examples:
        smaller = np.asarray(Image.fromarray(image).reduce(factor)) if factor > 1 else image
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]


def _scene_files(files: list[OriginalFile], root: Path) -> dict[tuple[str, str], OriginalFile]:
    """Returns files by their folder and their name without suffix."""
    scene_files: dict[tuple[str, str], OriginalFile] = {}
    tops, twice = set(), []
    for file in files:
        if matched := FILE.fullmatch(str(file.path)):
            top, split, labels, name = matched.groups()
            tops.add(top or ".")
            other = scene_files.setdefault((split + (labels or ""), name), file)
            if other is not file:
                twice.append((other.path, file.path))
    check_one_data_set(tops, root)
    if twice:
        raise root_error(root, f"holds '{twice[0][0]}' and '{twice[0][1]}'; keep one of them")
    return scene_files


def _split(scene_files: Mapping[tuple[str, str], OriginalFile], folder: str, root: Path) -> list[SceneFiles]:
    images, maps = (
        {name: file for (place, name), file in scene_files.items() if place == each}
        for each in (folder, f"{folder}annot")
    )
    if not images:
        raise root_error(root, f"holds no {folder} folder with images; the layout is {LAYOUT}")
    for name in sorted(images.keys() ^ maps.keys()):
        alone = (images | maps)[name].path
        raise root_error(root, f": '{alone}' has no counterpart; the layout is {LAYOUT}")
    return [SceneFiles(images[name], maps[name]) for name in sorted(images)]


def _read(
    scenes: Sequence[SceneFiles], size: tuple[int, int], first: OriginalFile, root: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    maps = {scene.labels for scene in scenes}

    def convert(file: OriginalFile, picture: Image.Image) -> np.ndarray:
        if file in maps and picture.mode not in ("L", "P"):  # whose numbers are read as stored: no palette is looked up
            raise ValueError(f"it must hold one number of 8 bits a pixel, but its mode is {picture.mode}")
        array = np.asarray(picture) if file in maps else _colours(file, picture)
        if array.shape[:2] != size:
            raise root_error(
                root,
                f": '{file.path}' is {array.shape[1]}x{array.shape[0]}, but '{first.path}' is {size[1]}x{size[0]}; "
                "bring all images and labels to one size",
            )
        return _classes(array, f"{option_text('data.root', root)}: '{file.path}'") if file in maps else array

    in_turn = list(itertools.chain.from_iterable(scenes))
    arrays = decode_in_order(in_turn, convert, root=root, what="image")
    yield from zip(arrays, arrays, strict=True)


def _classes(numbers: np.ndarray, where: str) -> np.ndarray:
    """Returns the class of each pixel, uint8, `NOT_COUNTED` for unlabelled ones."""
    if (numbers > UNLABELLED).any():
        row, column = np.argwhere(numbers > UNLABELLED)[0]
        raise UserError(
            f"{where} has the label {numbers[row, column]} at row {row}, column {column}; labels are 0 to "
            f"{UNLABELLED - 1}, and {UNLABELLED} for unlabelled"
        )
    return np.where(numbers == UNLABELLED, np.uint8(NOT_COUNTED), numbers)


def _colours(_: OriginalFile, picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))


SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": generated.SHAPES,
    "camvid": Source(fingerprint_images, open_camvid, f"the folder or tar archive of {LAYOUT}"),
}
