"""Data that need no files: digits and clips of scikit-learn's pictures, scenes of
shapes, verdicts on films."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .clips import FRAME_SIZE, NUM_FRAMES, Clip, Splits
from .files import SPLITS, Log, fingerprint_program, hold_out
from .pictures import NOT_COUNTED, Examples, LabelledImages, PictureSet
from .prepared import Source
from .rows import Labelled, TextSet

T = TypeVar("T", bound=tuple[Any, ...])
U = TypeVar("U")

SEEDS = {"train": 1, "validation": 2, "test": 3}  # of scenes and clips

# Digits: of 1,797, 1,197 train, 200 validate and 400 test.
VALIDATION_DIGITS, TEST_DIGITS = 200, 400
HIGHEST_LEVEL = 16.0  # of scikit-learn's grey levels

# Scenes.
SHAPE_CLASSES = ("ground", "disc", "square", "triangle", "cross")
SCENE_SIZE = 48  # side of a scene, in pixels
NUM_SCENES = {"train": 480, "validation": 60, "test": 120}
FEWEST_SHAPES, MOST_SHAPES = 2, 5  # shapes of a scene
SMALLEST_RADIUS, LARGEST_RADIUS = 5.0, 11.0  # radius of a shape, in pixels
RIM = 0.7  # half the width of the rim that belongs to no class, in pixels
NOISE = 12.0  # standard deviation of every pixel, in grey levels

# Clips. Each 427 x 640 photograph is cut into two rows of four tiles, and a tile
# belongs to one split, so splits share no pixel. Tiles (row, column) were dealt,
# photograph by photograph, to make the splits about equally bright.
TILE_HEIGHT, TILE_WIDTH = 213, 160
TILES = {
    "train": (((0, 0), (0, 3), (1, 1), (1, 3)), ((0, 2), (0, 3), (1, 0), (1, 2))),
    "validation": (((0, 1), (1, 2)), ((0, 0), (0, 1))),
    "test": (((0, 2), (1, 0)), ((1, 1), (1, 3))),
}
NUM_CLIPS = {"train": 80, "validation": 12, "test": 20}
# side of the square the camera sees, in pixels of the photograph
SMALLEST_VIEW, LARGEST_VIEW = 80.0, 150.0

# Verdicts.
SENTIMENTS = ("negative", "positive")
NUM_VERDICTS = {"train": 2000, "validation": 400, "test": 400}
VERDICT_SEED = 0
# Chances by which neither single words nor pairs of words are enough. See
# `open_verdicts`.
ONE_CLAUSE, NEGATED, ADORNED = 0.6, 0.5, 0.3

# Words, and phrases.
TOPICS = "acting cast dialogue ending humour music pacing plot premise scenery script"
WORDS = (
    "awful boring clumsy dreary dull flat lazy messy stale tedious",
    "brilliant charming clever elegant fresh gripping moving superb tender witty",
)
VERBS = "was seemed felt remained"
NEGATIONS = "not never hardly"
DEGREES = "very really quite truly"
OPENINGS = ("in the end", "to be honest", "for once", "this time", "all told")
ENDINGS = (
    *("to me", "from start to finish"),
    *("most of the time", "for two long hours"),
)
CONCESSIONS = "although though while"


@contextlib.contextmanager
def open_digits(_: Path, __: Log) -> Iterator[PictureSet[LabelledImages]]:
    """The digits in three fixed splits, each with its share of every class."""
    # takes a second, and is needed only to prepare
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.rint(images * (255.0 / HIGHEST_LEVEL)).astype(np.uint8)
    images = images.reshape(-1, 8, 8, 1)
    rest, test = hold_out(labels, TEST_DIGITS)
    stay, held_out = hold_out(labels[rest], VALIDATION_DIGITS)
    splits = {}
    for split, numbers in zip(SPLITS, (rest[stay], rest[held_out], test), strict=True):
        splits[split] = LabelledImages(labels[numbers], images[numbers].__getitem__)
    yield PictureSet(tuple("0123456789"), (8, 8, 1), splits)


@contextlib.contextmanager
def open_shapes(_: Path, __: Log) -> Iterator[PictureSet[Examples]]:
    """The three splits, the same scenes every time."""
    splits = {split: draw_scenes(split) for split in SPLITS}
    size = (SCENE_SIZE, SCENE_SIZE)
    yield PictureSet(SHAPE_CLASSES, (*size, 3), splits, size)


def draw_scenes(split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draws the scenes of a split: images uint8 (48, 48, 3) and classes uint8 (48, 48).
    Shapes lie over one another in the order drawn, turned at random. Along the rim of
    each runs a line that belongs to no class, as in PASCAL VOC.
    """
    generator = np.random.default_rng(SEEDS[split])
    for _ in range(NUM_SCENES[split]):
        image = _ground(generator)
        labels = np.zeros((SCENE_SIZE, SCENE_SIZE), np.uint8)
        for _ in range(generator.integers(FEWEST_SHAPES, MOST_SHAPES + 1)):
            shape = int(generator.integers(1, len(SHAPE_CLASSES)))
            depth = _depth(SHAPE_CLASSES[shape], generator)
            # From bright to dull in each channel: no colour belongs to a class.
            image[depth > 0] = generator.uniform(90, 255, 3)
            labels[depth > RIM] = shape
            labels[np.abs(depth) <= RIM] = NOT_COUNTED
        image += generator.normal(0.0, NOISE, image.shape)
        yield np.clip(np.rint(image), 0, 255).astype(np.uint8), labels


def _ground(generator: np.random.Generator) -> np.ndarray:
    """Stripes of a random colour, direction and width."""
    rows, columns = np.mgrid[:SCENE_SIZE, :SCENE_SIZE]
    angle = generator.uniform(0, np.pi)
    wavelength = generator.uniform(6, 16)
    phase = 2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / wavelength
    wave = np.sin(phase + generator.uniform(0, 6))[..., None]
    return generator.uniform(40, 130, 3) + generator.uniform(10, 30, 3) * wave


def _depth(shape: str, generator: np.random.Generator) -> np.ndarray:
    """Returns the depth of each pixel inside a shape, in pixels, negative outside."""
    centre = generator.uniform(0, SCENE_SIZE, 2)
    radius = generator.uniform(SMALLEST_RADIUS, LARGEST_RADIUS)
    angle = generator.uniform(0, 2 * np.pi)
    down, right = np.mgrid[:SCENE_SIZE, :SCENE_SIZE] - centre[:, None, None]
    x = right * np.cos(angle) + down * np.sin(angle)
    y = down * np.cos(angle) - right * np.sin(angle)
    if shape == "disc":
        return radius - np.hypot(x, y)
    if shape == "square":
        return radius * 0.8 - np.maximum(np.abs(x), np.abs(y))
    if shape == "triangle":
        turns = (np.pi / 2, np.pi * 7 / 6, np.pi * 11 / 6)
        sides = [x * np.cos(turn) + y * np.sin(turn) for turn in turns]
        return radius * 0.6 - np.max(sides, axis=0)
    long, wide = radius - np.abs([x, y]), radius * 0.35 - np.abs([y, x])
    return np.minimum(long, wide).max(axis=0)


@contextlib.contextmanager
def open_photos(_: Path, __: Log) -> Iterator[Splits]:
    """The three splits, the same clips every time."""
    numbers = itertools.count()
    splits = {}
    for split in SPLITS:
        films = photo_clips(split, num_frames=NUM_FRAMES, frame_size=FRAME_SIZE)
        splits[split] = [Clip(f"photo clip {next(numbers)}", film) for film in films]
    yield splits


def photo_clips(
    split: str, *, num_frames: int, frame_size: int
) -> Iterator[np.ndarray]:
    """Yields the clips of a split, uint8 (num_frames, frame_size, frame_size), the same
    ones every time. The camera glides on a line between random square views of two
    sizes in one tile: content moves and zooms.
    """
    # takes a second, and is needed only to prepare
    from sklearn.datasets import load_sample_images

    generator = np.random.default_rng(SEEDS[split])
    tiles: list[Image.Image] = []
    for photo, places in zip(load_sample_images().images, TILES[split], strict=True):
        grey = Image.fromarray(photo).convert("L")
        for row, column in places:
            top, left = row * TILE_HEIGHT, column * TILE_WIDTH
            box = (left, top, left + TILE_WIDTH, top + TILE_HEIGHT)
            tiles.append(grey.crop(box))
    # At most a third of the way to the second view: a pan of about two pixels a frame,
    # as a hand-held camera makes.
    fractions = np.linspace(0.0, 1.0 / 3.0, num_frames)
    for index in range(NUM_CLIPS[split]):
        start, stop = _random_view(generator), _random_view(generator)
        film = np.empty((num_frames, frame_size, frame_size), np.uint8)
        for frame, fraction in zip(film, fractions, strict=True):
            top, left, side = start + fraction * (stop - start)
            frame[:] = tiles[index % len(tiles)].resize(
                (frame_size, frame_size),
                Image.Resampling.BILINEAR,
                box=(left, top, left + side, top + side),
            )
        yield film


def _random_view(generator: np.random.Generator) -> np.ndarray:
    """A square (top, left, side) inside a tile."""
    side = generator.uniform(SMALLEST_VIEW, LARGEST_VIEW)
    top = generator.uniform(0, TILE_HEIGHT - side)
    left = generator.uniform(0, TILE_WIDTH - side)
    return np.array([top, left, side])


@contextlib.contextmanager
def open_verdicts(_: Path, __: Log) -> Iterator[TextSet]:
    """2,000 sentences to train, 400 to validate, 400 to test, all different, half of
    them of each class.

    Six in ten have one clause, "the plot was not really dull .", in which every other
    adjective is negated. The rest set a second clause of the opposite verdict against
    it, "although the music seemed fresh , the plot was not clever .": the main clause
    decides, in either place, and "but" makes the last one main. The sentence whose
    clauses have changed places, with the same words and the other class, is as
    frequent. A model of words without their order is right about at most eight in ten
    sentences, and one that adds up words about five.
    """
    generator = np.random.default_rng(VERDICT_SEED)
    seen: set[str] = set()
    splits = {}
    for split, size in NUM_VERDICTS.items():
        drawn = distinct(lambda number: _sentence(generator, number % 2), size, seen)
        splits[split] = drawn
    yield TextSet(SENTIMENTS, splits)


def distinct(draw: Callable[[int], T], count: int, seen: set[str]) -> list[T]:
    """Draws so many examples, given the number of those before. None has a text, its
    first field, of ``seen``, which grows by theirs."""
    examples: list[T] = []
    while len(examples) < count:
        example = draw(len(examples))
        if example[0] not in seen:
            seen.add(example[0])
            examples.append(example)
    return examples


def _sentence(generator: np.random.Generator, label: int) -> Labelled:
    topics = generator.choice(TOPICS.split(), 2, replace=False)
    main = _clause(generator, topics[0], label)
    other = _clause(generator, topics[1], 1 - label)
    text = main
    if generator.random() >= ONE_CLAUSE:
        concession = pick(generator, CONCESSIONS.split())
        forms = (
            f"{concession} {other} , {main}",
            f"{main} , {concession} {other}",
            f"{other} , but {main}",
        )
        text = pick(generator, forms)
    if generator.random() < ADORNED:
        text = f"{pick(generator, OPENINGS)} , {text}"
    return Labelled(f"{text} .", "", label)


def _clause(generator: np.random.Generator, topic: str, praise: int) -> str:
    """The words of a clause that praises its topic, or not."""
    negated = int(generator.random() < NEGATED)
    negation = pick(generator, NEGATIONS.split()) if negated else ""
    degree = pick(generator, DEGREES.split()) if generator.random() < ADORNED else ""
    ending = pick(generator, ENDINGS) if generator.random() < ADORNED else ""
    verb = pick(generator, VERBS.split())
    adjective = pick(generator, WORDS[praise ^ negated].split())
    words = ("the", topic, verb, negation, degree, adjective, ending)
    return " ".join(filter(None, words))


def pick(generator: np.random.Generator, choices: Sequence[U]) -> U:
    """Draws one of the choices."""
    return choices[int(generator.integers(len(choices)))]


# Their fingerprints change with this file.
DIGITS = Source(fingerprint_program(__file__, "scikit-learn"), open_digits)
SHAPES = Source(fingerprint_program(__file__, "numpy"), open_shapes)
PHOTOS = Source(fingerprint_program(__file__, "scikit-learn", "pillow"), open_photos)
VERDICTS = Source(fingerprint_program(__file__), open_verdicts)
