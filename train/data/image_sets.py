"""Sets of grey images from a few classes: images prepared once and kept in memory,
sets drawn by seed and step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import UInt8

from ..config.data import SetConfig
from ..config.errors import UserError, option_text
from . import generated
from .class_folders import CLASS_LAYOUT, open_class_folders
from .files import SPLITS, Log, cut_from_train
from .media import fingerprint_media
from .pictures import (
    PICTURES,
    Examples,
    LabelledImages,
    PictureData,
    PictureSet,
    picture_of,
    picture_records,
)
from .prepare import Originals, Source, origin, prepare_from
from .reader import by_step, open_prepared, read_ahead

# Of sets that floors are fitted to and that are evaluated; each split has its own
# draws.
NUM_SETS = {"train": 2000, "validation": 300, "test": 400}

Sets = UInt8[np.ndarray, "sets tokens pixels"]


class SetSpec(NamedTuple):
    """Properties of the images that a model needs."""

    size: int  # side of an image, in pixels
    pixel_std: float  # standard deviation of the clean train pixels, in [0, 1]
    class_names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {**self._asdict(), "class_names": list(self.class_names)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
        spec = cls(**values)
        return cls(int(spec.size), float(spec.pixel_std), tuple(spec.class_names))


class SetData:
    """Images of every split in memory, and sets of them; no set has an image twice."""

    def __init__(self, pictures: PictureData, config: SetConfig):
        self.spec = SetSpec(config.size, float(pictures.std[0]), pictures.class_names)
        self._classes, self._each = config.classes, config.set_size // config.classes
        self._images, self._members = {}, {}
        for split in SPLITS:
            images, labels = pictures.whole(split)
            self._images[split] = images.reshape(len(images), -1)
            self._members[split] = [
                np.flatnonzero(labels == place)
                for place in range(len(self.spec.class_names))
            ]
            self._check(split)

    def num_images(self, split: str) -> int:
        """Returns how many images a split has."""
        return len(self._images[split])

    def by_class(self, split: str) -> list[np.ndarray]:
        """Returns the images of each class, uint8 (images, pixels)."""
        return [self._images[split][numbers] for numbers in self._members[split]]

    def draw(self, split: str, count: int, seed: Any) -> Sets:
        """Draws sets: some classes, and of each as many images; a function of the
        seed."""
        generator, members = np.random.default_rng(seed), self._members[split]
        sizes = np.array([len(numbers) for numbers in members])
        table = np.stack([np.resize(numbers, sizes.max()) for numbers in members])
        classes = generator.random((count, len(members))).argsort(axis=1)[
            :, : self._classes
        ]
        order = generator.random((*classes.shape, sizes.max()))
        # beyond the images of a class
        order[np.arange(sizes.max()) >= sizes[classes][..., None]] = np.inf
        places = order.argpartition(self._each - 1, axis=-1)[..., : self._each]
        return self._images[split][table[classes[..., None], places].reshape(count, -1)]

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any
    ) -> Iterator[Sets]:
        """Yields batches without end, each a function of the seed and its step."""

        def batch(step: int) -> Sets:
            sets = self.draw(split, batch_size, (seed, step))
            return sets if rows is None else sets[rows]

        return read_ahead(by_step(batch), start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Sets]:
        """Yields the sets of a split that are evaluated, the same ones every time."""
        sets = self.draw(split, NUM_SETS[split], SPLITS.index(split))
        yield from (
            sets[start : start + batch_size]
            for start in range(0, len(sets), batch_size)
        )

    def _check(self, split: str) -> None:
        names, sizes = (
            self.spec.class_names,
            [len(numbers) for numbers in self._members[split]],
        )
        if self._classes > len(names):
            raise UserError(
                f"{option_text('data.classes', self._classes)} is more than the"
                f" {len(names)} there are"
            )
        if (least := min(sizes)) < self._each:
            options = (
                f"{option_text('data.set_size')}, raise"
                f" {option_text('data.validation_share')}"
            )
            raise UserError(
                f"class {names[sizes.index(least)]} has {least} images in the {split}"
                f" split, a set takes {self._each} of a class; lower {options}, or give"
                " more images"
            )


def load(config: SetConfig, *, log: Log = print) -> SetData:
    """Opens the images of a configuration, preparing them on first use."""
    return SetData(open_prepared(prepare(config, log=log), PictureData), config)


def prepare(config: SetConfig, *, log: Log = print) -> Path:
    """Prepares the images of a configuration unless they are there, and returns
    their folder."""
    options = [
        "sets",
        str(config.size),
        *[f"{config.validation_share:g}"] * (config.source != "digits"),
    ]
    return prepare_from(SETS, config, PICTURES, _records, options=options, log=log)


def _records(
    images: PictureSet[LabelledImages], config: SetConfig, log: Log
) -> Originals:
    shape, splits = (config.size, config.size, 1), dict(images.splits)
    chosen = {split: (one, np.arange(len(one.labels))) for split, one in splits.items()}
    if "test" not in chosen:
        one, words = (
            splits["train"],
            ("images", "smaller --data.set-size", images.class_names),
        )
        rest, test = cut_from_train(one.labels, config.validation_share, *words)
        # As many as test has: `three_splits` would hold out a share of the rest, which
        # may be too few for a set.
        stay, held_out = cut_from_train(one.labels[rest], len(test) / len(rest), *words)
        chosen = {
            "train": (one, rest[stay]),
            "validation": (one, rest[held_out]),
            "test": (one, test),
        }
    grey = {
        split: Examples(len(numbers), _resized(one, numbers, shape))
        for split, (one, numbers) in chosen.items()
    }
    return picture_records(
        PictureSet(images.class_names, shape, grey), origin(config), log
    )


def _resized(
    images: LabelledImages, numbers: np.ndarray, shape: tuple[int, int, int]
) -> Iterator[tuple[np.ndarray, int]]:
    for image, label in zip(
        images.read(numbers), images.labels[numbers].tolist(), strict=True
    ):
        yield picture_of(image, shape), label


SETS: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": generated.DIGITS,
    "class_folders": Source(
        fingerprint_media,
        open_class_folders,
        f"the folder or tar archive of images, {CLASS_LAYOUT}",
    ),
}
