"""SST-2 as GLUE lays it out: {train,dev,test}.tsv, one sentence a line, in a folder or the zip archive."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from train.data.download import Download
from train.data.source import Log
from train.data.text.originals import Labelled, TextSet, checked
from train.data.text.rows import Place, Row, RowFile, fingerprint_rows, open_rows, read_rows
from train.errors import UserError

__all__ = ["CLASSES", "DOWNLOAD", "ROOT", "fingerprint_sst2", "open_sst2"]

CLASSES = ("negative", "positive")
DOWNLOAD = Download("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", "sst2")
FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
ROOT = "the folder of SST-2's train.tsv, dev.tsv and test.tsv, or SST-2.zip, both as GLUE has them"
PLACE = Place(tuple(FILES.values()), (".", "SST-2", "glue/SST-2"), ROOT)

fingerprint_sst2 = functools.partial(fingerprint_rows, place=PLACE)


@contextlib.contextmanager
def open_sst2(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads every split. GLUE keeps its test labels back: dev is the test split then, and train gives validation.

    Raises:
      UserError: for a file that is missing, empty, not UTF-8 or without its columns, and for a line without a sentence
        or whose label is not 0 or 1; it names file and line.
    """
    with open_rows(root, PLACE) as files:
        splits = {split: _sentences(files[FILES[split]]) for split in ("train", "validation")}
        if _labelled(files[FILES["test"]]):
            splits["test"] = _sentences(files[FILES["test"]])
        else:
            log("  test.tsv has no labels, as GLUE gives it out: dev.tsv is the test split, train gives validation")
            splits["test"] = splits.pop("validation")
    yield TextSet(CLASSES, splits)


def _labelled(file: RowFile) -> bool:
    first = next(read_rows(file, ("sentence",)), None)
    return first is None or "label" in first.fields


def _sentences(file: RowFile) -> list[Labelled]:
    rows = read_rows(file, ("sentence", "label"))
    sentences = [Labelled(checked(row.fields["sentence"], where=row.where), _label(row)) for row in rows]
    if not sentences:
        raise UserError(f"{file.where} holds no sentences; copy the original again")
    return sentences


def _label(row: Row) -> int:
    field = row.fields["label"]
    if field not in ("0", "1"):
        raise UserError(f"{row.where} has label {field!r}; a label must be 0 (negative) or 1 (positive)")
    return int(field)
