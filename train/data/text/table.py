"""Texts of the user's in a table: any TSV, CSV or JSONL with a column for the text and one for the label."""

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from train.data.fingerprint import fingerprint_files
from train.data.source import Log
from train.data.split_folders import looks_like
from train.data.text.originals import Labelled, TextSet, checked
from train.data.text.rows import SUFFIXES, Row, RowFile, read_rows
from train.errors import UserError

__all__ = ["ROOT", "Columns", "fingerprint_table", "open_table"]

ROOT = (
    "a TSV, CSV or JSONL file, or a folder with one called train, and where there are any with one called test and one "
    "called validation (or dev)"
)
NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
OTHER_SUFFIXES = (".json", ".parquet", ".txt")  # of tables that are not read
FIRST_LINES = (".tsv line 1", ".csv line 1")  # where a header may be read as a row
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")  # a label that is put in order by its value


class Columns(NamedTuple):
    """The columns of the text, the label, and the second text of a pair: by name, or without a header by number."""

    text: str = "text"
    label: str = "label"
    second: str | None = None


def fingerprint_table(root: Path, columns: Columns = Columns()) -> str:  # noqa: B008 (immutable)
    """Fingerprints the files and the choice of columns.

    Raises:
      UserError: if there are none, or two of one split.
    """
    files = fingerprint_files(_find(root).values(), root=root if root.is_dir() else root.parent)
    return hashlib.sha256(f"{files}\0{columns!r}".encode()).hexdigest()[:12]


@contextlib.contextmanager
def open_table(root: Path, log: Log, columns: Columns = Columns()) -> Iterator[TextSet]:  # noqa: B008 (immutable)
    """Reads every file. Classes are the labels of the train file: by value where all are numbers, else by name.

    Raises:
      UserError: for a file that cannot be read or is not UTF-8, a missing column, a header that is read as a row, an
        empty text or label, and a label that the train file does not have; it names file and line.
    """
    del log  # what is wrong with a table is an error
    found = {
        split: _read(RowFile(str(path), path.suffix, _opener(path)), columns) for split, path in _find(root).items()
    }
    _refuse_header(found["train"])
    class_names = _class_names({label for *_, label, _ in found["train"]}, root)
    numbers = {name: number for number, name in enumerate(class_names)}
    splits = {split: [_labelled(*record, numbers) for record in records] for split, records in found.items()}
    yield TextSet(class_names, splits, pairs=columns.second is not None)


def _find(root: Path) -> dict[str, Path]:
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {ROOT}")
    if root.is_file():
        if root.suffix not in SUFFIXES:
            raise UserError(f"data.root={root} ends in none of {', '.join(SUFFIXES)}; give {ROOT}")
        return {"train": root}
    found = {}
    for split, names in NAMES.items():
        files = [root / f"{name}{suffix}" for name in names for suffix in SUFFIXES]
        files = [file for file in files if file.is_file()]
        if len(files) > 1:
            raise UserError(f"data.root={root} holds {' and '.join(file.name for file in files)}; keep one of them")
        if files:
            found[split] = files[0]
    _check_others(root, found)
    if "train" not in found:
        raise UserError(f"data.root={root} holds no train.tsv, train.csv or train.jsonl; give {ROOT}")
    return found


def _check_others(root: Path, found: dict[str, Path]) -> None:
    """Refuses files that look like splits and would be left out in silence, their split cut from train."""
    for file in sorted(root.iterdir()):
        tabular = file.suffix.lower() in (*SUFFIXES, *OTHER_SUFFIXES) and not file.is_dir()
        split = looks_like(PurePosixPath(file.name)) if tabular else None
        if split and split not in found and file not in found.values():
            raise UserError(f"data.root={root}: '{file.name}' looks like {split}, and cannot be read; give {ROOT}")


def _opener(path: Path) -> functools.partial:
    return functools.partial(path.open, "rb")


def _read(file: RowFile, columns: Columns) -> list[tuple[str, str, str, str]]:
    """Place, text, label and second text of every row."""
    wanted = [column for column in (columns.text, columns.label, columns.second) if column is not None]
    records = []
    for row in read_rows(file, wanted, numbered=True):
        second = "" if columns.second is None else _text(row, columns.second)
        records.append((row.where, _text(row, columns.text), _label(row, columns.label), second))
    if not records:
        raise UserError(f"{file.where} holds no rows; give at least one")
    return records


def _refuse_header(records: list[tuple[str, str, str, str]]) -> None:
    """Refuses a first line that was read as a row, as columns are numbers, and has a label that no other row has."""
    (where, text, first, _), *others = records
    if where.endswith(FIRST_LINES) and others and all(first != label for _, _, label, _ in others):
        raise UserError(
            f"{where} looks like a header: no other row has the label {first!r}; give columns by their names, as "
            f"{text!r} and {first!r}, or if it is a row move it further down"
        )


def _text(row: Row, column: str) -> str:
    text = row.fields[column]
    if not isinstance(text, str):
        raise UserError(f"{row.where}: {column!r} must be a text, got {text!r}; mend the line")
    return checked(text, where=row.where)


def _label(row: Row, column: str) -> str:
    label = row.fields[column]
    if not isinstance(label, str | int) or not str(label).strip():
        raise UserError(f"{row.where}: {column!r} must be the name or number of a class, got {label!r}; mend the line")
    return str(label).strip()


def _class_names(names: set[str], root: Path) -> tuple[str, ...]:
    if len(names) < 2:
        raise UserError(f"data.root={root}: train has texts of one class alone ({names.pop()}); give at least two")
    if not all(NUMBER.fullmatch(name) for name in names):
        return tuple(sorted(names))
    by_value: dict[Decimal, str] = {}
    for name in sorted(names):
        if (other := by_value.setdefault(Decimal(name), name)) != name:
            raise UserError(f"data.root={root}: train has the labels {other} and {name}, one number; write it one way")
    return tuple(by_value[value] for value in sorted(by_value))


def _labelled(where: str, text: str, name: str, second: str, numbers: dict[str, int]) -> Labelled:
    if name not in numbers:
        raise UserError(f"{where} has label {name!r}, which train does not have; its classes are {', '.join(numbers)}")
    return Labelled(text, numbers[name], second)
