"""Clips from a moving, zooming camera over the two photographs that scikit-learn ships."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from .clips import FRAME_SIZE, NUM_FRAMES, Splits, numbered
from .files import Log, fingerprint_program
from .prepare import Source
from .splits import SPLITS

# Each 427 x 640 photograph is cut into two rows of four tiles, and a tile belongs to one split, so splits share no
# pixel. Tiles (row, column) were dealt, photograph by photograph, so that the splits are about equally bright.
TILE_HEIGHT, TILE_WIDTH = 213, 160
TILES = {
    "train": (((0, 0), (0, 3), (1, 1), (1, 3)), ((0, 2), (0, 3), (1, 0), (1, 2))),
    "validation": (((0, 1), (1, 2)), ((0, 0), (0, 1))),
    "test": (((0, 2), (1, 0)), ((1, 1), (1, 3))),
}
CLIPS = {"train": 80, "validation": 12, "test": 20}
SEEDS = {"train": 1, "validation": 2, "test": 3}
SMALLEST_VIEW, LARGEST_VIEW = 80.0, 150.0  # side of the square the camera sees, in pixels of the photograph


@contextlib.contextmanager
def open_photos(_: Path, __: Log) -> Iterator[Splits]:
    """The three splits, the same clips every time."""
    numbers = itertools.count()
    films = {split: photo_clips(split, num_frames=NUM_FRAMES, frame_size=FRAME_SIZE) for split in SPLITS}
    yield numbered({split: [(f"photo clip {next(numbers)}", film) for film in films[split]] for split in SPLITS})


def photo_clips(split: str, *, num_frames: int, frame_size: int) -> Iterator[np.ndarray]:
    """Yields the clips of a split, uint8 (num_frames, frame_size, frame_size), the same ones every time.

    The camera glides on a straight line from one random square view to another of another size, so content moves
    and zooms; views stay inside one tile.
    """
    from sklearn.datasets import load_sample_images  # takes a second, and is needed only to prepare

    generator = np.random.default_rng(SEEDS[split])
    photos = [np.asarray(Image.fromarray(photo).convert("L")) for photo in load_sample_images().images]
    tiles = [_tile(photo, *place) for photo, places in zip(photos, TILES[split], strict=True) for place in places]
    for index in range(CLIPS[split]):
        yield _film(tiles[index % len(tiles)], generator, num_frames=num_frames, frame_size=frame_size)


def _tile(photo: np.ndarray, row: int, column: int) -> np.ndarray:
    top, left = row * TILE_HEIGHT, column * TILE_WIDTH
    return photo[top : top + TILE_HEIGHT, left : left + TILE_WIDTH]


def _film(tile: np.ndarray, generator: np.random.Generator, *, num_frames: int, frame_size: int) -> np.ndarray:
    start, stop = (_random_view(tile.shape, generator) for _ in range(2))
    # At most a third of the way to the second view: a pan of about two pixels a frame, as a hand-held camera makes.
    fractions = np.linspace(0.0, 1.0 / 3.0, num_frames)
    picture = Image.fromarray(tile)
    return np.stack([_look(picture, start + fraction * (stop - start), frame_size) for fraction in fractions])


def _random_view(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """A square (top, left, side) inside a picture of the given shape."""
    side = generator.uniform(SMALLEST_VIEW, LARGEST_VIEW)
    return np.array([generator.uniform(0, shape[0] - side), generator.uniform(0, shape[1] - side), side])


def _look(picture: Image.Image, view: np.ndarray, frame_size: int) -> np.ndarray:
    top, left, side = view
    box = (left, top, left + side, top + side)
    return np.asarray(picture.resize((frame_size, frame_size), Image.Resampling.BILINEAR, box=box))


# The photographs come from scikit-learn and are resized by Pillow.
SOURCE = Source(fingerprint_program(__file__, "scikit-learn", "pillow"), open_photos)
