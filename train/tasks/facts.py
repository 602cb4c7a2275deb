"""What tasks need of their data, and stand-ins that say the same where there are none: to predict, and to measure."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

MANY = 1 << 30  # more examples than any batch has


class VideoShape(Protocol):
    """What the task needs of its data: those of `train.data.video`, or a benchmark's stand-in."""

    @property
    def pixel_std(self) -> float:
        """Standard deviation of the clean train pixels, in [0, 1]."""
        ...

    @property
    def num_tokens(self) -> int:
        """Frames of a sequence."""
        ...

    @property
    def token_dim(self) -> int:
        """Pixels of a patch."""
        ...

    def num_sequences(self, split: str) -> int:
        """How many sequences a split has."""
        ...

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[Any]:
        """Batches of a split without end."""
        ...

    def examples(self, split: str, *, batch_size: int) -> Iterator[Any]:
        """Every sequence of a split once."""
        ...


class VideoFacts(NamedTuple):
    """Stands in for data that are not there."""

    pixel_std: float
    num_tokens: int
    token_dim: int

    def num_sequences(self, split: str) -> int:
        """More than any batch."""
        return MANY

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[Any]:
        """None."""
        return iter(())

    def examples(self, split: str, *, batch_size: int) -> Iterator[Any]:
        """None."""
        return iter(())


class ImageFacts(NamedTuple):
    """Stands in for data that are not there: what a network was trained on."""

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
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
