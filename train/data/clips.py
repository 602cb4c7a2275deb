"""What a source of video hands over: clips of grey square frames in three splits; and how clips become sequences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from PIL import Image

from train.data.splits import SPLITS

__all__ = [
    "FRAME_SIZE",
    "NUM_FRAMES",
    "PATCH_SIZE",
    "SPLITS",
    "Clip",
    "ClipSet",
    "Splits",
    "patch_sequences",
    "some_of",
    "split_sizes",
    "standard_frame",
    "windows",
]

FRAME_SIZE = 160  # side of a frame, in pixels
PATCH_SIZE = 16  # side of a patch, in pixels
NUM_FRAMES = 20  # frames of a sequence
SHOWN = 3  # clips of a split that the log names


class Clip(NamedTuple):
    """Consecutive frames: a number that no other clip of the data set has, a name, and frames (160, 160) uint8."""

    number: int
    name: str
    frames: Iterable[np.ndarray]


class ClipSet(NamedTuple):
    """The clips of one split, read one after the other, and how many there are."""

    num_clips: int
    clips: Iterator[Clip]


Splits = Mapping[str, ClipSet]


def standard_frame(picture: Image.Image) -> np.ndarray:
    """Returns a picture as grey levels, uint8 (160, 160), whatever its colours, sides and aspect."""
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {picture.mode})")
    grey = picture.convert("L")
    if grey.size != (FRAME_SIZE, FRAME_SIZE):
        grey = grey.resize((FRAME_SIZE, FRAME_SIZE), Image.Resampling.BILINEAR)
    return np.asarray(grey)


def windows(frames: Iterable[np.ndarray], *, length: int = NUM_FRAMES) -> Iterator[np.ndarray]:
    """Cuts frames into consecutive windows (length, 160, 160) without overlap; an incomplete last one is dropped."""
    frames = iter(frames)
    while len(window := list(islice(frames, length))) == length:
        yield np.stack(window)


def patch_sequences(window: np.ndarray) -> np.ndarray:
    """Returns one sequence for each patch position: (frames, height, width) to (positions, frames, 256).

    Positions run row by row over the frame, pixels row by row over the patch.
    """
    frames, height, width = window.shape
    rows, columns = height // PATCH_SIZE, width // PATCH_SIZE
    patches = window.reshape(frames, rows, PATCH_SIZE, columns, PATCH_SIZE)
    return patches.transpose(1, 3, 0, 2, 4).reshape(rows * columns, frames, PATCH_SIZE**2)


def some_of(names: Sequence[str]) -> str:
    """A few of the names: all of up to three, else the first two and the last."""
    return "; ".join(names if len(names) <= SHOWN else (*names[: SHOWN - 1], "...", names[-1]))


def split_sizes(count: int) -> dict[str, int]:
    """Returns how many of ``count`` things in order fall to each split: 80, 10 and 10 in a hundred, none empty.

    Raises:
      ValueError: if there are fewer than three.
    """
    if count < len(SPLITS):
        raise ValueError(f"{count} cannot be split in three")
    held_out = max(1, round(count / 10))
    return {"train": count - 2 * held_out, "validation": held_out, "test": held_out}
