"""Pictures with labels prepared once: TFDS records of an image and what it shows, a class or a map of classes."""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from train.data.pixels import count_levels, moments
from train.data.prepared import LocalBuilder, LocalInfo, prepare_once
from train.data.source import Log
from train.data.splits import SPLITS
from train.errors import UserError

__all__ = ["NOT_COUNTED", "PictureSet", "PictureSplit", "Pictures", "write_pictures"]

NOT_COUNTED = 255  # in a map of classes: a pixel that neither trains nor counts
SECONDS_BETWEEN_LINES = 5.0  # of progress, while a split is prepared
Example = tuple[np.ndarray, int | np.ndarray]


class PictureSplit(NamedTuple):
    """The examples of one split, read one after the other, and how many there are."""

    num_examples: int
    examples: Iterable[Example]


class PictureSet(NamedTuple):
    """What a source hands over.

    Attributes:
      class_names: Names of the classes, in the order of the labels.
      shape: Of every image, uint8: height, width, channels.
      label_shape: () where a label is the number of a class, (height, width) where it is a map of them, uint8.
      splits: The three splits.
    """

    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    label_shape: tuple[int, ...]
    splits: Mapping[str, PictureSplit]


class Pictures(LocalBuilder, skip_registration=True):  # pyright: ignore
    """Images and their labels as TFDS records; names, shape and statistics are kept beside them.

    Args:
      data_dir: Where TFDS keeps the prepared data.
      originals: The pictures to prepare; None to read data that are prepared.
      origin: What errors call the originals.
      log: Takes lines of progress.
    """

    VERSION = tfds.core.Version("1.0.0")  # of the records: count up when other code makes other ones

    def __init__(
        self, *, data_dir: Path, originals: PictureSet | None = None, origin: str = "", log: Log = print
    ) -> None:
        self._originals, self._origin, self._log = originals, origin, log
        super().__init__(data_dir=str(data_dir))

    def _info(self) -> tfds.core.DatasetInfo:
        # Those who read know the shapes from the facts: they take the bytes as they are.
        shape, label_shape = self._originals[1:3] if self._originals else ((None, None, None), ())
        label = tfds.features.Tensor(shape=label_shape, dtype=np.uint8, encoding="bytes") if label_shape else np.int64
        # Stored as bytes: TFDS would widen uint8 to 64-bit integers.
        image = tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding="bytes")
        return LocalInfo(
            builder=self,
            description="Images and what they show.",
            features=tfds.features.FeaturesDict({"image": image, "label": label}),
            disable_shuffling=True,  # batches are shuffled when read
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # the original files are at hand
        assert self._originals is not None
        self.facts["class_names"] = list(self._originals.class_names)
        self.facts["shape"] = list(self._originals.shape)
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        counts, present, key = np.zeros((1, 1), np.int64), set(), 0
        for key, (image, label) in enumerate(self._progress(split), start=1):
            counts = counts + count_levels(image)
            present.update(np.flatnonzero(np.bincount(np.ravel(label))).tolist())
            yield key, {"image": image, "label": label}
        self._check(split, counts, present)
        self._log(f"  {split}: {key} images of {' x '.join(str(side) for side in self.facts['shape'])}")
        if split == "train":
            self.facts["mean"], self.facts["std"] = (values.tolist() for values in moments(counts))

    def _check(self, split: str, counts: np.ndarray, labels: set[int]) -> None:
        """Refuses a split that nothing can be learnt from, or judged on."""
        assert self._originals is not None
        if (np.count_nonzero(counts, axis=-1) < 2).all():
            raise UserError(f"{self._origin}: all images of {split} are of one colour; give images that differ")
        classes = labels - ({NOT_COUNTED} if self._originals.label_shape else set())
        if len(classes) < (2 if split == "train" else 1):
            names = [self._originals.class_names[number] for number in classes]
            raise UserError(
                f"{self._origin}: labels of {split} have {f'one class alone ({names[0]})' if names else 'no class'}; "
                "give images of several classes"
            )

    def _progress(self, split: str) -> Iterator[Example]:
        assert self._originals is not None
        num_examples, examples = self._originals.splits[split]
        spoken = time.monotonic()
        for count, example in enumerate(examples):
            if time.monotonic() - spoken > SECONDS_BETWEEN_LINES:
                self._log(f"  {split}: {count} of {num_examples} images")
                spoken = time.monotonic()
            yield example


def write_pictures(originals: PictureSet, data_dir: Path, origin: str, log: Log) -> None:
    """Prepares a picture set; errors call it ``origin``.

    Raises:
      UserError: if a picture cannot be used, if those of a split are of one colour or have no labels that differ, or
        the folder cannot be written.
    """
    prepare_once(Pictures(data_dir=data_dir, originals=originals, origin=origin, log=log))
