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


def read_rows(
    path: Path, columns: Sequence[str], *, where: str | None = None, hint: str = ""
) -> Iterator[Row]:
    """Reads the rows of TSV (without quoting) or CSV with a header, or of JSONL with an
    object a line. Errors name the file by ``where``, or else by its path; ``hint`` is
    the way out where columns are missing.
    """
    where = str(path) if where is None else where
    lines = lines_of(path, where)
    if (suffix := path.suffix.lower()) == ".jsonl":
        return _objects(where, lines, columns, hint)
    return _records(
        where, (_tabbed if suffix == ".tsv" else _quoted)(where, lines), columns, hint
    )


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
    source: str,
    rows: Iterator[tuple[str, list[str]]],
    columns: Sequence[str],
    hint: str,
) -> Iterator[Row]:
    header: list[str] | None = None
    for where, fields in rows:
        if header is None:
            header = fields
            if repeated := {name for name in header if header.count(name) > 1} & set(
                columns
            ):
                raise UserError(
                    f"{where} names the column {repeated.pop()!r} twice; rename one"
                )
            one = len(header) == 1 < len(columns)
            _require(
                header, columns, where, f"; columns {OF_SUFFIXES}" if one else hint
            )
        elif fields == header:
            raise UserError(f"{where} repeats the header; remove the line")
        elif len(fields) != len(header):
            raise UserError(
                f"{where} has {len(fields)} field(s), the header has {len(header)};"
                " correct the line"
            )
        else:
            yield Row(where, dict(zip(header, fields, strict=True)))
    if header is None:
        raise UserError(
            f"{source} is empty; it must begin with a header that has"
            f" {_listed(columns)}"
        )


def _tabbed(source: str, lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(lines, start=1):
        content = line.removesuffix("\n").removesuffix("\r")
        if number == 1 and "\r" in content:
            raise UserError(f"{source} {OLD_LINES}")
        if content:
            yield f"{source} line {number}", content.split("\t")


def _quoted(source: str, lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    # A space before a quote would make the quote a part of the text.
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    number = 1
    try:
        for fields in reader:
            if fields:
                yield f"{source} line {number}", fields
            # a quoted field may hold line breaks: a row is named by its first line
            number = reader.line_num + 1
    except csv.Error as error:
        other = f"line {number} cannot be read as CSV ({error}); correct the line"
        raise UserError(
            f"{source}"
            f" {OLD_LINES if number == 1 and 'new-line' in str(error) else other}"
        ) from error


def _objects(
    source: str, lines: Iterator[str], columns: Sequence[str], hint: str
) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source} line {number}"
        fields = json_of(line, where=where)
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


def _require(names: list[str], columns: Sequence[str], where: str, hint: str) -> None:
    if missing := [column for column in columns if column not in names]:
        shown = f"{_listed(names[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
        s = "s" * (len(missing) > 1)
        raise UserError(
            f"{where} has no column{s} {_listed(missing)}; its columns are"
            f" {shown}{hint}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
