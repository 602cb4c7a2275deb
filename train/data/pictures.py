"""Pictures of images, scenes and frames, and videos: found in folders and archives,
decoded in place, prepared with labels, read in batches."""

import contextlib
import functools
import struct
import warnings
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageOps

from ..config.errors import UserError
from ..system.files import open_regular
from .files import (
    KNOWN,
    SPLITS,
    Log,
    OriginalFile,
    is_visible,
    original_files,
    three_splits,
)
from .prepared import Dataset, Kind, Originals, Record, Records, joined

# a folder of only such files is neither a class nor a clip
NOTES = (".txt", ".md", ".csv", ".json")
# A file with another name is a picture if it begins as one.
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff"),
    *(".bmp", ".webp", ".ppm", ".pgm", ".jp2"),
)
# Formats of Pillow that have a mark at their start, and start no other program.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "JPEG2000")
# of more pixels than Pillow trusts
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, *BOMBS)

T = TypeVar("T")
PICTURES = Kind("pictures", "1.1.0")
NOT_COUNTED = 255  # in a map of classes: a pixel without a class
# of arrays: grey, or red, green and blue, each with transparency or without
CHANNELS = (1, 2, 3, 4)
S = TypeVar("S")
# each image with its class or map of classes
Examples = Iterable[tuple[np.ndarray, Any]]


class Media(NamedTuple):
    """Files by their contents, in no order: pictures, videos where they are wanted,
    and the rest."""

    pictures: list[OriginalFile]
    videos: list[OriginalFile]
    others: list[OriginalFile]  # which are passed over
    empty: list[PurePosixPath]  # folders


@contextlib.contextmanager
def open_media(
    root: Path, log: Log, *, is_video: Callable[[Path], bool] = lambda _: False
) -> Iterator[Media]:
    """Finds the pictures and videos in a folder or an archive. They can be read while
    the context lasts. The suffix decides, or else the contents. The log has the number
    of files that are neither.
    """
    with original_files(root, is_visible) as (files, empty):
        media = Media([], [], [], empty)
        for file in files:
            if is_picture(file.local):
                media.pictures.append(file)
            elif is_video(file.local):
                media.videos.append(file)
            else:
                media.others.append(file)
        others = f"{len(media.others)} file(s) of other kinds"
        if not (media.pictures or media.videos):
            raise UserError(
                f"holds no pictures or videos that can be read, but {others}; give a"
                " folder or archive of them"
            )
        if media.others:
            log(f"  passing over {others}, as '{media.others[0].path}'")
        yield media


def is_picture(file: Path) -> bool:
    """Returns whether a file is named as a picture or, under any other name, begins
    as one."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        return True
    try:
        with open_regular(file, where=str(file)) as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(content, formats=FORMATS) as picture:
                # a GIF that moves is a video
                return picture.format != "GIF" or getattr(picture, "n_frames", 1) == 1
    except IMAGE_ERRORS as error:
        return isinstance(error, BOMBS)


def check_none_vanishes(media: Media, units: Collection[PurePosixPath]) -> None:
    """Checks that every class or clip has a file that is read, given those that have
    one. A folder beside them is one too, unless it holds only notes. One that is named
    after a split is a split.
    """
    beside = {unit.parent for unit in units}
    holding = {above for unit in units for above in unit.parents}
    unread = [*media.empty]
    unread += [
        file.path.parent
        for file in media.others
        if file.path.suffix.lower() not in NOTES
    ]
    for path in unread:
        for folder in (path, *path.parents):
            is_first = folder.parent in holding and folder not in holding
            is_wanted = folder.parent in beside or folder.name.lower() in KNOWN
            if is_first and is_wanted and folder not in units:
                raise UserError(
                    f"'{folder}' has no file that can be read; give it one, or remove"
                    " the folder"
                )


def check_one_data_set(tops: Iterable[PurePosixPath]) -> None:
    """Checks that the layout begins in one folder only below the root."""
    names = sorted({str(top) for top in tops})
    if len(names) > 1:
        raise UserError(
            f"holds several data sets ({', '.join(names)}); give one of them"
        )


def decode_in_order(
    files: Iterable[OriginalFile],
    convert: Callable[[Image.Image], T],
    *,
    what: str = "image",
    size: tuple[int, int] | None = None,
    mend: str = "bring all to one",
) -> Iterator[T]:
    """Decodes files of one size (width, height), or the first one's, in order.
    Errors, of ``convert`` too, name it."""
    for file in files:
        try:
            with open_picture(file.local) as picture:
                size = size or picture.size
                if picture.size != size:
                    raise ValueError(f"its size is {picture.size}, not {size}; {mend}")
                converted = convert(picture)
        except IMAGE_ERRORS as error:
            raise UserError(
                f"{what} '{file.path}' cannot be read as an image ({error}); replace it"
            ) from error
        yield converted


def check_depth(picture: Image.Image) -> None:
    """Checks that pixels have at most 8 bits."""
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {picture.mode})")


def brought_to(picture: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns a picture as uint8 of a shape (height, width, channels): grey for one
    channel, else in colour."""
    check_depth(picture)
    height, width, channels = shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(shape)


@contextlib.contextmanager
def open_picture(file: Path) -> Iterator[Image.Image]:
    """Opens one picture, turned upright as its EXIF orientation says."""
    with open_regular(file, where=str(file)) as content, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(content, formats=FORMATS) as picture:
            # Pages of a TIFF, frames of an animated PNG. Other pictures in a camera's
            # JPEG (MPO) are views of one.
            pages = getattr(picture, "n_frames", 1)
            if pages > 1 and picture.format not in ("JPEG", "MPO"):
                raise ValueError(f"it holds {pages} pictures; save each by itself")
            picture.load()
            # damaged EXIF is ignored, as by viewers
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ImageOps.exif_transpose(picture, in_place=True)
            yield picture


class LabelledImages(NamedTuple):
    """Images of a split: their classes, and a function that reads images of
    ascending numbers in turn."""

    labels: np.ndarray
    read: Callable[[np.ndarray], Iterable[np.ndarray]]


class PictureSet(NamedTuple, Generic[S]):
    """Pictures of a source: uint8 images of one shape (height, width, channels), and
    their splits. The ``label_shape`` is () where a label is the number of a class,
    (height, width) where it is a map of them, uint8.
    """

    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    splits: Mapping[str, S]
    label_shape: tuple[int, ...] = ()


class PictureBatch(NamedTuple):
    """Images, uint8 (batch, height, width, channels), and their labels. Labels are
    classes, int32 (batch,), or of each pixel, uint8 (batch, height, width), where 255
    does not count.
    """

    images: np.ndarray
    labels: np.ndarray


class ImageSpec(NamedTuple):
    """Properties of images that a model needs."""

    shape: tuple[int, int, int]  # (height, width, channels)
    class_names: tuple[str, ...]  # in the order of the labels
    mean: np.ndarray  # of each channel over the train split, in [0, 1], float32
    # standard deviation of each channel, likewise, at least one grey level
    std: np.ndarray

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return fields_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote. Unknown fields are a TypeError."""
        shape, names, mean, std = cls(**values)
        height, width, channels = shape
        moments = np.array([mean, std], np.float32)
        return cls((height, width, channels), tuple(names), *moments)


class PictureData(Dataset[PictureBatch]):
    """Prepared pictures: their shape, names of classes, and mean and standard deviation
    of each channel, in [0, 1]. The statistics are of the train split. The deviation of
    a channel that never changes counts as one grey level.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        spec = self.spec_of(ImageSpec)
        self.spec = spec._replace(std=np.maximum(spec.std, np.float32(1 / 255)))
        self.shape, self.class_names, self.mean, self.std = self.spec

    def _read(self, records: Records, numbers: np.ndarray) -> PictureBatch:
        images, labels = records.read(numbers, "image", "label")
        pixels = joined(images, *self.shape)
        if isinstance(labels[0], int):
            return PictureBatch(pixels, np.array(labels, np.int32))
        return PictureBatch(pixels, joined(labels, *self.shape[:2]))


def fields_json(spec: Any) -> dict[str, Any]:
    """Returns the fields of a named tuple of numbers, texts and arrays as JSON
    values."""
    return {name: np.asarray(value).tolist() for name, value in spec._asdict().items()}


def levels(picture: Image.Image) -> np.ndarray:
    """Grey levels of a picture, uint8 (height, width, 1), or colours (height, width,
    3). Transparency is dropped."""
    check_depth(picture)
    if picture.mode in ("1", "L", "LA"):
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))


def scene_set(
    class_names: tuple[str, ...],
    splits: Mapping[str, Sequence[tuple[OriginalFile, OriginalFile]]],
    classes: Callable[[Image.Image], np.ndarray],
) -> PictureSet[Examples]:
    """Returns the scenes of splits with their maps, which ``classes`` reads, all of the
    size of the first."""
    first, _ = splits["train"][0]
    height, width, _ = next(decode_in_order([first], _colours)).shape
    read = functools.partial(decode_in_order, size=(width, height))
    pictures = {}
    for split, pairs in splits.items():
        scenes, maps = zip(*pairs, strict=True)
        both = read(scenes, _colours), read(maps, classes)
        pictures[split] = zip(*both, strict=True)
    return PictureSet(class_names, (height, width, 3), pictures, (height, width))


def _colours(picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def picture_of(
    source: Path | str | np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """Returns a picture, a file or a uint8 array, in a size and number of channels."""
    try:
        if isinstance(source, Path | str):
            with open_picture(Path(source)) as opened:
                return brought_to(opened, shape)
        pixels = np.asarray(source)
        if pixels.dtype != np.uint8:
            raise ValueError(f"its pixels are {pixels.dtype}, not uint8")
        if pixels.ndim not in (2, 3) or not pixels.size:
            raise ValueError(f"its shape is {pixels.shape}")
        pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
        return brought_to(Image.fromarray(pixels), shape)
    except (*IMAGE_ERRORS, TypeError) as error:
        name = source if isinstance(source, Path | str) else type(source).__name__
        raise UserError(
            f"{name} cannot be read as an image ({error}); give a PNG or JPEG, or uint8"
            " (height, width) or (height, width, channels); several as a list"
        ) from error


def split_images(
    images: PictureSet[LabelledImages], share: float, *, equal: bool = False
) -> dict[str, Examples]:
    """Returns the images of each split, read when they are iterated over. Missing
    splits are cut from train, see `three_splits`."""
    labels = {split: each.labels for split, each in images.splits.items()}
    chosen = {}
    for split, (place, numbers) in three_splits(labels, share, equal=equal).items():
        pictures = images.splits[place].read(numbers)
        chosen[split] = zip(pictures, labels[place][numbers].tolist(), strict=True)
    return chosen


def brought_together(
    images: PictureSet[Any], splits: Mapping[str, Examples], shape: tuple[int, int, int]
) -> PictureSet[Examples]:
    """Returns the images of splits in one shape, when they are iterated over."""
    resized = {}
    for split, pairs in splits.items():
        resized[split] = ((picture_of(image, shape), label) for image, label in pairs)
    return PictureSet(images.class_names, shape, resized)


def picture_records(pictures: PictureSet[Examples]) -> Originals:
    """Returns the records of a picture set, with names, shape and statistics. Splits
    must have several classes."""
    features = {"image": stored(pictures.shape), "label": np.int64}
    if pictures.label_shape:
        features["label"] = stored(pictures.label_shape)
    facts = {"class_names": list(pictures.class_names), "shape": list(pictures.shape)}
    splits = {split: _records(pictures, split, facts) for split in SPLITS}
    return Originals(features, splits, facts)


def stored(shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
    """Returns the feature of an array that is stored as bytes: TFDS would widen uint8
    to 64-bit integers."""
    return tfds.features.Tensor(shape=shape, dtype=dtype, encoding="bytes")


def moments(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, in [0, 1], of pixels counted by level, (..., 256)
    to (...), exact for any number."""
    levels, total = np.arange(256) / 255.0, counts.sum(-1)
    mean = (counts * levels).sum(-1) / total
    deviations = (levels - mean[..., None]) ** 2
    return mean, np.sqrt((counts * deviations).sum(-1) / total)


def _records(
    pictures: PictureSet[Examples], split: str, facts: Record
) -> Iterator[Record]:
    counts = np.zeros((pictures.shape[2], 256), np.int64)
    seen = np.zeros(256 + len(pictures.class_names), bool)
    for image, label in pictures.splits[split]:
        for channel, count in enumerate(counts):
            count += np.bincount(image[..., channel].ravel(), minlength=256)
        seen[label] = True
        yield {"image": image, "label": label}
    classes = np.count_nonzero(seen[: len(pictures.class_names)])
    several = ((counts > 0).sum(axis=1) > 1).any()
    if not several or classes < (2 if split == "train" else 1):
        raise UserError(
            f"images of {split} are of {classes} class(es), or all of one colour; give"
            " images that differ, of several classes"
        )
    if split == "train":
        facts["mean"], facts["std"] = (values.tolist() for values in moments(counts))
