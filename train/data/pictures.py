"""Pictures of images, scenes and frames: found and decoded in place, prepared with
labels, read in batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from ..config.errors import UserError
from .files import SPLITS, three_splits
from .media import IMAGE_ERRORS, brought_to, check_depth, open_picture
from .prepare import Kind, Originals, Record
from .reader import Dataset, Records, joined

PICTURES = Kind("pictures", "1.1.0")
NOT_COUNTED = 255  # in a map of classes: a pixel without a class
# of arrays: grey, or red, green and blue; each with transparency or without
CHANNELS = (1, 2, 3, 4)

S = TypeVar("S")


class LabelledImages(NamedTuple):
    """Images of a split: their classes, and a function that reads images of
    ascending numbers in turn."""

    labels: np.ndarray
    read: Callable[[np.ndarray], Iterable[np.ndarray]]


# each image with its class or map of classes
Examples = Iterable[tuple[np.ndarray, Any]]


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
        return fields_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
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
    3); transparency is dropped."""
    check_depth(picture)
    if picture.mode in ("1", "L", "LA"):
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))


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
    """Returns the images of each split, read when they are iterated over; missing
    splits are cut from train, see `three_splits`."""
    labels = {split: each.labels for split, each in images.splits.items()}
    chosen = {}
    for split, (place, numbers) in three_splits(labels, share, equal=equal).items():
        pictures = images.splits[place].read(numbers)
        chosen[split] = zip(pictures, labels[place][numbers].tolist(), strict=True)
    return chosen


def picture_records(pictures: PictureSet[Examples]) -> Originals:
    """Returns the records of a picture set, with names, shape and statistics; splits
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
    to (...); exact for any number."""
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
