"""What a source of scenes hands over: images, each with a map of classes; and how files become both."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from train.data.image_files import ImageFile
from train.data.picture_files import decode_in_order, levels, stored_numbers
from train.data.pictures import NOT_COUNTED, PictureSet, PictureSplit
from train.errors import UserError

__all__ = ["ClassTable", "SceneFiles", "class_table", "scenes_from_files"]


class SceneFiles(NamedTuple):
    """The files of one scene."""

    image: ImageFile
    labels: ImageFile


@dataclasses.dataclass(frozen=True)
class ClassTable:
    """Which class each number of a file of labels stands for.

    Attributes:
      classes: Class of every number, uint8 (256,); `NOT_COUNTED` where there is none.
      known: Whether a number may occur, bool (256,).
      said: The numbers that may, in words.
    """

    classes: np.ndarray
    known: np.ndarray
    said: str


def class_table(classes: Mapping[int, int], *, uncounted: Sequence[int], said: str) -> ClassTable:
    """Builds a table from the class of each number that has one, and the numbers that have none."""
    table, known = np.full(256, NOT_COUNTED, np.uint8), np.zeros(256, bool)
    table[list(classes)] = list(classes.values())
    known[[*classes, *uncounted]] = True
    return ClassTable(table, known, said)


def scenes_from_files(
    splits: Mapping[str, Sequence[SceneFiles]],
    tables: Mapping[ImageFile, ClassTable] | ClassTable,
    class_names: tuple[str, ...],
    *,
    root: Path,
) -> PictureSet:
    """The scenes of files: images in colour, numbers looked up in a table; all of one size.

    Args:
      splits: The files of each split.
      tables: How to read each file of labels, or all of them.
      class_names: Names of the classes.
      root: The folder or archive that holds the files.

    Raises:
      UserError: for a file that cannot be used, now for the first and for others when they are read; it names the file.
    """
    first = splits["train"][0].image
    height, width, _ = next(decode_in_order([first], _colours, root=root, what="image")).shape
    reader = _Reader(first, (height, width), tables, root)
    pictures = {split: PictureSplit(len(files), reader.read(files)) for split, files in splits.items()}
    return PictureSet(class_names, (height, width, 3), (height, width), pictures)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads the scenes of one root, which all have the size of the first."""

    first: ImageFile
    size: tuple[int, int]
    tables: Mapping[ImageFile, ClassTable] | ClassTable
    root: Path

    def read(self, scenes: Sequence[SceneFiles]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        label_files = {scene.labels.path for scene in scenes}

        def convert(file: ImageFile, picture: Image.Image) -> np.ndarray:
            return stored_numbers(picture) if file.path in label_files else _colours(file, picture)

        in_turn = list(itertools.chain.from_iterable(scenes))
        arrays = decode_in_order(in_turn, convert, root=self.root, what="image")
        for scene, image, numbers in zip(scenes, arrays, arrays, strict=True):
            self._check_size(scene.image, image)
            self._check_size(scene.labels, numbers)
            yield image, self._classes(scene.labels, numbers)

    def _check_size(self, file: ImageFile, pixels: np.ndarray) -> None:
        if pixels.shape[:2] != self.size:
            raise UserError(
                f"data.root={self.root}: '{file.path}' is {pixels.shape[1]}x{pixels.shape[0]}, but "
                f"'{self.first.path}' is {self.size[1]}x{self.size[0]}; bring all images and labels to one size"
            )

    def _classes(self, file: ImageFile, numbers: np.ndarray) -> np.ndarray:
        table = self.tables if isinstance(self.tables, ClassTable) else self.tables[file]
        unknown = ~table.known[numbers]
        if unknown.any():
            row, column = np.argwhere(unknown)[0]
            raise UserError(
                f"data.root={self.root}: '{file.path}' holds the label {numbers[row, column]} at row {row}, column "
                f"{column}; labels are {table.said}"
            )
        return table.classes[numbers]


def _colours(_: ImageFile, picture: Image.Image) -> np.ndarray:
    image = levels(picture)
    return np.broadcast_to(image, (*image.shape[:2], 3))
