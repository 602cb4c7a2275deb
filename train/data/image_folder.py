"""Images in folders named after their classes: {train,test}/CLASS/NAME.jpg, in a folder or a tar archive."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ..config.errors import UserError
from .files import Log, OriginalFile
from .pictures import (
    LabelledImages,
    PictureSet,
    check_one_data_set,
    decode_in_order,
    fingerprint_images,
    levels,
    open_image_files,
)
from .prepare import Source
from .splits import KNOWN, looks_like

LAYOUT = "ROOT/train/CLASS/0001.png, ROOT/test/CLASS/0001.png, and if there is one ROOT/validation/CLASS/0001.png"
# The first folder with the name of a split tells the split; a class may have such a name too.
SPLIT = re.compile(rf"(?:(.*?)/)??({'|'.join(KNOWN)})/(.*)", re.IGNORECASE | re.DOTALL)
Filed = dict[str, list[OriginalFile]]  # the files of each class


@contextlib.contextmanager
def open_image_folder(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the images below a root; they can be read while the context lasts.

    Classes are those of the train split, by name; images of a class are ordered by name.
    """
    with open_image_files(root, what="images") as files:
        splits = _splits(files, root, log)
        class_names = _class_names(splits, root, log)
        first = splits["train"][class_names[0]][0]
        height, width, channels = next(decode_in_order([first], _levels, root=root, what="image")).shape
        shape = (height, width, channels)
        read = functools.partial(_read, shape=shape, first=first, root=root)
        yield PictureSet(class_names, shape, {name: _labelled(splits[name], class_names, read) for name in splits})


def _splits(files: list[OriginalFile], root: Path, log: Log) -> dict[str, Filed]:
    splits: dict[str, Filed] = defaultdict(lambda: defaultdict(list))
    tops, passed_over = set(), 0
    for file in sorted(files, key=lambda file: file.path):
        match = SPLIT.fullmatch(str(file.path))
        if match is None:
            _check_no_split(file, root)
            passed_over += 1
            continue
        top, split, rest = match.groups()
        if rest.count("/") != 1:
            raise UserError(
                f"data.root={root}: image '{file.path}' does not lie in the folder of a class; the layout is {LAYOUT}"
            )
        tops.add(top or ".")
        splits[KNOWN[split.lower()]][rest.split("/")[0]].append(file)
    check_one_data_set(tops, root)
    if passed_over:
        log(f"  {passed_over} images lie in the folder of no split and are passed over")
    for split in ("train", "test"):
        if split not in splits:
            raise UserError(f"data.root={root} holds no {split} folder with images; the layout is {LAYOUT}")
    return splits


def _check_no_split(file: OriginalFile, root: Path) -> None:
    if split := looks_like(file.path.parent):
        raise UserError(
            f"data.root={root}: the folder of '{file.path}' looks like {split}, but not as the layout names it; the "
            f"layout is {LAYOUT}; rename the folder"
        )


def _class_names(splits: dict[str, Filed], root: Path, log: Log) -> tuple[str, ...]:
    names = tuple(sorted(splits["train"]))
    if len(names) == 1:
        raise UserError(f"data.root={root} holds images of one class alone ({names[0]}); give at least two")
    for split, classes in splits.items():
        for name, files in classes.items():
            if name not in names:
                raise UserError(
                    f"data.root={root}: '{files[0].path}' is of class {name}, of which train holds no images; "
                    f"its classes are {', '.join(names)}"
                )
        if missing := [name for name in names if name not in classes]:
            log(f"  {split} holds no images of {', '.join(missing)}")
    return names


def _labelled(classes: Filed, names: tuple[str, ...], read: functools.partial[Iterator[np.ndarray]]) -> LabelledImages:
    files = [file for name in names for file in classes.get(name, [])]
    labels = np.repeat(np.arange(len(names)), [len(classes.get(name, [])) for name in names])
    return LabelledImages(labels, lambda numbers: read([files[number] for number in numbers]))


def _read(
    files: list[OriginalFile], *, shape: tuple[int, int, int], first: OriginalFile, root: Path
) -> Iterator[np.ndarray]:
    """Reads images and brings them to the channels of the first; sizes must agree."""
    for file, image in zip(files, decode_in_order(files, _levels, root=root, what="image"), strict=True):
        if image.shape[:2] != shape[:2]:
            raise UserError(
                f"data.root={root}: image '{file.path}' is {image.shape[1]}x{image.shape[0]}, but '{first.path}' is "
                f"{shape[1]}x{shape[0]}; bring all images to one size"
            )
        if image.shape[2] > shape[2]:
            raise UserError(
                f"data.root={root}: image '{file.path}' is in colour, but '{first.path}' is grey; make all of them "
                "grey, or all of them coloured"
            )
        yield np.broadcast_to(image, shape)


def _levels(_: OriginalFile, picture: Image.Image) -> np.ndarray:
    return levels(picture)


fingerprint = functools.partial(fingerprint_images, what="images", layout=LAYOUT)
SOURCE = Source(fingerprint, open_image_folder, "the folder or tar archive of images")
