"""Samples of prepared video, whole frames from them, and disturbances of these other than Gaussian noise."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from ..config.video import BLUR, SALT_AND_PEPPER, Disturbance
from ..data.reader import in_order, read_ahead, shuffled
from ..data.video import VideoSpec, frames_from, patch_sequences
from .common import NOISE_SEED, keyed, to_unit
from .networks import to_bytes

Batch = UInt8[np.ndarray, "batch tokens pixels"]

REACH = 4.0  # of the Gaussian, in deviations, beyond which it counts as 0, as in scipy.ndimage
BATCH_SIZE = 250  # sequences, in an evaluation: no gradient is kept, so more fit than in training


class Sequences:
    """Samples of a model: a patch position through the frames of a window, whose tokens are frames. A window has
    ``length`` frames of ``positions`` patches, each of ``side`` x ``side`` pixels."""

    def __init__(self, data: Any, spec: VideoSpec):
        self.data, self.length, self.side = data, spec.num_tokens, math.isqrt(spec.token_dim)
        self.positions = (spec.frame_side // self.side) ** 2

    def count(self, split: str) -> int:
        """Returns the number of samples of a split."""
        return self.data.num_examples(split)

    def batches(self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        """Yields shuffled batches without end, see `train.data.reader.Dataset.batches`."""
        return self.data.batches(split, batch_size=batch_size, seed=seed, start_step=start_step, rows=rows)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in order."""
        return self.data.examples(split, batch_size=batch_size)

    def of_windows(self, sequences: Any) -> Any:
        """Returns samples from sequences of whole windows (windows x positions, frames, pixels)."""
        return sequences

    def to_windows(self, samples: Any) -> Any:
        """Returns samples of whole windows as sequences."""
        return samples


class Frames(Sequences):
    """The patches of one frame: tokens are positions. Every frame of a batch is read with its whole window."""

    def count(self, split: str) -> int:
        """Returns the number of frames."""
        return self._windows(split) * self.length

    def batches(self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any) -> Iterator[Batch]:
        """Frames in random order."""

        def read(numbers: Any) -> Batch:
            windows, frames = np.divmod(np.asarray(numbers), self.length)
            return self._read(split, windows)[np.arange(len(windows)), :, frames]

        batches = shuffled(self.count(split), read, batch_size=batch_size, seed=seed, rows=rows)
        return read_ahead(batches, start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Frames in order, of whole windows."""

        def read(windows: Any) -> Batch:
            return self.of_windows(np.concatenate(self._read(split, np.asarray(windows))))

        return read_ahead(in_order(self._windows(split), read, batch_size=max(batch_size // self.length, 1)))

    def of_windows(self, sequences: Array | np.ndarray) -> Any:
        """Frame by frame: (windows x frames, positions, pixels)."""
        return self._swapped(sequences, self.positions)

    def to_windows(self, samples: Array | np.ndarray) -> Any:
        """Position by position."""
        return self._swapped(samples, self.length)

    def _swapped(self, samples: Any, first: int) -> Any:
        second, pixels = samples.shape[1:]
        return samples.reshape(-1, first, second, pixels).swapaxes(1, 2).reshape(-1, first, pixels)

    def _windows(self, split: str) -> int:
        return self.data.num_examples(split) // self.positions

    def _read(self, split: str, windows: np.ndarray) -> UInt8[np.ndarray, "windows positions frames pixels"]:
        numbers = windows[:, None] * self.positions + np.arange(self.positions)
        return self.data.read(split, numbers.ravel()).reshape(*numbers.shape, self.length, -1)


def cleaned_frames(
    frames: UInt8[np.ndarray, "frames height width"], samples: Sequences, clean: Callable[[np.ndarray, int], Any]
) -> UInt8[np.ndarray, "frames height width"]:
    """Frames as a model cleans them, window by window; the last frame is repeated to fill the last window. ``clean``
    maps samples of a window and the number of its first frame to pixels in [0, 1]."""
    length, side = samples.length, samples.side
    padded, windows = np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % length, axis=0)]), []
    for place in range(0, len(padded), length):
        window = samples.of_windows(patch_sequences(padded[place : place + length], side=side))
        patches = to_bytes(samples.to_windows(np.asarray(clean(window, place), np.float32)))
        windows.append(frames_from(patches, (frames.shape[1], frames.shape[2]), side=side))
    return np.concatenate(windows)[: len(frames)]


def keyed_batches(data: Any, split: str) -> Iterator[tuple[Batch, jax.Array]]:
    """Yields the batches of a split in order, each with the key of its noise; ``data`` may be samples."""
    return keyed(data.examples(split, batch_size=BATCH_SIZE))


def whole_windows(data: Any, split: str, positions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the sequences of several whole windows of a split, which follow each other, and their numbers."""
    first = 0
    for batch in data.examples(split, batch_size=max(BATCH_SIZE // positions, 1) * positions):
        count = len(batch) // positions
        yield batch, np.arange(first, first + count, dtype=np.int32)
        first += count


def window_disturbance(
    spec: VideoSpec, disturbance: Disturbance, variance: float
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """``(sequences of whole windows, numbers of the windows) -> (noisy, clean)``, in [0, 1]. Frames are disturbed as in
    a camera: blur, across patches, then its noise, then the rest. A lost frame repeats the last that arrived."""
    side, size = math.isqrt(spec.token_dim), (spec.frame_side, spec.frame_side)
    kind, strength = disturbance
    change = salt_and_pepper if kind == SALT_AND_PEPPER else dropped

    def window(sequences: Any, number: Array) -> Any:
        of_noise, of_loss = jax.random.split(jax.random.fold_in(jax.random.key(NOISE_SEED), number))
        frames = jnp.asarray(frames_from(sequences, size, side=side))
        noise = math.sqrt(variance) * jax.random.normal(of_noise, frames.shape)
        is_blur = kind == BLUR
        noisy: Any = blur(frames, strength) + noise if is_blur else change(frames + noise, of_loss, strength)
        return patch_sequences(noisy, side=side)

    def disturb(batch: Array, numbers: Array) -> tuple[Array, Array]:
        clean = to_unit(batch)
        noisy = jax.vmap(window)(clean.reshape(len(numbers), -1, *clean.shape[1:]), numbers)
        return noisy.reshape(clean.shape), clean

    return disturb


def salt_and_pepper(
    frames: Float[Array, "frames height width"], key: jax.Array, share: float
) -> Float[Array, "frames height width"]:
    """Replaces a share of the pixels, in the mean, by 0 or 1, either equally often."""
    # float32 draws never reach 1, so a share of 1 replaces everything.
    drawn = jax.random.uniform(key, frames.shape, jnp.float32)
    return jnp.where(drawn < share, jnp.where(drawn < 0.5 * share, 0.0, 1.0).astype(frames.dtype), frames)


def blur(frames: Float[Array, "frames height width"], deviation: float) -> Float[Array, "frames height width"]:
    r"""Blurs each frame by a Gaussian, :math:`y_i = \sum_j w_{i-j} x_j, w_k \propto e^{-k^2 / 2 s^2}`, along both axes.
    Beyond its edges a frame is mirrored, the pixel at the edge twice. It equals `scipy.ndimage.gaussian_filter` with
    its usual ``mode="reflect"`` and ``truncate=4``. The deviation s is in pixels."""
    for axis in (-2, -1):
        matrix = jnp.asarray(_gaussian(frames.shape[axis], deviation), frames.dtype)
        turned = jnp.matmul(jnp.moveaxis(frames, axis, -1), matrix.T, precision="highest")
        frames = jnp.moveaxis(turned, -1, axis)
    return frames


def dropped(
    frames: Float[Array, "frames height width"], key: jax.Array, share: float
) -> Float[Array, "frames height width"]:
    """Replaces a share of the frames, in the mean, by the last one that arrived; before any has arrived, by 0."""
    places = jnp.arange(frames.shape[0])
    arrived = jax.random.uniform(key, places.shape, jnp.float32) >= share
    last = jax.lax.cummax(jnp.where(arrived, places, -1))
    previous = jnp.take(frames, jnp.maximum(last, 0), axis=0)
    return jnp.where((last >= 0)[:, None, None], previous, jnp.zeros((), frames.dtype))


def _gaussian(size: int, deviation: float) -> np.ndarray:
    """The matrix (size, size) of the blur of a line, mirrored at its ends."""
    reach = int(REACH * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (steps / deviation) ** 2)
    places = (np.arange(size)[:, None] + steps) % (2 * size)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], np.minimum(places, 2 * size - 1 - places)), weights / weights.sum())
    return matrix
