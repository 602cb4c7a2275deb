"""Pictures of images, scenes and frames: found and decoded in place, prepared with
labels, read in batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from ..config.errors import UserError
from .files import SPLITS, Log
from .media import IMAGE_ERRORS, brought_to, check_depth, open_picture
from .prepare import Kind, Originals, Record, with_progress
from .reader import Dataset, Records

PICTURES = Kind("pictures", "1.1.0")
NOT_COUNTED = 255  # in a map of classes: a pixel without a class
# of arrays: grey, or red, green and blue; each with transparency or without
CHANNELS = (1, 2, 3, 4)

S = TypeVar("S")
T = TypeVar("T")


class LabelledImages(NamedTuple):
    """Images of a split: their classes, and a function that reads images of
    ascending numbers in turn."""

    labels: np.ndarray
    read: Callable[[np.ndarray], Iterable[np.ndarray]]


class Examples(NamedTuple):
    """Examples of a split: their number, and each image with its class or map of
    classes."""

    num_examples: int
    examples: Iterable[tuple[np.ndarray, int | np.ndarray]]


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
    # standard deviation of each channel, likewise; at least one grey level
    std: np.ndarray

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        mean, std = (
            [float(value) for value in values] for values in (self.mean, self.std)
        )
        return {
            "shape": list(self.shape),
            "class_names": list(self.class_names),
            "mean": mean,
            "std": std,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
        spec = cls(**values)
        height, width, channels = spec.shape
        mean, std = (
            np.array(statistic, np.float32) for statistic in (spec.mean, spec.std)
        )
        return cls((height, width, channels), tuple(spec.class_names), mean, std)


class PictureData(Dataset[PictureBatch]):
    """Prepared pictures: their shape, names of classes, and mean and standard deviation
    of each channel, in [0, 1]. The statistics are of the train split. The deviation of
    a channel that never changes counts as one grey level.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        spec = ImageSpec.from_json(
            {name: self.facts[name] for name in ImageSpec._fields}
        )
        self.spec = spec._replace(std=np.maximum(spec.std, np.float32(1 / 255)))
        self.shape, self.class_names, self.mean, self.std = self.spec

    def _read(self, records: Records, numbers: list[int]) -> PictureBatch:
        images, labels = zip(*records.read(numbers, "image", "label"), strict=True)
        pixels = np.frombuffer(b"".join(images), np.uint8).reshape(-1, *self.shape)
        if isinstance(labels[0], int):
            return PictureBatch(pixels, np.array(labels, np.int32))
        return PictureBatch(
            pixels,
            np.frombuffer(b"".join(labels), np.uint8).reshape(-1, *self.shape[:2]),
        )


def levels(picture: Image.Image) -> np.ndarray:
    """Grey levels of a picture, uint8 (height, width, 1), or colours (height, width,
    3); transparency is dropped."""
    check_depth(picture)
    if picture.mode in ("1", "L", "LA"):
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))


def picture_of(
    source: Path | str | np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """Returns a picture, a file or a uint8 array, in a size and number of channels."""
    if not isinstance(source, Path | str):
        pixels = pixels_of(source)
        if pixels.ndim != 2 and (pixels.ndim != 3 or pixels.shape[-1] not in CHANNELS):
            raise UserError(
                "a picture must be uint8 (height, width) or (height, width, channels)"
                f" with 1 to 4 channels, got shape {pixels.shape}; give several as a"
                " list"
            )
        return brought_to(
            Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels),
            shape,
        )
    try:
        with open_picture(Path(source)) as opened:
            return brought_to(opened, shape)
    except IMAGE_ERRORS as error:
        raise UserError(
            f"{source} cannot be read as an image ({error}); give a PNG or JPEG"
        ) from error


def pixels_of(source: Any) -> np.ndarray:
    """Returns the pixels of a picture or several, which must be uint8."""
    try:
        pixels = np.asarray(source)
    except ValueError:  # of rows or pictures of several sizes
        pixels = np.array(None)
    if pixels.dtype != np.uint8 or 0 in pixels.shape:
        given = (
            f"{pixels.dtype} {pixels.shape}"
            if isinstance(source, np.ndarray)
            else type(source).__name__
        )
        raise UserError(
            "pixels must be an array of uint8, from 0 to 255, that is not empty, got"
            f" {given}"
        )
    return pixels


def picture_records(pictures: PictureSet[Examples], where: str, log: Log) -> Originals:
    """Returns the records of a picture set, with names, shape and statistics; splits
    must have several classes."""
    # Stored as bytes: TFDS would widen uint8 to 64-bit integers.
    image = tfds.features.Tensor(shape=pictures.shape, dtype=np.uint8, encoding="bytes")
    label_map = tfds.features.Tensor(
        shape=pictures.label_shape, dtype=np.uint8, encoding="bytes"
    )
    features = {
        "image": image,
        "label": label_map if pictures.label_shape else np.int64,
    }
    facts = {"class_names": list(pictures.class_names), "shape": list(pictures.shape)}
    return Originals(
        features,
        {split: _records(pictures, split, facts, where, log) for split in SPLITS},
        facts,
    )


def moments(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, in [0, 1], of pixels counted by level, (..., 256)
    to (...); exact for any number."""
    levels, total = np.arange(256) / 255.0, counts.sum(-1)
    mean = (counts * levels).sum(-1) / total
    deviations = (levels - mean[..., None]) ** 2
    return mean, np.sqrt((counts * deviations).sum(-1) / total)


def _records(
    pictures: PictureSet[Examples], split: str, facts: Record, where: str, log: Log
) -> Iterator[Record]:
    num_examples, examples = pictures.splits[split]
    counts, classes, count = np.zeros((1, 1), np.int64), set(), 0
    shown = with_progress(examples, num_examples, f"  {split}: {{}} images", log)
    for image, label in shown:
        count += 1
        channels = image.reshape(-1, image.shape[-1]).T
        counts = counts + np.stack(
            [np.bincount(channel, minlength=256) for channel in channels]
        )
        classes.update(np.flatnonzero(np.bincount(np.ravel(label))).tolist())
        yield {"image": image, "label": label}
    if (np.count_nonzero(counts, axis=-1) < 2).all():
        raise UserError(
            f"{where}: all images of {split} are of one colour; give images that differ"
        )
    classes -= {NOT_COUNTED} if pictures.label_shape else set()
    if len(classes) < (2 if split == "train" else 1):
        names = [pictures.class_names[number] for number in classes]
        given = f"one class only ({names[0]})" if names else "no class"
        raise UserError(
            f"{where}: labels of {split} have {given}; give images of several classes"
        )
    log(f"  {split}: {count} images of {' x '.join(map(str, pictures.shape))}")
    if split == "train":
        facts["mean"], facts["std"] = (values.tolist() for values in moments(counts))
