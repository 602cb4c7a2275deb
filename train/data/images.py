"""Labelled images, and scenes with maps of classes, prepared once: folders of
classes, CIFAR-10, CamVid."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from ..config.data import ImageConfig, SceneConfig
from ..config.errors import UserError, option_text
from ..system.reading import read_regular
from . import cityscapes, generated
from .class_folders import SPLIT_LAYOUT, open_image_folder
from .files import (
    KNOWN,
    SPLITS,
    Log,
    OriginalFile,
    Published,
    check_one_name,
    check_share,
    root_error,
    three_splits,
)
from .media import (
    Media,
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
from .prepare import Originals, Source, origin, prepare_from
from .reader import open_prepared

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
    check_one_data_set((str(file.path.parents[1]) for file, _ in scenes), root)
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
        f"the folder or tar archive of images, {SPLIT_LAYOUT}",
    ),
}
SCENES: dict[str, Source[PictureSet[Examples]]] = {
    "shapes": generated.SHAPES,
    "camvid": Source(
        fingerprint_media, open_camvid, f"the folder or tar archive of {SCENE_LAYOUT}"
    ),
    "cityscapes": Source(
        fingerprint_media,
        cityscapes.open_cityscapes,
        f"the folder or archive of {cityscapes.LAYOUT}",
    ),
}
