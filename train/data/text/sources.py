"""Where labelled text may come from: the table of text classification data sets."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from train.data.text import imdb, sst2
from train.data.text.labelled import Labelled

__all__ = ["TEXTS", "TextSource"]


class TextSource(NamedTuple):
    """One text classification data set.

    Attributes:
      classes: Names of the classes, in the order of the labels.
      files: Maps the root to the original files; they are fingerprinted, so changed ones are prepared afresh.
      read: Maps the root to the texts of every split, in an order that does not depend on how the files are packed.
    """

    classes: tuple[str, ...]
    files: Callable[[Path], list[Path]]
    read: Callable[[Path], Mapping[str, list[Labelled]]]


TEXTS: dict[str, TextSource] = {
    "imdb": TextSource(imdb.CLASSES, imdb.imdb_files, imdb.read_imdb),
    "sst2": TextSource(sst2.CLASSES, sst2.sst2_files, sst2.read_sst2),
}
