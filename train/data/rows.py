"""Rows of TSV, CSV and JSONL files, and their splits. Errors name the line."""

import csv
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..config.errors import UserError, one_line
from ..system.files import open_regular, read_regular, strict_json
from .files import (
    KNOWN,
    Log,
    check_no_split,
    check_one_name,
    likely_splits,
    three_splits,
)

T = TypeVar("T")
SUFFIXES = (".tsv", ".csv", ".jsonl")
# Files that may be a split which is not read.
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz")
TABULAR = (*SUFFIXES, *PACKED, ".json", ".parquet", ".arrow", ".xlsx", ".txt")
SHOWN = 10  # columns that a message lists
# of CSV: Python's default of 131,072 letters is shorter than long reviews
LONGEST_FIELD = 2**31 - 1
SURROGATES = re.compile("[\\ud800-\\udfff]")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


class Labelled(NamedTuple):
    """A text, in a set of pairs the second text, and the number of its class."""

    text: str
    second: str
    label: int


class TextSet(NamedTuple):
    """Texts of a source: train, and optionally test and validation. All are pairs of
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


def decoded(content: bytes, *, where: str) -> str:
    """Decodes UTF-8 text, without a byte order mark. Zero bytes, as in UTF-16, are
    an error too."""
    try:
        # Files that were put one behind another have marks at other lines too.
        text = content.decode("utf-8-sig")
        if "\0" in text:
            raise ValueError("it has a zero byte")
    except ValueError as error:
        raise UserError(
            f"{where} is not UTF-8 text ({error}); convert the file to UTF-8"
        ) from error
    return text


def read_text(path: Path, *, where: str, mend: str = "name another file") -> str:
    """Reads a regular file of UTF-8 text."""
    return decoded(read_regular(path, where=where, mend=mend), where=where)


def json_of(text: str, *, where: str) -> Any:
    """Returns the value of a JSON text, without lone surrogates."""
    try:
        value = strict_json(text)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise UserError(
            f"{where} is not valid JSON ({one_line(error)}); correct it, or copy it"
            " again"
        ) from error
    return value


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
            yield decoded(line, where=f"{where} line {number}")


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
    object a line. Errors name the file by ``where``, or else by its path. ``hint`` is
    the way out where columns are missing.
    """
    where = where or str(path)
    read = json_lines if path.suffix.lower() == ".jsonl" else _table_lines
    for fields, place in read(path, where):
        if not isinstance(fields, dict):
            raise UserError(f"{place} is not a JSON object; correct the line")
        missing = [column for column in columns if column not in fields]
        if missing:
            raise UserError(
                f"{place} has no column {', '.join(missing)}; its columns are"
                f" {', '.join(list(fields)[:SHOWN])} (separated by commas in a .csv, by"
                f" tabs in a .tsv){hint}"
            )
        yield Row(place, fields)


def split_files(
    root: Path, suffixes: Sequence[str] = SUFFIXES, log: Log = lambda _: None
) -> dict[str, Path]:
    """Returns the file of each split: train is a root that is a file, or the only file
    of a folder. Else the files of a folder are named after splits. The log has the
    number of files that are not read.
    """
    wanted = (
        f"give a {' or '.join(suffixes)} file, or a folder with train{suffixes[0]}, and"
        " optionally test and validation"
    )
    files = [root] if root.is_file() else sorted(root.iterdir())
    shown = [file for file in files if not file.name.startswith(".")]
    folders = [file for file in shown if file.is_dir()]
    tables = [file for file in shown if file.suffix.lower() in TABULAR] + folders
    ours: list[Path] = []
    for file in shown:
        if file.suffix.lower() in suffixes and file not in folders:
            ours.append(file)
    splits: dict[str, str] = {}
    for file in ours:
        if file.stem.lower() in KNOWN:
            splits[file.name] = KNOWN[file.stem.lower()]
    if len(ours) == 1 and (ours == [root] or likely_splits(ours[0].stem) <= {"train"}):
        splits = {ours[0].name: "train"}
    check_one_name(splits)
    check_no_split((file.name for file in tables if file.name not in splits), wanted)
    if "train" not in splits.values():
        raise UserError(f"holds no train file; {wanted}")
    unread = [file.name for file in shown if file.name not in splits]
    if unread:
        log(f"  passing over {len(unread)} other file(s), as '{unread[0]}'")
    return {splits[file.name]: file for file in ours if file.name in splits}


def split_rows(
    splits: Mapping[str, Sequence[T]], share: float, labels: Mapping[str, np.ndarray]
) -> dict[str, Sequence[T]]:
    """Returns the rows of `three_splits`."""
    places = three_splits(labels, share)
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


def _table_lines(path: Path, where: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yields the fields of each line of a table by column, and its place."""
    csv.field_size_limit(LONGEST_FIELD)
    # A space before a quote would make the quote a part of the text.
    style: Any = {"skipinitialspace": True}
    if path.suffix.lower() == ".tsv":
        style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.DictReader(lines_of(path, where), strict=True, **style)
    try:
        for fields in reader:
            values = list(fields.values())
            header = reader.fieldnames or ()
            if len(fields) != len(header) or None in values or values == header:
                raise ValueError(f"it has not one value for each of {header}")
            yield fields, f"{where} line {reader.line_num}"
    except (csv.Error, ValueError) as error:
        raise UserError(
            f"{where} line {reader.reader.line_num} cannot be read ({error}); correct"
            " it, and save it with the line ends of today"
        ) from error
