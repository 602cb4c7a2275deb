"""Images in the folders of their classes, with folders of splits above them or
without; scenes in the folders of Cityscapes."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ..config.errors import UserError, option_text
from .files import (
    KNOWN,
    Log,
    OriginalFile,
    check_no_split,
    check_one_name,
    class_name,
    log_alike,
)
from .pictures import (
    NOT_COUNTED,
    Examples,
    LabelledImages,
    Media,
    PictureSet,
    check_none_vanishes,
    check_one_data_set,
    decode_in_order,
    levels,
    open_media,
    scene_set,
)

SPLIT_LAYOUT = (
    "ROOT/train/CLASS/0001.png, and if there are any ROOT/test/CLASS/0001.png and"
    " ROOT/validation/CLASS/0001.png"
)
CLASS_LAYOUT = "ROOT/CLASS/0001.png, two classes or more"
LAYOUTS = f"{CLASS_LAYOUT}, or {SPLIT_LAYOUT}"

Folders = tuple[str, ...]
# of the folders of a file: those above the splits, the split, and those below
Place = Callable[[Folders], tuple[Folders, str, Folders] | None]
Filed = dict[str, list[OriginalFile]]  # the files of each class
# Cityscapes.
CITYSCAPES_ADDRESS = "https://www.cityscapes-dataset.com"
CITYSCAPES_LAYOUT = (
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
LARGEST, PLATE = 33, 255  # ids. A licence plate has -1, which is 255 in 8 bits
CLASS_OF_ID = np.full(256, NOT_COUNTED, np.uint8)
CLASS_OF_ID[list(IDS)] = np.arange(len(IDS))
Pair = tuple[OriginalFile, OriginalFile]  # a scene and its map
Key = tuple[str, ...]  # the split, city and name of a scene


@contextlib.contextmanager
def open_image_folder(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the images below a root, of one size. They can be read while the context
    lasts. Classes are the train split's, by name. Images of a class are ordered by
    name.
    """
    with open_media(root, log) as media:
        splits = _sort_classes(media, log)
        first = min(splits["train"].values())[:1]
        height, width, channels = next(decode_in_order(first, levels)).shape

        def convert(picture: Image.Image) -> np.ndarray:
            image = levels(picture)
            if image.shape[2] > channels:
                raise ValueError("it is in colour, others are grey; make all alike")
            return np.broadcast_to(image, (height, width, channels))

        read = functools.partial(
            decode_in_order,
            convert=convert,
            size=(width, height),
            mend=f"bring all to one, or give {option_text('data.size')}",
        )
        yield _labelled(splits, (height, width, channels), read, log)


@contextlib.contextmanager
def open_class_folders(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the same, of any sizes. The shape has only the number of channels, of the
    first image of each class."""

    def read(files: list[OriginalFile]) -> Iterator[np.ndarray]:
        for file in files:  # one by one, as sizes may differ
            yield from decode_in_order([file], levels)

    with open_media(root, log) as media:
        splits = _sort_classes(media, log)
        log("  images of other shapes are resized to squares of --data.size")
        channels = max(
            image.shape[2]
            for image in read([files[0] for files in splits["train"].values()])
        )
        yield _labelled(splits, (0, 0, channels), read, log)


def _sort_classes(media: Media, log: Log) -> dict[str, Filed]:
    """Returns the files of each split and class. A root without folders of splits is
    one split, train."""
    places = [_below_split(file.path.parent.parts) for file in media.pictures]
    # A class may be named after a split: folders of splits have classes below.
    divided = [place is not None and bool(place[2]) for place in places]
    if any(divided) or None not in places:
        splits = sort_pictures(media, _below_split, LAYOUTS, log)
    else:
        splits = sort_pictures(media, _of_train, LAYOUTS, log)
    if "train" not in splits:
        raise UserError(f"holds no train folder with images; the layout is {LAYOUTS}")
    return splits


def sort_pictures(
    media: Media, place: Place, layout: str, log: Log
) -> dict[str, Filed]:
    """Returns the files of each split and class, by name. ``place`` divides the folders
    of a file. None passes it over."""
    splits: dict[str, Filed] = defaultdict(lambda: defaultdict(list))
    passed_over: list[PurePosixPath] = []
    tops: set[PurePosixPath] = set()
    stated: dict[str, str] = {}
    folders: set[PurePosixPath] = set()
    for file in sorted(media.pictures):
        folder = file.path.parent
        placed = place(folder.parts)
        if placed is None:
            passed_over.append(file.path)
            continue
        top, name, below = placed
        if len(below) != 1:
            raise UserError(
                f"image '{file.path}' is not in the folder of a class; the layout is"
                f" {layout}"
            )
        tops.add(PurePosixPath(*top))
        folders.add(folder)
        stated[name] = KNOWN[name.lower()]
        splits[stated[name]][class_name(below[0])].append(file)
    check_one_data_set(tops)
    check_one_name(stated)
    check_none_vanishes(media, folders)
    for top in tops:
        beside = [path.parent for path in passed_over if path.is_relative_to(top)]
        unread = (str(folder.relative_to(top)) for folder in beside)
        check_no_split(unread, f"the layout is {layout}")
    if passed_over:
        log(
            f"  passing over {len(passed_over)} images outside of the splits, as"
            f" '{passed_over[0]}'"
        )
    return splits


def _below_split(folders: Folders) -> tuple[Folders, str, Folders] | None:
    """Divides folders at the first that is named after a split. A class may have such
    a name too."""
    for place, name in enumerate(folders):
        if name.lower() in KNOWN:
            return folders[:place], name, folders[place + 1 :]
    return None


def _of_train(folders: Folders) -> tuple[Folders, str, Folders]:
    return folders[:-1], "train", folders[-1:]


def _labelled(
    splits: dict[str, Filed],
    shape: tuple[int, int, int],
    read: Callable[[list[OriginalFile]], Iterator[np.ndarray]],
    log: Log,
) -> PictureSet[LabelledImages]:
    """Returns the images of classes, train's, in their order. ``read`` decodes
    files."""
    names = tuple(sorted(splits["train"]))
    log_alike(names, log)
    labelled = {}
    for split, classes in splits.items():
        missing = ", ".join(name for name in names if name not in classes)
        if missing:
            log(f"  {split} holds no images of {missing}")
        files: list[OriginalFile] = []
        labels: list[int] = []
        for name, some in sorted(classes.items()):
            if name not in names:
                raise UserError(
                    f"'{some[0].path}' is of class {name}, which train lacks; its"
                    f" classes are {', '.join(names)}"
                )
            files += some
            labels += [names.index(name)] * len(some)
        labelled[split] = LabelledImages(np.array(labels), _reading(files, read))
    return PictureSet(names, shape, labelled)


def _reading(
    files: list[OriginalFile],
    read: Callable[[list[OriginalFile]], Iterator[np.ndarray]],
) -> Callable[[np.ndarray], Iterator[np.ndarray]]:
    return lambda numbers: read([files[number] for number in numbers])


@contextlib.contextmanager
def open_cityscapes(root: Path, log: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root, all of the size of the first.

    The labels of Cityscapes' test split are not published: val is the test split, as
    in the papers. The scenes of the last city of train by name validate.
    """
    with open_media(root, log) as media:
        splits = _splits(media)
        yield scene_set(tuple(IDS.values()), splits, _classes)


def _splits(media: Media) -> dict[str, list[Pair]]:
    """Returns the scenes of each split with their maps, by city and name."""
    scenes = _matches(media, SCENE)
    maps = _matches(media, LABELS)
    for key in sorted(scenes.keys() ^ maps.keys()):
        alone = (scenes | maps)[key].path
        raise UserError(
            f"'{alone}' has no counterpart; the layout is {CITYSCAPES_LAYOUT}"
        )

    cities = sorted({city for split, city, _ in scenes if split == "train"})
    if len(cities) < 2 or all(split == "train" for split, *_ in scenes):
        raise UserError(
            "holds no scenes of val and of two cities of train, the last of which"
            f" validates; the layout is {CITYSCAPES_LAYOUT}"
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


def _classes(picture: Image.Image) -> np.ndarray:
    ids = np.asarray(picture)
    if picture.mode != "L":
        raise ValueError(f"it must hold label ids of 8 bits, got {picture.mode}")
    unknown = ids[(ids > LARGEST) & (ids != PLATE)]
    if unknown.size:
        raise ValueError(f"it has the label id {unknown.max()}; ids are 0 to {LARGEST}")
    return CLASS_OF_ID[ids]
