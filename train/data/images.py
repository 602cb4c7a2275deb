"""Labelled images, and scenes with maps of classes: prepared once: folders of
classes, CIFAR-10, CamVid."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ..config.data import ImageConfig, SceneConfig
from ..config.errors import UserError, option_text
from ..system.reading import read_regular
from . import generated
from .files import (
    KNOWN,
    SPLITS,
    Log,
    OriginalFile,
    Published,
    check_no_split,
    check_one_name,
    check_share,
    log_alike,
    root_error,
    three_splits,
)
from .media import (
    Media,
    check_none_vanishes,
    check_one_data_set,
    decode_in_order,
    fingerprint_media,
    open_media,
)
from .pictures import (
    NOT_COUNTED,
    PICTURES,
    Examples,
    LabelledImages,
    PictureData,
    PictureSet,
    levels,
    picture_records,
)
from .prepare import Source, origin, prepare_from
from .reader import open_prepared
from .records import Originals

# Images in folders named after their classes.
LAYOUT = (
    "ROOT/train/CLASS/0001.png, ROOT/test/CLASS/0001.png, and if there is one"
    " ROOT/validation/CLASS/0001.png"
)
# The first folder named after a split is the split's; a class may have such a name too.
SPLIT = re.compile(rf"(?:(.*?)/)??({'|'.join(KNOWN)})/(.*)", re.IGNORECASE | re.DOTALL)
Filed = dict[str, list[OriginalFile]]  # the files of each class
Named = dict[str, OriginalFile]  # files by their names without suffixes

# CIFAR-10: six files of 10,000 records, each a class and 32 x 32 x 3 pixels, channels
# first.
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PARTS = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
FILES = (*PARTS["train"], *PARTS["test"])
ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
ADDRESS = "https://www.cs.toronto.edu/~kriz/"
WANTED = (
    f"{ARCHIVE} from {ADDRESS}, or the folder it unpacks to, the binary version"
    " (pickles are never loaded)"
)
CIFAR10 = Published(FILES, (".", FOLDER), (ARCHIVE,), WANTED)
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
SCENE = re.compile(rf"({'|'.join(KNOWN)})(annot)?", re.IGNORECASE)


def load(config: ImageConfig | SceneConfig, *, log: Log = print) -> PictureData:
    """Opens the images or scenes of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), PictureData)


def prepare(config: ImageConfig | SceneConfig, *, log: Log = print) -> Path:
    """Prepares the images or scenes of a configuration unless they are there, and
    returns their folder."""
    if isinstance(config, SceneConfig):
        if config.reduction < 1:
            raise UserError(
                f"{option_text('data.reduction')} must be at least 1, got"
                f" {config.reduction}"
            )
        return prepare_from(
            SCENES,
            config,
            PICTURES,
            scene_records,
            options=[str(config.reduction)],
            log=log,
        )
    check_share(config.validation_share)
    # Records depend on the share, except for digits, where it costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(
        IMAGES, config, PICTURES, _image_records, options=options, log=log
    )


def split_images(
    images: PictureSet[LabelledImages], share: float
) -> dict[str, tuple[LabelledImages, np.ndarray]]:
    """Returns the images of each split and their numbers; validation is cut from
    train if missing."""
    labels = {split: each.labels for split, each in images.splits.items()}
    places = three_splits(labels, share, "images", "folder", images.class_names)
    return {
        split: (images.splits[place], numbers)
        for split, (place, numbers) in places.items()
    }


def _image_records(
    images: PictureSet[LabelledImages], config: ImageConfig, log: Log
) -> Originals:
    chosen = split_images(images, config.validation_share)
    splits = {
        split: Examples(
            len(few),
            zip(pictures.read(few), pictures.labels[few].tolist(), strict=True),
        )
        for split, (pictures, few) in chosen.items()
    }
    return picture_records(
        PictureSet(images.class_names, images.shape, splits), origin(config), log
    )


@contextlib.contextmanager
def open_image_folder(root: Path, log: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Opens the images below a root; they can be read while the context lasts. Classes
    are the train split's, by name; images of a class are ordered by name.
    """
    with open_media(root, log) as media:
        splits = _splits(media, root, log)
        class_names = _class_names(splits, root, log)
        first = splits["train"][class_names[0]][0]
        height, width, channels = next(
            decode_in_order([first], levels, root=root, what="image")
        ).shape
        read = functools.partial(
            _read, shape=(shape := (height, width, channels)), root=root
        )
        yield PictureSet(
            class_names,
            shape,
            {name: labelled(splits[name], class_names, read) for name in splits},
        )


def _splits(media: Media, root: Path, log: Log) -> dict[str, Filed]:
    splits: dict[str, Filed] = defaultdict(lambda: defaultdict(list))
    tops, passed_over = set(), []
    stated: dict[str, str] = {}
    for file in sorted(media.pictures, key=lambda file: file.path):
        match = SPLIT.fullmatch(str(file.path))
        if match is None:
            passed_over.append(file.path)
            continue
        top, split, rest = match.groups()
        if rest.count("/") != 1:
            raise root_error(
                root,
                f": image '{file.path}' is not in the folder of a class; the layout is"
                f" {LAYOUT}",
            )
        tops.add(top or ".")
        stated[split] = KNOWN[split.lower()]
        splits[stated[split]][rest.split("/")[0]].append(file)
    check_one_data_set(tops, root)
    check_one_name(stated, root)
    for top in tops:
        beside = [path.parent for path in passed_over if path.is_relative_to(top)]
        unread = (str(folder.relative_to(top)) for folder in beside)
        check_no_split(unread, root, f"the layout is {LAYOUT}")
    if passed_over:
        log(
            f"  passing over {len(passed_over)} images outside of the splits, as"
            f" '{passed_over[0]}'"
        )
    check_none_vanishes(media, functools.partial(_unread_class, splits, tops), root)
    for split in ("train", "test"):
        if not splits[split]:
            but = f" but '{passed_over[0]}'" if passed_over else ""
            raise root_error(
                root,
                f"holds no {split} folder with images{but}; the layout is {LAYOUT}",
            )
    return {split: classes for split, classes in splits.items() if classes}


def _unread_class(
    splits: dict[str, Filed], tops: set[str], folder: PurePosixPath
) -> str | None:
    if (match := SPLIT.fullmatch(f"{folder}/")) is None or (
        match[1] or "."
    ) not in tops:
        return None
    split, name = KNOWN[match[2].lower()], match[3].partition("/")[0]
    if not name:
        return None if splits[split] else f"split {match[2]!r}"
    return None if name in splits[split] else f"class {name!r} of {split}"


def _class_names(splits: dict[str, Filed], root: Path, log: Log) -> tuple[str, ...]:
    names = tuple(sorted(splits["train"]))
    log_alike(names, log)
    for split, classes in splits.items():
        for name, files in classes.items():
            if name not in names:
                where = f"'{files[0].path}' is of class {name}"
                raise root_error(
                    root,
                    f": {where}, which train lacks; its classes are {', '.join(names)}",
                )
        if missing := [name for name in names if name not in classes]:
            log(f"  {split} holds no images of {', '.join(missing)}")
    return names


def labelled(
    classes: Filed,
    names: tuple[str, ...],
    read: Callable[[list[OriginalFile]], Iterator[np.ndarray]],
) -> LabelledImages:
    """Returns the images of classes in their order; ``read`` decodes files."""
    files = [file for name in names for file in classes.get(name, [])]
    labels = np.repeat(
        np.arange(len(names)), [len(classes.get(name, [])) for name in names]
    )
    return LabelledImages(
        labels, lambda numbers: read([files[number] for number in numbers])
    )


def _read(
    files: list[OriginalFile], *, shape: tuple[int, int, int], root: Path
) -> Iterator[np.ndarray]:
    """Reads images of one size; grey ones are broadcast to the channels of the
    first."""

    def convert(picture: Image.Image) -> np.ndarray:
        if (image := levels(picture)).shape[2] > shape[2]:
            raise ValueError(
                "it is in colour, others are grey; make all of them grey, or all"
                " coloured"
            )
        return np.broadcast_to(image, shape)

    return decode_in_order(
        files, convert, root=root, what="image", size=(shape[1], shape[0])
    )


@contextlib.contextmanager
def open_cifar10(root: Path, _: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Reads all images into memory, 184 MB."""
    with CIFAR10.open(root) as files:
        contents = {
            name: read_regular(file.local, where=str(file.local))
            for name, file in files.items()
        }
    records = {
        name: _records(
            contents[name], where=f"{option_text('data.root', root)}: {name}"
        )
        for name in FILES
    }
    splits = {
        split: _images([records[name] for name in names])
        for split, names in PARTS.items()
    }
    yield PictureSet(CLASSES, SHAPE, splits)


def _records(content: bytes, *, where: str) -> np.ndarray:
    if len(content) != RECORDS * RECORD_BYTES:
        expected = RECORDS * RECORD_BYTES
        raise UserError(
            f"{where} has {len(content):,} bytes instead of {expected:,}; copy it again"
            f" from {ADDRESS}"
        )
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD_BYTES)
    if (largest := records[:, 0].max()) >= len(CLASSES):
        raise UserError(
            f"{where} has the class {largest}; classes are 0 to {len(CLASSES) - 1};"
            " copy the file again"
        )
    return records


def _images(files: list[np.ndarray]) -> LabelledImages:
    def read(numbers: np.ndarray) -> Iterator[np.ndarray]:
        for number in numbers:
            pixels = files[number // RECORDS][number % RECORDS, 1:]
            yield pixels.reshape(SHAPE[2], *SHAPE[:2]).transpose(1, 2, 0)

    return LabelledImages(
        np.concatenate([records[:, 0] for records in files]).astype(np.int64), read
    )


def scene_records(
    scenes: PictureSet[Examples], config: SceneConfig, log: Log
) -> Originals:
    """Returns the records of scenes, reduced in size."""
    height, width, channels = scenes.shape
    factor = config.reduction
    if height % factor or width % factor:
        raise UserError(
            f"{option_text('data.reduction', factor)} must divide the size of the"
            f" images, {width}x{height}"
        )
    size = (height // factor, width // factor)
    splits = {
        split: Examples(each.num_examples, _reduce(each, factor))
        for split, each in scenes.splits.items()
    }
    return picture_records(
        PictureSet(scenes.class_names, (*size, channels), splits, size),
        origin(config),
        log,
    )


@contextlib.contextmanager
def open_camvid(root: Path, log: Log) -> Iterator[PictureSet[Examples]]:
    """Opens the scenes below a root, all of the size of the first; they can be read
    while the context lasts."""
    with open_media(root, log) as media:
        folders = _scene_folders(media, root, log)
        splits = {split: _scenes_of(folders, split, root) for split in SPLITS}
        decoded = functools.partial(decode_in_order, root=root, what="image")
        height, width, _ = next(decoded(splits["train"][0][:1], _colours)).shape
        read = functools.partial(decoded, size=(width, height))
        pictures = {
            split: Examples(
                len(images),
                zip(read(images, _colours), read(maps, _classes), strict=True),
            )
            for split, (images, maps) in splits.items()
        }
        yield PictureSet(SCENE_CLASSES, (height, width, 3), pictures, (height, width))


def _reduce(pictures: Examples, factor: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    middle = factor // 2
    for image, labels in pictures.examples:
        smaller = (
            np.asarray(Image.fromarray(image).reduce(factor)) if factor > 1 else image
        )
        yield smaller, np.asarray(labels)[middle::factor, middle::factor]


def _scene_folders(media: Media, root: Path, log: Log) -> dict[str, Named]:
    """Returns the images of each split and, as {split}annot, the maps of classes."""
    folders: dict[str, Named] = defaultdict(dict)
    scenes = [
        (file, match)
        for file in sorted(media.pictures, key=lambda file: file.path)
        if (match := SCENE.fullmatch(file.path.parent.name)) is not None
    ]
    check_one_data_set({str(file.path.parents[1]) for file, _ in scenes}, root)
    check_one_name({match[1]: KNOWN[match[1].lower()] for _, match in scenes}, root)
    for file, match in scenes:
        part = f"{KNOWN[match[1].lower()]}{match[2] or ''}".lower()
        other = folders[part].setdefault(file.path.stem, file)
        if other is not file:
            raise root_error(
                root,
                f"holds {other.path} and {file.path}, two of one name; keep one",
            )
    if unread := len(media.pictures) - len(scenes):
        log(f"  passing over {unread} images outside of the splits")
    return folders


def _scenes_of(
    folders: Mapping[str, Named], split: str, root: Path
) -> tuple[list[OriginalFile], list[OriginalFile]]:
    """Returns the images of a split and their maps of classes, by name."""
    images, maps = folders[split], folders[f"{split}annot"]
    if not images:
        raise root_error(
            root, f"holds no {split} folder with images; the layout is {SCENE_LAYOUT}"
        )
    for name in sorted(images.keys() ^ maps.keys()):
        alone = (images | maps)[name].path
        raise root_error(
            root, f": '{alone}' has no counterpart; the layout is {SCENE_LAYOUT}"
        )
    return [images[name] for name in sorted(images)], [
        maps[name] for name in sorted(images)
    ]


def _colours(picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _classes(picture: Image.Image) -> np.ndarray:
    # whose numbers are read as stored: no palette is looked up
    if picture.mode not in ("L", "P"):
        raise ValueError(
            f"it must hold one number of 8 bits a pixel, but its mode is {picture.mode}"
        )
    if (largest := (numbers := np.asarray(picture)).max()) > UNLABELLED:
        raise ValueError(
            f"it has the label {largest}; labels are 0 to {UNLABELLED - 1}, unlabelled"
            f" {UNLABELLED}"
        )
    return np.where(numbers == UNLABELLED, np.uint8(NOT_COUNTED), numbers)


IMAGES: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": generated.DIGITS,
    "cifar10": Source(CIFAR10.fingerprint, open_cifar10, WANTED),
    "image_folder": Source(
        fingerprint_media,
        open_image_folder,
        f"the folder or tar archive of images, {LAYOUT}",
    ),
}
SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": generated.SHAPES,
    "camvid": Source(
        fingerprint_media, open_camvid, f"the folder or tar archive of {SCENE_LAYOUT}"
    ),
}
