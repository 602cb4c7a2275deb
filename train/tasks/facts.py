"""Stand-ins for data, which say of them what a task needs to predict and to be measured."""

from typing import Any, NamedTuple

import numpy as np

MANY = 1 << 30  # more examples than any batch has


class VideoFacts(NamedTuple):
    """Stands in for `train.data.video`'s data.

    Attributes:
      pixel_std: standard deviation of the clean train pixels, in [0, 1].
      num_tokens: frames of a sequence.
      token_dim: pixels of a patch.
    """

    pixel_std: float
    num_tokens: int
    token_dim: int

    def num_sequences(self, split: str) -> int:
        """More than any batch."""
        return MANY


class ImageFacts(NamedTuple):
    """Stands in for data that are not there: what a network was trained on."""

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def num_examples(self, split: str) -> int:
        """More than any batch."""
        return MANY


class TokenFacts(NamedTuple):
    """Stands in for `TokenData` where there are no texts."""

    tokenizer: Any
    class_names: tuple[str, ...]

    def num_examples(self, split: str) -> int:
        """More than any batch."""
        return MANY

    def steps_an_epoch(self, split: str, *, batch_size: int) -> int:
        """More than any run."""
        return MANY


class CodeFacts(NamedTuple):
    """Stands in for `CodeData` where there are no images.

    Attributes:
      shape: (height, width, 1) of an image.
      dictionary: (atoms, pixels).
      pixel_std: standard deviation of the clean train pixels, in [0, 1].
    """

    shape: tuple[int, int, int]
    dictionary: np.ndarray
    pixel_std: float

    def num_examples(self, split: str) -> int:
        """More than any batch."""
        return MANY
