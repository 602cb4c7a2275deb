"""The 8 x 8 grey digits that scikit-learn ships: 1,197 to train, 200 to validate, 400 to test."""

import contextlib
import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np

from train.data.images.originals import ImageSet, LabelledImages
from train.data.source import Log
from train.data.splits import hold_out

__all__ = ["fingerprint_digits", "open_digits"]

NUM_VALIDATION, NUM_TEST = 200, 400
HIGHEST = 16.0  # of scikit-learn's grey levels


def fingerprint_digits(_: Path) -> str:
    """The digits come from scikit-learn, which also splits them, and are scaled here."""
    version = metadata.version("scikit-learn")
    return hashlib.sha256(version.encode() + Path(__file__).read_bytes()).hexdigest()[:12]


@contextlib.contextmanager
def open_digits(_: Path, __: Log) -> Iterator[ImageSet]:
    """The digits in three fixed splits, each with its share of every class."""
    from sklearn.datasets import load_digits  # takes a second, and is needed only to prepare

    images, labels = load_digits(return_X_y=True)
    images = np.rint(images * (255.0 / HIGHEST)).astype(np.uint8).reshape(-1, 8, 8, 1)
    rest, test = hold_out(labels, NUM_TEST / len(labels))
    stay, held_out = hold_out(labels[rest], NUM_VALIDATION / len(rest))
    splits = {"train": rest[stay], "validation": rest[held_out], "test": test}
    yield ImageSet(
        tuple(str(digit) for digit in range(10)),
        (8, 8, 1),
        {split: LabelledImages(labels[numbers], images[numbers].__getitem__) for split, numbers in splits.items()},
    )
