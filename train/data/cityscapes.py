"""Cityscapes as published: scenes in leftImg8bit, their maps of label ids in gtFine."""

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ..config.errors import UserError
from .files import Log, OriginalFile
from .media import Media, check_one_data_set, decode_in_order, open_media
from .pictures import NOT_COUNTED, Examples, PictureSet, levels

ADDRESS = "https://www.cityscapes-dataset.com"
LAYOUT = (
    "ROOT/leftImg8bit/train/CITY/NAME_leftImg8bit.png with its label ids in"
    " ROOT/gtFine/train/CITY/NAME_gtFine_labelIds.png, and so for val"
)
SCENE = re.compile(r"leftImg8bit/(train|val)/([^/]+)/([^/]+)_leftImg8bit\.png")
LABELS = re.compile(r"gtFine/(train|val)/([^/]+)/([^/]+)_gtFine_labelIds\.png")
# The 19 classes that are evaluated, by their label ids. Pixels of other ids do not
# count.
IDS = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
LARGEST, PLATE = 33, 255  # ids; a licence plate has -1, which is 255 in 8 bits
CLASS_OF_ID = np.full(256, NOT_COUNTED, np.uint8)
CLASS_OF_ID[list(IDS)] = np.arange(len(IDS))

Pair = tuple[OriginalFile, OriginalFile]  # a scene and its map
Key = tuple[str, ...]  # the split, city and name of a scene


@contextlib.contextmanager
def open_cityscapes(root: Path, log: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root, all of the size of the first.

    The labels of Cityscapes' test split are not published: val is the test split, as
    in the papers. The scenes of the last city of train by name validate.
    """
    with open_media(root, log) as media:
        splits = _splits(media)
        first, _ = splits["train"][0]
        height, width, _ = next(decode_in_order([first], _colours)).shape
        read = functools.partial(decode_in_order, size=(width, height))
        pictures = {}
        for split, pairs in splits.items():
            scenes, maps = zip(*pairs, strict=True)
            both = read(scenes, _colours), read(maps, _classes)
            pictures[split] = zip(*both, strict=True)
        shape = (height, width, 3)
        yield PictureSet(tuple(IDS.values()), shape, pictures, (height, width))


def _splits(media: Media) -> dict[str, list[Pair]]:
    """Returns the scenes of each split with their maps, by city and name."""
    scenes = _matches(media, SCENE)
    maps = _matches(media, LABELS)
    for key in sorted(scenes.keys() ^ maps.keys()):
        alone = (scenes | maps)[key].path
        raise UserError(f"'{alone}' has no counterpart; the layout is {LAYOUT}")

    cities = sorted({city for split, city, _ in scenes if split == "train"})
    if len(cities) < 2 or all(split == "train" for split, *_ in scenes):
        raise UserError(
            "holds no scenes of val and of two cities of train, the last of which"
            f" validates; the layout is {LAYOUT}"
        )

    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for key in sorted(scenes):
        split = "test" if key[0] == "val" else "train"
        if split == "train" and key[1] == cities[-1]:
            split = "validation"
        splits[split].append((scenes[key], maps[key]))
    return splits


def _matches(media: Media, pattern: re.Pattern[str]) -> dict[Key, OriginalFile]:
    """Returns the files whose last folders and name match, by the groups of these."""
    files = {}
    tops = set()
    for file in media.pictures:
        *above, folder, split, city, name = ("", "", "", *file.path.parts)
        match = pattern.fullmatch("/".join((folder, split, city, name)))
        if match:
            tops.add(PurePosixPath(*above))
            files[match.groups()] = file
    check_one_data_set(tops)
    return files


def _colours(picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _classes(picture: Image.Image) -> np.ndarray:
    ids = np.asarray(picture)
    if picture.mode != "L":
        raise ValueError(f"it must hold label ids of 8 bits, got {picture.mode}")
    unknown = ids[(ids > LARGEST) & (ids != PLATE)]
    if unknown.size:
        raise ValueError(f"it has the label id {unknown.max()}; ids are 0 to {LARGEST}")
    return CLASS_OF_ID[ids]
