"""What all prepared pictures tell of themselves, and how their records become arrays."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from train.data.dataset import Dataset
from train.data.prepared import LocalBuilder, Records

__all__ = ["PictureData"]

T = TypeVar("T")


class PictureData(Dataset[T]):
    """Prepared pictures.

    Attributes:
      shape: Of an image: height, width, channels.
      class_names: Names of the classes, in the order of the labels.
      mean: Of each channel over the train split, in [0, 1], float32 (channels,).
      std: Standard deviation, alike; that of a channel which never changes counts as one grey level, not as 0.
    """

    def __init__(self, builder: LocalBuilder, read: Callable[[Records, list[int]], T]) -> None:
        height, width, channels = builder.facts["shape"]
        self.shape: tuple[int, int, int] = (height, width, channels)
        self.class_names: tuple[str, ...] = tuple(builder.facts["class_names"])
        self.mean = np.array(builder.facts["mean"], np.float32)
        self.std = np.maximum(np.array(builder.facts["std"], np.float32), np.float32(1 / 255))
        super().__init__(builder, read)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)
