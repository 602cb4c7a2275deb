"""Rows of TSV, CSV and JSONL files, and their splits; errors name the line."""

import csv
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..config.errors import UserError, one_line
from ..system.files import strict_json
from ..system.reading import open_regular, read_regular
from .files import (
    KNOWN,
    check_no_split,
    check_one_name,
    likely_splits,
    root_error,
    three_splits,
)

T = TypeVar("T")
SUFFIXES = (".tsv", ".csv", ".jsonl")
TABULAR = (*SUFFIXES, ".json", ".parquet", ".txt")
SHOWN = 10  # columns that a message lists
# of CSV: Python's default of 131,072 letters is shorter than long reviews
LONGEST_FIELD = 2**31 - 1
OF_SUFFIXES = "of a .csv are separated by commas, of a .tsv by tabs"
OLD_LINES = (
    "ends its lines with carriage returns, as old spreadsheets do; save it with the"
    " line ends of today"
)
SURROGATES = re.compile("[\\ud800-\\udfff]")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


class Labelled(NamedTuple):
    """A text, the number of its class, and in a set of pairs the second text."""

    text: str
    label: int
    second: str = ""


class TextSet(NamedTuple):
    """Texts of a source: train, and optionally test and validation; all are pairs of
    texts, or none is."""

    class_names: tuple[str, ...]
    splits: Mapping[str, Sequence[Labelled]]
    pairs: bool = False


class Row(NamedTuple):
    """A row: its place in messages, and its fields by column."""

    where: str
    fields: Mapping[str, Any]


def without_breaks(text: str) -> str:
    """The text with a space for each line break of HTML."""
    return BREAK.sub(" ", text)


def is_empty(text: str) -> bool:
    """Returns whether a text has only white space and line breaks of HTML."""
    return not without_breaks(text).strip()


def is_whole(text: str) -> bool:
    """Returns whether a text has no lone surrogate, which JSON and command lines can
    hold, but UTF-8 cannot."""
    return not SURROGATES.search(text)


def decoded(content: bytes, *, where: str, first_line: int = 1) -> str:
    """Decodes UTF-8 text, without a byte order mark; zero bytes, as in UTF-16, are
    an error too."""
    try:
        # Files that were put one behind another have marks at other lines too.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + content[: error.start].count(b"\n")
        raise UserError(
            f"{where} is not UTF-8: byte {content[error.start]:#04x} in line {line};"
            " convert the file to UTF-8"
        ) from error
    if "\0" in text:
        line = first_line + text[: text.index("\0")].count("\n")
        raise UserError(
            f"{where} is not UTF-8 text: it has a zero byte in line {line}; convert the"
            " file to UTF-8"
        )
    return text


def read_text(path: Path, *, where: str, mend: str = "name another file") -> str:
    """Reads a regular file of UTF-8 text."""
    return decoded(read_regular(path, where=where, mend=mend), where=where)


def json_of(text: str, *, where: str) -> Any:
    """Returns the value of a JSON text."""
    try:
        return strict_json(text)
    except ValueError as error:
        raise UserError(
            f"{where} is not valid JSON ({one_line(error)}); correct it, or copy it"
            " again"
        ) from error


def checked(text: str, *, where: str) -> str:
    """Returns a text that has more than white space and line breaks of HTML."""
    if is_empty(text):
        raise UserError(
            f"{where} has an empty text; remove it or copy the original again"
        )
    return text


def lines_of(path: Path, where: str) -> Iterator[str]:
    """Yields lines with their ends. Only a newline ends a line: texts hold the other
    characters Python splits at."""
    with open_regular(path, where=where) as content:
        for number, line in enumerate(content, start=1):
            yield decoded(line, where=where, first_line=number)


def json_lines(path: Path, where: str) -> Iterator[tuple[Any, str]]:
    """Yields the value of each line of JSON that is not empty, and its place."""
    for number, line in enumerate(lines_of(path, where), start=1):
        if line.strip():
            place = f"{where} line {number}"
            yield json_of(line, where=place), place


def read_rows(
    path: Path, columns: Sequence[str], *, where: str | None = None, hint: str = ""
) -> Iterator[Row]:
    """Reads the rows of TSV (without quoting) or CSV with a header, or of JSONL with an
    object a line. Errors name the file by ``where``, or else by its path; ``hint`` is
    the way out where columns are missing.
    """
    where = str(path) if where is None else where
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return _objects(path, where, columns, hint)
    return _records(path, where, columns, hint, tabbed=suffix == ".tsv")


def split_files(root: Path, suffixes: Sequence[str] = SUFFIXES) -> dict[str, Path]:
    """Returns the file of each split: train is a root that is a file, or the only file
    of a folder; else the files of a folder are named after splits."""
    wanted = (
        f"give a {' or '.join(suffixes)} file, or a folder with train{suffixes[0]}, and"
        " optionally test and validation"
    )
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise root_error(root, f"ends in none of {', '.join(suffixes)}; {wanted}")
        return {"train": root}
    tables = [
        file
        for file in sorted(root.iterdir())
        if file.suffix.lower() in TABULAR
        and not file.name.startswith(".")
        and not file.is_dir()
    ]
    ours = [file for file in tables if file.suffix.lower() in suffixes]
    stated = {file: KNOWN.get(file.stem.lower()) for file in ours}
    if len(ours) == 1 and likely_splits(ours[0].stem) <= {"train"}:
        stated = {ours[0]: "train"}
    splits = {file: split for file, split in stated.items() if split is not None}
    check_one_name({file.name: split for file, split in splits.items()}, root)
    check_no_split((file.name for file in tables if file not in splits), root, wanted)
    paths = {split: file for file, split in splits.items()}
    if "train" not in paths:
        raise root_error(root, f"holds no train file; {wanted}")
    return paths


def split_rows(
    splits: Mapping[str, Sequence[T]],
    share: float,
    what: str,
    labels: Mapping[str, np.ndarray] | None = None,
    names: Sequence[str] = (),
) -> dict[str, Sequence[T]]:
    """Returns the rows of `three_splits`; without labels they are of one class."""
    labels = labels or {
        split: np.zeros(len(rows), int) for split, rows in splits.items()
    }
    places = three_splits(labels, share, what, "file", names)
    return {
        split: [splits[place][number] for number in numbers]
        for split, (place, numbers) in places.items()
    }


def checksum(rows: Iterable[Iterable[Any]]) -> int:
    """Returns the CRC-32 of rows in their order. It is taken when they are prepared:
    no start reads them all."""
    value = 0
    for row in rows:
        value = zlib.crc32(("\0".join(map(str, row)) + "\n").encode(), value)
    return value


def _records(
    path: Path, source: str, columns: Sequence[str], hint: str, *, tabbed: bool
) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    # A space before a quote would make the quote a part of the text.
    style: Any = {"skipinitialspace": True}
    if tabbed:
        style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.DictReader(lines_of(path, source), strict=True, **style)
    try:
        header = reader.fieldnames or ()
        one = len(header) == 1 < len(columns)
        where = f"{source} line 1"
        _require(header, columns, where, f"; columns {OF_SUFFIXES}" if one else hint)
        if len({*header}) < len(header):
            raise UserError(f"{where} names a column twice; rename one")
        for fields in reader:
            where = f"{source} line {reader.line_num}"
            values = list(fields.values())
            if None in fields or None in values:
                raise UserError(
                    f"{where} has not the {len(header)} fields of the header; correct"
                    " the line"
                )
            if values == header:
                raise UserError(f"{where} repeats the header; remove the line")
            yield Row(where, fields)
    except csv.Error as error:
        line = reader.reader.line_num
        other = f"line {line} cannot be read as CSV ({error}); correct it"
        words = OLD_LINES if "new-line" in str(error) else other
        raise UserError(f"{source} {words}") from error


def _objects(
    path: Path, source: str, columns: Sequence[str], hint: str
) -> Iterator[Row]:
    for fields, where in json_lines(path, source):
        if not isinstance(fields, dict):
            raise UserError(
                f"{where} is not a JSON object with {_listed(columns)}; correct the"
                " line"
            )
        _require(list(fields), columns, where, hint)
        for column in columns:
            if isinstance(fields[column], str) and not is_whole(fields[column]):
                raise UserError(
                    f"{where}: {column!r} has a lone surrogate, {fields[column]!a};"
                    " correct the line"
                )
        yield Row(where, fields)


def _require(
    names: Sequence[str], columns: Sequence[str], where: str, hint: str
) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        more = " and more" if len(names) > SHOWN else ""
        raise UserError(
            f"{where} has no column {_listed(missing)}; its columns are"
            f" {_listed(names[:SHOWN]) or 'none'}{more}{hint}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
