"""Texts of the user's in a table: any TSV, CSV or JSONL with a column for the text and one for the label."""

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..config.errors import UserError
from .files import Log, fingerprint_files
from .prepare import Source
from .rows import SUFFIXES, Labelled, Row, RowFile, TextSet, checked, read_rows
from .splits import NAMES, looks_like

WANTED = (
    "a TSV, CSV or JSONL file, or a folder with one called train, and where there are any with one called test and one "
    "called validation (or dev)"
)
# The names of splits that are one word: the others are of folders of frames and videos.
FILE_NAMES = {split: [name for name in names if "_" not in name] for split, names in NAMES.items()}
OTHER_SUFFIXES = (".json", ".parquet", ".txt")  # of tables that are not read
FIRST_LINES = (".tsv line 1", ".csv line 1")  # where a header may be read as a row
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")  # a label that is put in order by its value


class Columns(NamedTuple):
    """The columns of the text, the label, and the second text of a pair: by name, or without a header by number."""

    text: str
    label: str
    second: str | None


class Record(NamedTuple):
    """A row: what to call its place, its text, the name of its class, and the second text of a pair."""

    where: str
    text: str
    label: str
    second: str


def table(columns: Columns) -> Source[TextSet]:
    """The source of texts in these columns."""
    return Source(
        functools.partial(_fingerprint, columns=columns), functools.partial(open_table, columns=columns), WANTED
    )


@contextlib.contextmanager
def open_table(root: Path, _: Log, *, columns: Columns) -> Iterator[TextSet]:
    """Reads every file. Classes are the labels of the train file: by value where all are numbers, else by name."""
    tables = {split: _read(path, columns) for split, path in _find(root).items()}
    _refuse_header(tables["train"])
    class_names = _class_names({record.label for record in tables["train"]}, root)
    numbers = {name: number for number, name in enumerate(class_names)}
    splits = {split: [_labelled(record, numbers) for record in records] for split, records in tables.items()}
    yield TextSet(class_names, splits, pairs=columns.second is not None)


def _fingerprint(root: Path, *, columns: Columns) -> str:
    files = fingerprint_files(_find(root).values(), root=root)
    return hashlib.sha256(f"{files}\0{columns!r}".encode()).hexdigest()[:12]


def _find(root: Path) -> dict[str, Path]:
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {WANTED}")
    if root.is_file():
        if root.suffix not in SUFFIXES:
            raise UserError(f"data.root={root} ends in none of {', '.join(SUFFIXES)}; give {WANTED}")
        return {"train": root}
    paths = {}
    for split, names in FILE_NAMES.items():
        files = [root / f"{name}{suffix}" for name in names for suffix in SUFFIXES]
        files = [file for file in files if file.is_file()]
        if len(files) > 1:
            raise UserError(f"data.root={root} holds {' and '.join(file.name for file in files)}; keep one of them")
        if files:
            paths[split] = files[0]
    _check_others(root, paths)
    if "train" not in paths:
        raise UserError(f"data.root={root} holds no train.tsv, train.csv or train.jsonl; give {WANTED}")
    return paths


def _check_others(root: Path, paths: dict[str, Path]) -> None:
    """Refuses files that look like splits and would be left out in silence, their split cut from train."""
    for file in sorted(root.iterdir()):
        tabular = file.suffix.lower() in (*SUFFIXES, *OTHER_SUFFIXES) and not file.is_dir()
        split = looks_like(PurePosixPath(file.name)) if tabular else None
        if split and split not in paths and file not in paths.values():
            raise UserError(f"data.root={root}: '{file.name}' looks like {split}, and cannot be read; give {WANTED}")


def _read(path: Path, columns: Columns) -> list[Record]:
    file = RowFile(str(path), path.suffix, functools.partial(path.open, "rb"))
    records = []
    for row in read_rows(file, [column for column in columns if column is not None], numbered=True):
        second = "" if columns.second is None else _text(row, columns.second)
        records.append(Record(row.where, _text(row, columns.text), _label(row, columns.label), second))
    if not records:
        raise UserError(f"{file.where} holds no rows; give at least one")
    return records


def _refuse_header(records: list[Record]) -> None:
    """Refuses a first line that was read as a row, as columns are numbers, and has a label that no other row has."""
    first, *others = records
    if first.where.endswith(FIRST_LINES) and others and all(first.label != other.label for other in others):
        raise UserError(
            f"{first.where} looks like a header: no other row has the label {first.label!r}; give columns by their "
            f"names, as {first.text!r} and {first.label!r}, or if it is a row move it further down"
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


def _labelled(record: Record, numbers: dict[str, int]) -> Labelled:
    if record.label not in numbers:
        classes = ", ".join(numbers)
        raise UserError(
            f"{record.where} has label {record.label!r}, which train does not have; its classes are {classes}"
        )
    return Labelled(record.text, numbers[record.label], record.second)
