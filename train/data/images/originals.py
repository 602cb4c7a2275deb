"""What a source of images hands over: images of one shape and the class of each, with or without a validation split."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

__all__ = ["ImageSet", "LabelledImages"]


class LabelledImages(NamedTuple):
    """The images of one split.

    Attributes:
      labels: Class of each, integers (n,).
      read: Maps numbers, ascending, to those images, uint8 (height, width, channels), one after the other.
    """

    labels: np.ndarray
    read: Callable[[np.ndarray], Iterator[np.ndarray]]


class ImageSet(NamedTuple):
    """The images of a source.

    Attributes:
      class_names: Names of the classes, in the order of the labels.
      shape: Of every image: height, width, channels.
      splits: Train and test, and validation where the source has one.
    """

    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    splits: Mapping[str, LabelledImages]
