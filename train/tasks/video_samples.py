"""Samples of prepared video: a patch position through the frames of a window, or the patches of one frame."""

import abc
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Array, UInt8

from ..data.reader import in_order, read_ahead, shuffled
from ..data.video import frames_from, patch_sequences
from .facts import MANY, VideoFacts

Batch = UInt8[np.ndarray, "batch tokens pixels"]


class Samples(abc.ABC):
    """The map of sequences of prepared video to samples of a model, and back.

    Attributes:
      data: a `train.data.video.VideoData`, or the `VideoFacts` that stand in for it.
      positions: patches of a frame.
      num_tokens: tokens of a sample.
    """

    num_tokens: int

    def __init__(self, data: Any, positions: int):
        self.data, self.positions = data, positions

    @abc.abstractmethod
    def count(self, split: str) -> int:
        """Returns how many samples a split has."""

    @abc.abstractmethod
    def batches(self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        """Iterates over shuffled batches without end, see `train.data.reader.Dataset.batches`."""

    @abc.abstractmethod
    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Iterates over a whole split in order."""

    @abc.abstractmethod
    def of_windows(self, sequences: Any) -> Any:
        """Sequences of whole windows (windows x positions, frames, pixels) as samples."""

    @abc.abstractmethod
    def to_windows(self, samples: Any) -> Any:
        """Samples of whole windows as sequences."""


class Sequences(Samples):
    """A patch position through the frames of a window: tokens are frames, and pixels those of a patch."""

    def __init__(self, data: Any, positions: int):
        super().__init__(data, positions)
        self.num_tokens = data.num_tokens

    def count(self, split: str) -> int:
        """Sequences."""
        return self.data.num_sequences(split)

    def batches(self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        """Sequences in random order."""
        return self.data.batches(split, batch_size=batch_size, seed=seed, start_step=start_step, rows=rows)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Sequences in order."""
        return self.data.examples(split, batch_size=batch_size)

    def of_windows(self, sequences: Any) -> Any:
        """Returns the sequences as they are."""
        return sequences

    def to_windows(self, samples: Any) -> Any:
        """Returns the samples as they are."""
        return samples


class Frames(Samples):
    """The patches of one frame: tokens are positions. Every frame of a batch is read with its whole window."""

    def __init__(self, data: Any, positions: int):
        super().__init__(data, positions)
        self.num_tokens = positions

    def count(self, split: str) -> int:
        """Frames."""
        return MANY if isinstance(self.data, VideoFacts) else self._windows(split) * self.data.num_tokens

    def batches(self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        """Frames in random order."""
        length = self.data.num_tokens

        def read(numbers: Any) -> Batch:
            windows, frames = np.divmod(np.asarray(numbers), length)
            return self._read(split, windows)[np.arange(len(windows)), :, frames]

        batches = shuffled(self.count(split), read, batch_size=batch_size, seed=seed, rows=rows)
        return read_ahead(batches, start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Frames in order, of whole windows."""
        together = max(batch_size // self.data.num_tokens, 1)
        read = lambda windows: self.of_windows(np.concatenate(self._read(split, np.asarray(windows))))  # noqa: E731
        return read_ahead(in_order(self._windows(split), read, batch_size=together))

    def of_windows(self, sequences: Array | np.ndarray) -> Any:
        """Frame by frame: (windows x frames, positions, pixels)."""
        return self._swapped(sequences, self.positions)

    def to_windows(self, samples: Array | np.ndarray) -> Any:
        """Position by position."""
        return self._swapped(samples, self.data.num_tokens)

    def _swapped(self, samples: Any, first: int) -> Any:
        second, pixels = samples.shape[1:]
        return samples.reshape(-1, first, second, pixels).swapaxes(1, 2).reshape(-1, first, pixels)

    def _windows(self, split: str) -> int:
        return self.data.num_sequences(split) // self.positions

    def _read(self, split: str, windows: np.ndarray) -> UInt8[np.ndarray, "windows positions frames pixels"]:
        numbers = windows[:, None] * self.positions + np.arange(self.positions)
        return self.data.read(split, numbers.ravel()).reshape(*numbers.shape, self.data.num_tokens, -1)


def samples_of(data: Any, positions: int, *, frames: bool) -> Samples:
    """The samples of a model: frames, or sequences.

    Args:
      data: prepared video, or what stands in for it.
      positions: patches of a frame.
      frames: whether tokens are the patches of one frame.
    """
    return (Frames if frames else Sequences)(data, positions)


def cleaned_frames(
    frames: UInt8[np.ndarray, "frames height width"], samples: Samples, clean: Callable[[np.ndarray, int], Any]
) -> UInt8[np.ndarray, "frames height width"]:
    """Frames as a model cleans them, window by window; the last frame is repeated to fill the last window.

    Args:
      frames: grey levels.
      samples: those of the model.
      clean: samples of a window, and the number of its first frame, to pixels in [0, 1].
    """
    length, side = samples.data.num_tokens, math.isqrt(samples.data.token_dim)
    padded, windows = np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % length, axis=0)]), []
    for place in range(0, len(padded), length):
        window = samples.of_windows(patch_sequences(padded[place : place + length], side=side))
        patches = samples.to_windows(np.asarray(clean(window, place), np.float32))
        pixels = np.clip(np.round(255.0 * patches), 0, 255).astype(np.uint8)
        windows.append(frames_from(pixels, (frames.shape[1], frames.shape[2]), side=side))
    return np.concatenate(windows)[: len(frames)]
