"""Data that need no files: digits and clips of scikit-learn's pictures, scenes of
shapes, verdicts on films."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from .clips import FRAME_SIZE, NUM_FRAMES, Clip, Splits
from .files import SPLITS, Log, fingerprint_program, hold_out
from .pictures import NOT_COUNTED, Examples, LabelledImages, PictureSet
from .prepare import Source
from .rows import Labelled, TextSet

T = TypeVar("T")

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
# Chances by which neither single words nor pairs of words are enough; see
# `open_verdicts`.
ONE_CLAUSE, NEGATED, ADORNED = 0.6, 0.5, 0.3

TOPICS = (
    "acting",
    "cast",
    "dialogue",
    "ending",
    "humour",
    "music",
    "pacing",
    "plot",
    "premise",
    "scenery",
    "script",
)
WORDS = (
    (
        "awful",
        "boring",
        "clumsy",
        "dreary",
        "dull",
        "flat",
        "lazy",
        "messy",
        "stale",
        "tedious",
    ),
    (
        "brilliant",
        "charming",
        "clever",
        "elegant",
        "fresh",
        "gripping",
        "moving",
        "superb",
        "tender",
        "witty",
    ),
)
VERBS = ("was", "seemed", "felt", "remained")
NEGATIONS = ("not", "never", "hardly")
DEGREES = ("very", "really", "quite", "truly")
OPENINGS = (
    ("in", "the", "end"),
    ("to", "be", "honest"),
    ("for", "once"),
    ("this", "time"),
    ("all", "told"),
)
ENDINGS = (
    ("to", "me"),
    ("from", "start", "to", "finish"),
    ("most", "of", "the", "time"),
    ("for", "two", "long", "hours"),
)
CONCESSIONS = ("although", "though", "while")


@contextlib.contextmanager
def open_digits(_: Path, __: Log) -> Iterator[PictureSet[LabelledImages]]:
    """The digits in three fixed splits, each with its share of every class."""
    # takes a second, and is needed only to prepare
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (
        np.rint(images * (255.0 / HIGHEST_LEVEL)).astype(np.uint8).reshape(-1, 8, 8, 1)
    )
    rest, test = hold_out(labels, TEST_DIGITS / len(labels))
    stay, held_out = hold_out(labels[rest], VALIDATION_DIGITS / len(rest))
    splits = {"train": rest[stay], "validation": rest[held_out], "test": test}
    yield PictureSet(
        tuple(str(digit) for digit in range(10)),
        (8, 8, 1),
        {
            split: LabelledImages(labels[numbers], images[numbers].__getitem__)
            for split, numbers in splits.items()
        },
    )


@contextlib.contextmanager
def open_shapes(_: Path, __: Log) -> Iterator[PictureSet[Examples]]:
    """The three splits, the same scenes every time."""
    splits = {
        split: Examples(count, draw_scenes(split))
        for split, count in NUM_SCENES.items()
    }
    yield PictureSet(
        SHAPE_CLASSES, (SCENE_SIZE, SCENE_SIZE, 3), splits, (SCENE_SIZE, SCENE_SIZE)
    )


def draw_scenes(split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draws the scenes of a split: images uint8 (48, 48, 3) and classes uint8 (48, 48).
    Shapes lie over one another in the order drawn, turned at random; along the rim of
    each runs a line that belongs to no class, as in PASCAL VOC.
    """
    generator = np.random.default_rng(SEEDS[split])
    for _ in range(NUM_SCENES[split]):
        image, labels = _ground(generator), np.zeros((SCENE_SIZE, SCENE_SIZE), np.uint8)
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
    angle, wavelength = generator.uniform(0, np.pi), generator.uniform(6, 16)
    wave = np.sin(
        2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / wavelength
        + generator.uniform(0, 6)
    )
    return (
        generator.uniform(40, 130, 3) + generator.uniform(10, 30, 3) * wave[..., None]
    )


def _depth(shape: str, generator: np.random.Generator) -> np.ndarray:
    """Returns the depth of each pixel inside a shape, in pixels; negative outside."""
    centre, radius = (
        generator.uniform(0, SCENE_SIZE, 2),
        generator.uniform(SMALLEST_RADIUS, LARGEST_RADIUS),
    )
    angle = generator.uniform(0, 2 * np.pi)
    down, right = np.mgrid[:SCENE_SIZE, :SCENE_SIZE] - centre[:, None, None]
    x, y = (
        right * np.cos(angle) + down * np.sin(angle),
        down * np.cos(angle) - right * np.sin(angle),
    )
    if shape == "disc":
        return radius - np.hypot(x, y)
    if shape == "square":
        return radius * 0.8 - np.maximum(np.abs(x), np.abs(y))
    if shape == "triangle":
        sides = [
            x * np.cos(turn) + y * np.sin(turn)
            for turn in (np.pi / 2, np.pi * 7 / 6, np.pi * 11 / 6)
        ]
        return radius * 0.6 - np.max(sides, axis=0)
    bars = [
        np.minimum(radius - np.abs(a), radius * 0.35 - np.abs(b))
        for a, b in ((x, y), (y, x))
    ]
    return np.max(bars, axis=0)


@contextlib.contextmanager
def open_photos(_: Path, __: Log) -> Iterator[Splits]:
    """The three splits, the same clips every time."""
    numbers = itertools.count()
    films = {
        split: photo_clips(split, num_frames=NUM_FRAMES, frame_size=FRAME_SIZE)
        for split in SPLITS
    }
    yield {
        split: [Clip(f"photo clip {next(numbers)}", film) for film in films[split]]
        for split in SPLITS
    }


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
    photos = [
        np.asarray(Image.fromarray(photo).convert("L"))
        for photo in load_sample_images().images
    ]
    tiles = [
        _tile(photo, *place)
        for photo, places in zip(photos, TILES[split], strict=True)
        for place in places
    ]
    for index in range(NUM_CLIPS[split]):
        yield _film(
            tiles[index % len(tiles)],
            generator,
            num_frames=num_frames,
            frame_size=frame_size,
        )


def _tile(photo: np.ndarray, row: int, column: int) -> np.ndarray:
    top, left = row * TILE_HEIGHT, column * TILE_WIDTH
    return photo[top : top + TILE_HEIGHT, left : left + TILE_WIDTH]


def _film(
    tile: np.ndarray,
    generator: np.random.Generator,
    *,
    num_frames: int,
    frame_size: int,
) -> np.ndarray:
    start, stop = (_random_view(tile.shape, generator) for _ in range(2))
    # At most a third of the way to the second view: a pan of about two pixels a frame,
    # as a hand-held camera makes.
    fractions = np.linspace(0.0, 1.0 / 3.0, num_frames)
    picture = Image.fromarray(tile)
    return np.stack(
        [
            _look(picture, start + fraction * (stop - start), frame_size)
            for fraction in fractions
        ]
    )


def _random_view(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """A square (top, left, side) inside a picture of the given shape."""
    side = generator.uniform(SMALLEST_VIEW, LARGEST_VIEW)
    return np.array(
        [
            generator.uniform(0, shape[0] - side),
            generator.uniform(0, shape[1] - side),
            side,
        ]
    )


def _look(picture: Image.Image, view: np.ndarray, frame_size: int) -> np.ndarray:
    top, left, side = view
    box = (left, top, left + side, top + side)
    return np.asarray(
        picture.resize((frame_size, frame_size), Image.Resampling.BILINEAR, box=box)
    )


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
    generator, seen = np.random.default_rng(VERDICT_SEED), set()

    def draw(number: int) -> Labelled:
        return _sentence(generator, number % 2)

    sizes = NUM_VERDICTS.items()
    yield TextSet(
        SENTIMENTS,
        {
            split: distinct(draw, size, seen, key=lambda one: one.text)
            for split, size in sizes
        },
    )


def distinct(
    draw: Callable[[int], T], count: int, seen: set[str], *, key: Callable[[T], str]
) -> list[T]:
    """Draws so many examples, given the number of those before; none has a text of
    ``seen``, which grows by theirs."""
    examples: list[T] = []
    while len(examples) < count:
        example = draw(len(examples))
        if key(example) not in seen:
            seen.add(key(example))
            examples.append(example)
    return examples


def _sentence(generator: np.random.Generator, label: int) -> Labelled:
    topics = generator.choice(len(TOPICS), 2, replace=False)
    main, other = (
        _clause(generator, TOPICS[topic], label ^ side)
        for side, topic in enumerate(topics)
    )
    words = main
    if generator.random() >= ONE_CLAUSE:
        concession = pick(generator, CONCESSIONS)
        forms = (
            (concession, *other, ",", *main),
            (*main, ",", concession, *other),
            (*other, ",", "but", *main),
        )
        words = forms[generator.integers(len(forms))]
    if generator.random() < ADORNED:
        words = (*pick(generator, OPENINGS), ",", *words)
    return Labelled(" ".join((*words, ".")), label)


def _clause(generator: np.random.Generator, topic: str, praise: int) -> tuple[str, ...]:
    """The words of a clause that praises its topic, or not."""
    negated = int(generator.random() < NEGATED)
    negation = (pick(generator, NEGATIONS),) if negated else ()
    degree = (pick(generator, DEGREES),) if generator.random() < ADORNED else ()
    ending = pick(generator, ENDINGS) if generator.random() < ADORNED else ()
    return (
        "the",
        topic,
        pick(generator, VERBS),
        *negation,
        *degree,
        pick(generator, WORDS[praise ^ negated]),
        *ending,
    )


def pick(generator: np.random.Generator, choices: Sequence[T]) -> T:
    """Draws one of the choices."""
    return choices[int(generator.integers(len(choices)))]


# Their fingerprints change with this file.
DIGITS = Source(fingerprint_program(__file__, "scikit-learn"), open_digits)
SHAPES = Source(fingerprint_program(__file__, "numpy"), open_shapes)
PHOTOS = Source(fingerprint_program(__file__, "scikit-learn", "pillow"), open_photos)
VERDICTS = Source(fingerprint_program(__file__), open_verdicts)
