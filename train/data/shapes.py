"""Scenes drawn here: bright shapes on a textured ground, each shape a class of its own, whatever its colour."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .files import Log, fingerprint_program
from .pictures import NOT_COUNTED, Examples, PictureSet
from .prepare import Source

CLASSES = ("ground", "disc", "square", "triangle", "cross")
SIZE = 48  # side of a scene, in pixels
SCENES = {"train": 480, "validation": 60, "test": 120}
SEEDS = {"train": 1, "validation": 2, "test": 3}
FEWEST, MOST = 2, 5  # shapes of a scene
SMALLEST, LARGEST = 5.0, 11.0  # radius of a shape, in pixels
EDGE = 0.7  # half the width of the rim that belongs to no class, in pixels
NOISE = 12.0  # standard deviation of every pixel, in grey levels


@contextlib.contextmanager
def open_shapes(_: Path, __: Log) -> Iterator[PictureSet[Examples]]:
    """The three splits, the same scenes every time."""
    splits = {split: Examples(count, draw_scenes(split)) for split, count in SCENES.items()}
    yield PictureSet(CLASSES, (SIZE, SIZE, 3), splits, (SIZE, SIZE))


def draw_scenes(split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draws the scenes of a split: images uint8 (48, 48, 3) and classes uint8 (48, 48).

    Shapes lie over one another in the order drawn, turned at random; along the rim of each runs a line that belongs to
    no class, as in PASCAL VOC.
    """
    generator = np.random.default_rng(SEEDS[split])
    for _ in range(SCENES[split]):
        image, labels = _ground(generator), np.zeros((SIZE, SIZE), np.uint8)
        for _ in range(generator.integers(FEWEST, MOST + 1)):
            shape = int(generator.integers(1, len(CLASSES)))
            depth = _depth(CLASSES[shape], generator)
            # From bright to dull in each channel: no colour belongs to a class.
            image[depth > 0] = generator.uniform(90, 255, 3)
            labels[depth > EDGE] = shape
            labels[np.abs(depth) <= EDGE] = NOT_COUNTED
        image += generator.normal(0.0, NOISE, image.shape)
        yield np.clip(np.rint(image), 0, 255).astype(np.uint8), labels


def _ground(generator: np.random.Generator) -> np.ndarray:
    """Stripes of a random colour, direction and width."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    angle, wavelength = generator.uniform(0, np.pi), generator.uniform(6, 16)
    wave = np.sin(2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / wavelength + generator.uniform(0, 6))
    return generator.uniform(40, 130, 3) + generator.uniform(10, 30, 3) * wave[..., None]


def _depth(shape: str, generator: np.random.Generator) -> np.ndarray:
    """How deep inside a shape each pixel lies, in pixels; negative outside."""
    centre, radius = generator.uniform(0, SIZE, 2), generator.uniform(SMALLEST, LARGEST)
    angle = generator.uniform(0, 2 * np.pi)
    down, right = np.mgrid[:SIZE, :SIZE] - centre[:, None, None]
    x, y = right * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - right * np.sin(angle)
    if shape == "disc":
        return radius - np.hypot(x, y)
    if shape == "square":
        return radius * 0.8 - np.maximum(np.abs(x), np.abs(y))
    if shape == "triangle":
        sides = [x * np.cos(turn) + y * np.sin(turn) for turn in (np.pi / 2, np.pi * 7 / 6, np.pi * 11 / 6)]
        return radius * 0.6 - np.max(sides, axis=0)
    bars = [np.minimum(radius - np.abs(a), radius * 0.35 - np.abs(b)) for a, b in ((x, y), (y, x))]
    return np.max(bars, axis=0)


# The scenes are drawn here, from NumPy's random numbers.
SOURCE = Source(fingerprint_program(__file__, "numpy"), open_shapes)
