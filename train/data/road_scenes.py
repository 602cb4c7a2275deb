"""Road scenes, each an image in colour and a map of labels: CamVid as SegNet lays it out, Cityscapes as published."""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..config.errors import UserError
from .files import Log, OriginalFile
from .pictures import (
    NOT_COUNTED,
    Examples,
    PictureSet,
    check_one_data_set,
    decode_in_order,
    fingerprint_images,
    levels,
    open_image_files,
    stored_numbers,
)
from .prepare import Source
from .splits import tenth


class SceneFiles(NamedTuple):
    """The files of one scene."""

    image: OriginalFile
    labels: OriginalFile


class ClassTable(NamedTuple):
    """The classes of the numbers in a file of labels, the numbers without a class, and all of them in words."""

    classes: Mapping[int, int]
    uncounted: Sequence[int]
    labels: str

    def look_up(self, numbers: np.ndarray, where: str) -> np.ndarray:
        """The class of each number, uint8, `NOT_COUNTED` where there is none."""
        table, known = np.full(256, NOT_COUNTED, np.uint8), np.zeros(256, bool)
        table[list(self.classes)] = list(self.classes.values())
        known[[*self.classes, *self.uncounted]] = True
        unknown = ~known[numbers]
        if unknown.any():
            row, column = np.argwhere(unknown)[0]
            raise UserError(
                f"{where} holds the label {numbers[row, column]} at row {row}, column {column}; "
                f"labels are {self.labels}"
            )
        return table[numbers]


CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
CAMVID_TABLE = ClassTable({number: number for number in range(11)}, [11], "0 to 10, and 11 for unlabelled")
CAMVID_LAYOUT = "ROOT/train/NAME.png with its labels in ROOT/trainannot/NAME.png, and so for val and test"
CAMVID_FILE = re.compile(r"(?:(.*?)/)?(train|val|test)(annot)?/([^/]+)\.\w+", re.DOTALL)
CAMVID_SPLITS = {"train": "train", "validation": "val", "test": "test"}
CamVidFiles = dict[tuple[str, str], OriginalFile]  # by folder and name without suffix

# The 19 classes of the benchmark, by their train ids, and the label id of each.
LABEL_IDS = {
    **{"road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19},
    **{"traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26},
    **{"truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33},
}
HIGHEST_LABEL_ID = 33
CITYSCAPES_TABLES = {
    # 255 stands for -1, the id of licence plates.
    "labelIds": ClassTable(
        {label: train for train, label in enumerate(LABEL_IDS.values())},
        [*(set(range(HIGHEST_LABEL_ID + 1)) - set(LABEL_IDS.values())), NOT_COUNTED],
        f"label ids, 0 to {HIGHEST_LABEL_ID}, or 255",
    ),
    "labelTrainIds": ClassTable(
        {number: number for number in range(len(LABEL_IDS))},
        [NOT_COUNTED],
        f"train ids, 0 to {len(LABEL_IDS) - 1}, or 255 for none",
    ),
}
CITYSCAPES_LAYOUT = (
    "ROOT/leftImg8bit/train/CITY/NAME_leftImg8bit.png with its labels in "
    "ROOT/gtFine/train/CITY/NAME_gtFine_labelIds.png, and so for val"
)
# Both downloads may have been unpacked into folders of their own. The labels of the test cities are not published.
IMAGE = re.compile(r"(?:.*/)?leftImg8bit/((train|val)/([^/]+)/[^/]+)_leftImg8bit\.\w+", re.DOTALL)
LABELS = re.compile(r"(?:.*/)?gtFine/((train|val)/[^/]+/[^/]+)_gtFine_(labelIds|labelTrainIds)\.\w+", re.DOTALL)


@contextlib.contextmanager
def open_camvid(root: Path, _: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root; they can be read while the context lasts."""
    with open_image_files(root, what="images") as files:
        scene_files = _camvid_files(files, root)
        splits = {split: _camvid_split(scene_files, folder, root) for split, folder in CAMVID_SPLITS.items()}
        tables = {scene.labels: CAMVID_TABLE for scenes in splits.values() for scene in scenes}
        yield _scenes(splits, tables, CAMVID_CLASSES, root)


@contextlib.contextmanager
def open_cityscapes(root: Path, log: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root; they can be read while the context lasts.

    The published val split is test here, for the labels of the published test split are kept back; validation is cut
    from train, whole cities of it.
    """
    with open_image_files(root, what="images") as files:
        scenes, tables = _cityscapes_files(files, root)
        cities = split_cities(sorted({city for split, city in scenes if split == "train"}), root=root)
        log(f"  validation cities: {', '.join(cities['validation'])}")
        splits = {
            split: [scene for city in names for scene in scenes["train", city]] for split, names in cities.items()
        }
        splits["test"] = [
            scene for (split, _), city_scenes in scenes.items() if split == "val" for scene in city_scenes
        ]
        if not splits["test"]:
            raise UserError(
                f"data.root={root} holds no scenes of val, on which tests run; the layout is {CITYSCAPES_LAYOUT}"
            )
        yield _scenes(splits, tables, tuple(LABEL_IDS), root)


def split_cities(cities: list[str], *, root: Path) -> dict[str, list[str]]:
    """Holds out the last tenth of the train cities by name, at least one: of all 18, weimar and zurich."""
    if len(cities) < 2:
        raise UserError(
            f"data.root={root} holds {len(cities)} train cities; give at least 2, one of them to validate; "
            f"the layout is {CITYSCAPES_LAYOUT}"
        )
    num_train = len(cities) - tenth(len(cities))
    return {"train": cities[:num_train], "validation": cities[num_train:]}


def _camvid_files(files: list[OriginalFile], root: Path) -> CamVidFiles:
    scene_files: CamVidFiles = {}
    tops, twice = set(), []
    for file in files:
        if matched := CAMVID_FILE.fullmatch(str(file.path)):
            top, split, labels, name = matched.groups()
            tops.add(top or ".")
            other = scene_files.setdefault((split + (labels or ""), name), file)
            if other is not file:
                twice.append((other.path, file.path))
    check_one_data_set(tops, root)
    if twice:
        raise UserError(f"data.root={root} holds '{twice[0][0]}' and '{twice[0][1]}'; keep one of them")
    return scene_files


def _camvid_split(scene_files: CamVidFiles, folder: str, root: Path) -> list[SceneFiles]:
    names = sorted(name for place, name in scene_files if place == folder)
    if not names:
        raise UserError(f"data.root={root} holds no {folder} folder with images; the layout is {CAMVID_LAYOUT}")
    for place, name in sorted(scene_files):
        for one, other in ((folder, f"{folder}annot"), (f"{folder}annot", folder)):
            if place == one and (other, name) not in scene_files:
                raise UserError(
                    f"data.root={root}: '{scene_files[place, name].path}' has no counterpart in {other}; "
                    f"the layout is {CAMVID_LAYOUT}"
                )
    return [SceneFiles(scene_files[folder, name], scene_files[f"{folder}annot", name]) for name in names]


def _cityscapes_files(
    files: list[OriginalFile], root: Path
) -> tuple[dict[tuple[str, str], list[SceneFiles]], dict[OriginalFile, ClassTable]]:
    """Finds the scenes of each split and city, with label ids where there are some, train ids otherwise."""
    images, labels = {}, {}
    for file in files:
        if match := IMAGE.fullmatch(str(file.path)):
            images[match[1]] = (file, (match[2], match[3]))
        elif match := LABELS.fullmatch(str(file.path)):
            labels.setdefault(match[1], {})[match[3]] = file
    scenes, tables = {}, {}
    for name, (image, city) in sorted(images.items(), key=lambda item: item[0].split("/")):
        if name not in labels:
            raise UserError(
                f"data.root={root}: '{image.path}' has no labels in gtFine; the layout is {CITYSCAPES_LAYOUT}"
            )
        kind = next(kind for kind in CITYSCAPES_TABLES if kind in labels[name])
        scenes.setdefault(city, []).append(SceneFiles(image, labels[name][kind]))
        tables[labels[name][kind]] = CITYSCAPES_TABLES[kind]
    for name in sorted(labels.keys() - images.keys()):
        file = next(iter(labels[name].values()))
        raise UserError(
            f"data.root={root}: '{file.path}' has no image in leftImg8bit; the layout is {CITYSCAPES_LAYOUT}"
        )
    return scenes, tables


def _scenes(
    splits: Mapping[str, Sequence[SceneFiles]],
    tables: Mapping[OriginalFile, ClassTable],
    class_names: tuple[str, ...],
    root: Path,
) -> PictureSet[Examples]:
    """The scenes of files, all of the size of the first; it is read now, the others in their turn."""
    first = splits["train"][0].image
    height, width, _ = next(decode_in_order([first], _colours, root=root, what="image")).shape

    def check_size(file: OriginalFile, pixels: np.ndarray) -> None:
        if pixels.shape[:2] != (height, width):
            raise UserError(
                f"data.root={root}: '{file.path}' is {pixels.shape[1]}x{pixels.shape[0]}, but "
                f"'{first.path}' is {width}x{height}; bring all images and labels to one size"
            )

    def read(scenes: Sequence[SceneFiles]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        convert = lambda file, picture: stored_numbers(picture) if file in tables else _colours(file, picture)  # noqa: E731
        in_turn = list(itertools.chain.from_iterable(scenes))
        arrays = decode_in_order(in_turn, convert, root=root, what="image")
        for scene, image, numbers in zip(scenes, arrays, arrays, strict=True):
            check_size(scene.image, image)
            check_size(scene.labels, numbers)
            where = f"data.root={root}: '{scene.labels.path}'"
            yield image, tables[scene.labels].look_up(numbers, where)

    pictures = {split: Examples(len(scenes), read(scenes)) for split, scenes in splits.items()}
    return PictureSet(class_names, (height, width, 3), pictures, (height, width))


def _colours(_: OriginalFile, picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))


CAMVID = Source(
    functools.partial(fingerprint_images, what="images", layout=CAMVID_LAYOUT),
    open_camvid,
    "the folder or tar archive with train, trainannot, ...",
)
CITYSCAPES = Source(
    functools.partial(fingerprint_images, what="images", layout=CITYSCAPES_LAYOUT),
    open_cityscapes,
    "the folder with leftImg8bit and gtFine",
)
