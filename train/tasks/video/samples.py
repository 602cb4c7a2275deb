"""Samples of prepared video, whole frames from them, and disturbances of these other
than Gaussian noise."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8
from scipy import ndimage

from ...core.evaluate import NOISE_SEED
from ...data.reader import in_order, read_ahead, shuffled
from ..common import keyed, to_unit
from ..networks import to_bytes
from .data import VideoSpec, frames_from, patch_sequences
from .options import BLUR, SALT_AND_PEPPER, Disturbance

Batch = UInt8[np.ndarray, "batch tokens pixels"]

# sequences, in an evaluation: no gradient is kept, so more fit than in training
BATCH_SIZE = 250


class Sequences:
    """Samples of a model: a patch position through the frames of a window, whose tokens
    are frames. A window has ``length`` frames of ``positions`` patches, each of
    ``side`` x ``side`` pixels.
    """

    def __init__(self, data: Any, spec: VideoSpec):
        self.data, self.length, self.side = (
            data,
            spec.num_tokens,
            math.isqrt(spec.token_dim),
        )
        self.positions = (spec.frame_side // self.side) ** 2

    def count(self, split: str) -> int:
        """Returns the number of samples of a split."""
        return self.data.num_examples(split)

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any
    ) -> Iterator[Batch]:
        """Yields shuffled batches without end, see
        `train.data.reader.Dataset.batches`."""
        return self.data.batches(
            split, batch_size=batch_size, seed=seed, start_step=start_step, rows=rows
        )

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in order."""
        return self.data.examples(split, batch_size=batch_size)

    def of_windows(self, sequences: Any) -> Any:
        """Returns samples from sequences of whole windows (windows x positions,
        frames, pixels)."""
        return sequences

    def to_windows(self, samples: Any) -> Any:
        """Returns samples of whole windows as sequences."""
        return samples


class Frames(Sequences):
    """The patches of one frame: tokens are positions. Every frame of a batch is read
    with its whole window."""

    def count(self, split: str) -> int:
        """Returns the number of frames."""
        return self._windows(split) * self.length

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any
    ) -> Iterator[Batch]:
        """Frames in random order."""

        def read(numbers: Any) -> Batch:
            windows, frames = np.divmod(np.asarray(numbers), self.length)
            return self._read(split, windows)[np.arange(len(windows)), :, frames]

        batches = shuffled(
            self.count(split), read, batch_size=batch_size, seed=seed, rows=rows
        )
        return read_ahead(batches, start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Frames in order, of whole windows."""

        def read(windows: Any) -> Batch:
            return self.of_windows(
                np.concatenate(self._read(split, np.asarray(windows)))
            )

        return read_ahead(
            in_order(
                self._windows(split), read, batch_size=max(batch_size // self.length, 1)
            )
        )

    def of_windows(self, sequences: Array | np.ndarray) -> Any:
        """Frame by frame: (windows x frames, positions, pixels)."""
        return self._swapped(sequences, self.positions)

    def to_windows(self, samples: Array | np.ndarray) -> Any:
        """Position by position."""
        return self._swapped(samples, self.length)

    def _swapped(self, samples: Any, first: int) -> Any:
        second, pixels = samples.shape[1:]
        return (
            samples.reshape(-1, first, second, pixels)
            .swapaxes(1, 2)
            .reshape(-1, first, pixels)
        )

    def _windows(self, split: str) -> int:
        return self.data.num_examples(split) // self.positions

    def _read(
        self, split: str, windows: np.ndarray
    ) -> UInt8[np.ndarray, "windows positions frames pixels"]:
        numbers = windows[:, None] * self.positions + np.arange(self.positions)
        return self.data.read(split, numbers.ravel()).reshape(
            *numbers.shape, self.length, -1
        )


def cleaned_frames(
    frames: UInt8[np.ndarray, "frames height width"],
    samples: Sequences,
    clean: Callable[[np.ndarray, int], Any],
) -> UInt8[np.ndarray, "frames height width"]:
    """Frames as a model cleans them, window by window; the last frame is repeated to
    fill the last window. ``clean`` maps samples of a window and the number of its first
    frame to pixels in [0, 1].
    """
    length, side = samples.length, samples.side
    padded, windows = (
        np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % length, axis=0)]),
        [],
    )
    for place in range(0, len(padded), length):
        window = samples.of_windows(
            patch_sequences(padded[place : place + length], side=side)
        )
        patches = to_bytes(
            samples.to_windows(np.asarray(clean(window, place), np.float32))
        )
        windows.append(
            frames_from(patches, (frames.shape[1], frames.shape[2]), side=side)
        )
    return np.concatenate(windows)[: len(frames)]


def keyed_batches(data: Any, split: str) -> Iterator[tuple[Batch, jax.Array]]:
    """Yields the batches of a split in order, each with the key of its noise;
    ``data`` may be samples."""
    return keyed(data.examples(split, batch_size=BATCH_SIZE))


def disturbed_windows(
    data: Any, split: str, spec: VideoSpec, disturbance: Disturbance, variance: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the sequences of several whole windows of a split, noisy and clean, in [0,
    1]. Frames are disturbed as in a camera: blur, across patches, then its noise, then
    the rest. A lost frame repeats the last that arrived.
    """
    side, size = math.isqrt(spec.token_dim), (spec.frame_side, spec.frame_side)
    positions, number = (spec.frame_side // side) ** 2, itertools.count()
    for batch in data.examples(
        split, batch_size=max(BATCH_SIZE // positions, 1) * positions
    ):
        clean = np.asarray(to_unit(batch))
        windows = np.split(clean, len(clean) // positions)
        frames = [
            disturbed(
                frames_from(one, size, side=side), disturbance, variance, next(number)
            )
            for one in windows
        ]
        yield np.concatenate([patch_sequences(one, side=side) for one in frames]), clean


def disturbed(
    frames: Float[np.ndarray, "frames height width"],
    disturbance: Disturbance,
    variance: float,
    number: int,
) -> np.ndarray:
    """Disturbs the frames of a window by the draws of its number. Pixels become 0 or 1
    equally often. Beyond its edges a blurred frame is mirrored. Lost frames before the
    first that arrives are 0.
    """
    (kind, strength), key = (
        disturbance,
        jax.random.fold_in(jax.random.key(NOISE_SEED), number),
    )
    of_noise, of_loss = jax.random.split(key)
    noise = math.sqrt(variance) * np.asarray(jax.random.normal(of_noise, frames.shape))
    if kind == BLUR:
        return ndimage.gaussian_filter(frames, (0.0, strength, strength)) + noise
    noisy = frames + noise
    # draws of float32 never reach 1, so a share of 1 replaces everything
    if kind == SALT_AND_PEPPER:
        drawn = np.asarray(jax.random.uniform(of_loss, frames.shape))
        return np.where(drawn < strength, np.float32(drawn >= 0.5 * strength), noisy)
    places = np.arange(len(frames))
    arrived = np.asarray(jax.random.uniform(of_loss, places.shape)) >= strength
    last = np.maximum.accumulate(np.where(arrived, places, -1))
    return np.where((last >= 0)[:, None, None], noisy[last], np.float32(0.0))
