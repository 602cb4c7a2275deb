"""Cityscapes as published: leftImg8bit/SPLIT/CITY/*_leftImg8bit.png beside gtFine/SPLIT/CITY/*_gtFine_labelIds.png."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from train.data.image_files import ImageFile, fingerprint_images, open_image_files
from train.data.pictures import NOT_COUNTED, PictureSet
from train.data.scenes.originals import ClassTable, SceneFiles, class_table, scenes_from_files
from train.data.source import Log
from train.errors import UserError

__all__ = ["CLASSES", "fingerprint_cityscapes", "open_cityscapes", "split_cities"]

# The 19 classes of the benchmark, by their train ids, and the label id of each.
LABEL_IDS = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
CLASSES = tuple(LABEL_IDS)
HIGHEST_LABEL_ID = 33
TABLES = {
    # 255 stands for -1, the id of licence plates.
    "labelIds": class_table(
        {label: train for train, label in enumerate(LABEL_IDS.values())},
        uncounted=[*(set(range(HIGHEST_LABEL_ID + 1)) - set(LABEL_IDS.values())), NOT_COUNTED],
        said=f"label ids, 0 to {HIGHEST_LABEL_ID}, or 255",
    ),
    "labelTrainIds": class_table(
        {number: number for number in range(len(CLASSES))},
        uncounted=[NOT_COUNTED],
        said=f"train ids, 0 to {len(CLASSES) - 1}, or 255 for none",
    ),
}
LAYOUT = (
    "ROOT/leftImg8bit/train/CITY/NAME_leftImg8bit.png with its labels in "
    "ROOT/gtFine/train/CITY/NAME_gtFine_labelIds.png, and so for val"
)
# Both downloads may have been unpacked into folders of their own. The labels of the test cities are not published.
IMAGE = re.compile(r"(?:.*/)?leftImg8bit/(train|val)/([^/]+)/([^/]+)_leftImg8bit\.\w+", re.DOTALL)
LABELS = re.compile(r"(?:.*/)?gtFine/(train|val)/([^/]+)/([^/]+)_gtFine_(labelIds|labelTrainIds)\.\w+", re.DOTALL)
Scene = tuple[str, str, str]  # split as published, city, name


def fingerprint_cityscapes(root: Path) -> str:
    """Fingerprints the images and labels of a folder, or an archive.

    Raises:
      UserError: if the root is missing, empty or holds no images.
    """
    return fingerprint_images(root, what="images", layout=LAYOUT)


@contextlib.contextmanager
def open_cityscapes(root: Path, log: Log) -> Iterator[PictureSet]:
    """Opens the scenes below a root; they can be read while the context lasts.

    The published val split is test here, for the labels of the published test split are kept back; validation is cut
    from train, whole cities of it.

    Raises:
      UserError: for a root, an archive or a file that cannot be used; it names the culprit.
    """
    with open_image_files(root, what="images") as files:
        scenes, tables = _scenes(files, root)
        cities = split_cities(sorted({city for split, city, _ in scenes if split == "train"}), root=root)
        log(f"  validation cities: {', '.join(cities['validation'])}")
        splits = {
            split: [files for (published, city, _), files in scenes.items() if published == "train" and city in names]
            for split, names in cities.items()
        }
        splits["test"] = [files for (published, *_), files in scenes.items() if published == "val"]
        if not splits["test"]:
            raise UserError(f"data.root={root} holds no scenes of val, on which tests run; the layout is {LAYOUT}")
        yield scenes_from_files(splits, tables, CLASSES, root=root)


def split_cities(cities: list[str], *, root: Path) -> dict[str, list[str]]:
    """Holds out the last tenth of the train cities by name, at least one: of all 18, weimar and zurich.

    Raises:
      UserError: if there are fewer than two.
    """
    if len(cities) < 2:
        raise UserError(
            f"data.root={root} holds {len(cities)} train cities; give at least 2, one of them to validate; "
            f"the layout is {LAYOUT}"
        )
    num_train = len(cities) - max(1, round(len(cities) / 10))
    return {"train": cities[:num_train], "validation": cities[num_train:]}


def _scenes(files: list[ImageFile], root: Path) -> tuple[dict[Scene, SceneFiles], dict[ImageFile, ClassTable]]:
    """Finds each image's labels: label ids where there are some, train ids otherwise."""
    images: dict[Scene, ImageFile] = {}
    labels: dict[Scene, dict[str, ImageFile]] = {}
    for file in files:
        if found := IMAGE.fullmatch(str(file.path)):
            images[found[1], found[2], found[3]] = file
        elif found := LABELS.fullmatch(str(file.path)):
            labels.setdefault((found[1], found[2], found[3]), {})[found[4]] = file
    scenes, tables = {}, {}
    for scene in sorted(images):
        if scene not in labels:
            raise UserError(f"data.root={root}: '{images[scene].path}' has no labels in gtFine; the layout is {LAYOUT}")
        kind = next(kind for kind in TABLES if kind in labels[scene])
        scenes[scene] = SceneFiles(images[scene], labels[scene][kind])
        tables[labels[scene][kind]] = TABLES[kind]
    for scene in sorted(labels.keys() - images.keys()):
        file = next(iter(labels[scene].values()))
        raise UserError(f"data.root={root}: '{file.path}' has no image in leftImg8bit; the layout is {LAYOUT}")
    return scenes, tables
