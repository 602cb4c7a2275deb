"""Images in the folders of their classes, with folders of splits above them or
without."""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from .files import (
    KNOWN,
    Log,
    OriginalFile,
    check_no_split,
    check_one_name,
    log_alike,
    root_error,
)
from .media import (
    Media,
    check_none_vanishes,
    check_one_data_set,
    decode_in_order,
    open_media,
)
from .pictures import LabelledImages, PictureSet, levels

SPLIT_LAYOUT = (
    "ROOT/train/CLASS/0001.png, ROOT/test/CLASS/0001.png, and if there is one"
    " ROOT/validation/CLASS/0001.png"
)
CLASS_LAYOUT = "ROOT/CLASS/0001.png, two classes or more"

Folders = tuple[str, ...]
Filed = dict[str, list[OriginalFile]]  # the files of each class


@contextlib.contextmanager
def open_image_folder(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the images below a root; they can be read while the context lasts. Classes
    are the train split's, by name; images of a class are ordered by name.
    """
    with open_media(root, log) as media:
        splits = _find_classes(media, _below_split, SPLIT_LAYOUT, root, log)
        for split in ("train", "test"):
            if split not in splits:
                layout = f"the layout is {SPLIT_LAYOUT}"
                raise root_error(root, f"holds no {split} folder with images; {layout}")
        names = _class_names(splits, root, log)
        first = splits["train"][names[0]][0]
        decoded = next(decode_in_order([first], levels, root=root, what="image"))
        height, width, channels = decoded.shape
        shape = (height, width, channels)
        read = functools.partial(_read, shape=shape, root=root)
        labelled = {split: _labelled(splits[split], names, read) for split in splits}
        yield PictureSet(names, shape, labelled)


@contextlib.contextmanager
def open_class_folders(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the images in the folders of their classes, of any sizes, as one split."""
    with open_media(root, log) as media:
        splits = _find_classes(media, _of_train, CLASS_LAYOUT, root, log)
        names = _class_names(splits, root, log)

        def read(files: list[OriginalFile]) -> Iterator[np.ndarray]:
            for file in files:  # one by one, as sizes may differ
                yield from decode_in_order([file], levels, root=root, what="image")

        labelled = _labelled(splits["train"], names, read)
        yield PictureSet(names, (0, 0, 0), {"train": labelled})


def _find_classes(
    media: Media,
    place: Callable[[Folders], tuple[Folders, str, Folders] | None],
    layout: str,
    root: Path,
    log: Log,
) -> dict[str, Filed]:
    """Returns the files of each split and class. ``place`` divides the folders of a
    file into those above the splits, its split, and its class; None passes it over.
    """
    splits: dict[str, Filed] = defaultdict(lambda: defaultdict(list))
    passed_over: list[PurePosixPath] = []
    tops, stated, folders = set(), {}, set()
    for path, local in sorted(media.pictures):
        placed = place(path.parent.parts)
        if placed is None:
            passed_over.append(path)
            continue
        top, split, below = placed
        if len(below) != 1:
            raise root_error(
                root,
                f": image '{path}' is not in the folder of a class; the layout is"
                f" {layout}",
            )
        tops.add(PurePosixPath(*top))
        folders.add(path.parent)
        stated[split] = KNOWN[split.lower()]
        splits[stated[split]][below[0]].append(OriginalFile(path, local))
    check_one_data_set(map(str, tops), root)
    check_one_name(stated, root)
    check_none_vanishes(media, folders, root)
    for top in tops:
        beside = [path.parent for path in passed_over if path.is_relative_to(top)]
        unread = (str(folder.relative_to(top)) for folder in beside)
        check_no_split(unread, root, f"the layout is {layout}")
    if passed_over:
        log(
            f"  passing over {len(passed_over)} images outside of the splits, as"
            f" '{passed_over[0]}'"
        )
    return splits


def _below_split(folders: Folders) -> tuple[Folders, str, Folders] | None:
    """Divides folders at the first that is named after a split; a class may have such
    a name too."""
    for place, name in enumerate(folders):
        if name.lower() in KNOWN:
            return folders[:place], name, folders[place + 1 :]
    return None


def _of_train(folders: Folders) -> tuple[Folders, str, Folders]:
    return folders[:-1], "train", folders[-1:]


def _class_names(splits: dict[str, Filed], root: Path, log: Log) -> tuple[str, ...]:
    names = tuple(sorted(splits["train"]))
    log_alike(names, log)
    for split, classes in splits.items():
        for name in sorted(classes.keys() - names):
            where = f"'{classes[name][0].path}' is of class {name}"
            raise root_error(
                root,
                f": {where}, which train lacks; its classes are {', '.join(names)}",
            )
        missing = [name for name in names if name not in classes]
        if missing:
            log(f"  {split} holds no images of {', '.join(missing)}")
    return names


def _labelled(
    classes: Filed,
    names: tuple[str, ...],
    read: Callable[[list[OriginalFile]], Iterator[np.ndarray]],
) -> LabelledImages:
    """Returns the images of classes in their order; ``read`` decodes files."""
    each = [classes.get(name, []) for name in names]
    files = [file for some in each for file in some]
    labels = np.repeat(np.arange(len(names)), list(map(len, each)))
    return LabelledImages(
        labels, lambda numbers: read([files[number] for number in numbers])
    )


def _read(
    files: list[OriginalFile], *, shape: tuple[int, int, int], root: Path
) -> Iterator[np.ndarray]:
    """Reads images of one size; grey ones are broadcast to the channels of the
    first."""

    def convert(picture: Image.Image) -> np.ndarray:
        image = levels(picture)
        if image.shape[2] > shape[2]:
            raise ValueError(
                "it is in colour, others are grey; make all of them grey, or all"
                " coloured"
            )
        return np.broadcast_to(image, shape)

    size = (shape[1], shape[0])
    return decode_in_order(files, convert, root=root, what="image", size=size)
