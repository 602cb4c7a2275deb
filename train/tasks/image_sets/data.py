"""Sets of grey images from a few classes: images prepared once and kept in memory,
sets drawn by seed and step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import UInt8

from ...config.errors import UserError, option_text
from ...data import generated
from ...data.class_folders import LAYOUTS, open_class_folders
from ...data.files import SPLITS, Log, fingerprint_below
from ...data.pictures import (
    PICTURES,
    LabelledImages,
    PictureData,
    PictureSet,
    brought_together,
    fields_json,
    picture_records,
    split_images,
)
from ...data.prepared import (
    Originals,
    Source,
    by_step,
    open_prepared,
    prepare_from,
    read_ahead,
)
from .options import SetConfig

# Of sets that floors are fitted to and that are evaluated. Each split has its own
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
        return fields_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote. Unknown fields are a TypeError."""
        return cls(**{**values, "class_names": tuple(values["class_names"])})


class SetData:
    """Images of every split in memory, and sets of them. No set has an image twice."""

    def __init__(self, pictures: PictureData, config: SetConfig):
        names = pictures.class_names
        self.spec = SetSpec(config.size, float(pictures.std[0]), names)
        self._classes = config.classes
        self._each = config.set_size // config.classes
        if self._classes > len(names):
            raise UserError(
                f"{option_text('data.classes', self._classes)} is more than the"
                f" {len(names)} there are"
            )
        self._images: dict[str, np.ndarray] = {}
        self._members: dict[str, list[np.ndarray]] = {}
        for split in SPLITS:
            images, labels = pictures.whole(split)
            self._images[split] = images.reshape(len(images), -1)
            members = [np.flatnonzero(labels == place) for place in range(len(names))]
            self._members[split] = members
            least = min(members, key=len)
            if len(least) < self._each:
                raise UserError(
                    f"a class has {len(least)} images in {split}, a set takes"
                    f" {self._each} of a class; lower {option_text('data.set_size')},"
                    f" raise {option_text('data.validation_share')}, or give more"
                )

    def num_images(self, split: str) -> int:
        """Returns how many images a split has."""
        return len(self._images[split])

    def by_class(self, split: str) -> list[np.ndarray]:
        """Returns the images of each class, uint8 (images, pixels)."""
        return [self._images[split][numbers] for numbers in self._members[split]]

    def draw(self, split: str, count: int, seed: Any) -> Sets:
        """Draws sets: some classes, and of each as many images, a function of the
        seed."""
        generator = np.random.default_rng(seed)
        members = self._members[split]
        sizes = np.array(list(map(len, members)))
        table = np.stack([np.resize(numbers, sizes.max()) for numbers in members])
        classes = generator.random((count, len(members))).argsort(axis=1)
        classes = classes[:, : self._classes, None]
        order = generator.random((count, self._classes, sizes.max()))
        # beyond the images of a class
        order[np.arange(sizes.max()) >= sizes[classes]] = np.inf
        places = order.argpartition(self._each - 1, axis=-1)[..., : self._each]
        return self._images[split][table[classes, places].reshape(count, -1)]

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
        for start in range(0, len(sets), batch_size):
            yield sets[start : start + batch_size]


def load(config: SetConfig, *, log: Log = print) -> SetData:
    """Opens the images of a configuration, preparing them on first use."""
    return SetData(open_prepared(prepare(config, log=log), PictureData), config)


def prepare(config: SetConfig, *, log: Log = print) -> Path:
    """Prepares the images of a configuration unless they are there, and returns
    their folder."""
    options = ["sets", config.size, f"{config.validation_share:g}"]
    return prepare_from(SETS, config, PICTURES, _records, options=options, log=log)


def _records(
    images: PictureSet[LabelledImages], config: SetConfig, log: Log
) -> Originals:
    shape = (config.size, config.size, 1)
    # as many to validate as to test: a share of the rest may be too few for a set
    chosen = split_images(images, config.validation_share, equal=True)
    return picture_records(brought_together(images, chosen, shape))


SETS: dict[str, Source[PictureSet[LabelledImages]]] = {
    "digits": generated.DIGITS,
    "class_folders": Source(
        fingerprint_below,
        open_class_folders,
        f"the folder or tar archive of images, {LAYOUTS}",
    ),
}
