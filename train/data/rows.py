"""Labelled texts, and the rows of TSV, CSV and JSONL files that hold them; what is wrong with a row names its line."""

import csv
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from ..config.errors import UserError

SUFFIXES = (".tsv", ".csv", ".jsonl")
SHOWN = 10  # columns that a message lists
LONGEST_FIELD = 2**31 - 1  # of CSV: Python's own 131,072 letters are fewer than a long review has
MOST_DIGITS = 20  # of an integer in JSON
LARGEST_FLOAT = 3.4e38  # of a number in JSON: float32 holds no larger one
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


class Labelled(NamedTuple):
    """A text as it was written, the number of its class, and in a set of pairs the second text."""

    text: str
    label: int
    second: str = ""


class TextSet(NamedTuple):
    """Texts of a source: train, and test and validation where it has them; all are pairs of texts, or none is.

    The order of texts does not depend on how the files are packed.
    """

    class_names: tuple[str, ...]
    splits: Mapping[str, Sequence[Labelled]]
    pairs: bool = False


class RowFile(NamedTuple):
    """A file of rows: what to call it in messages, its suffix, and how to open it."""

    where: str
    suffix: str
    open: Callable[[], IO[bytes]]


class Row(NamedTuple):
    """A row: what to call its place, and its fields by the name of their column."""

    where: str
    fields: Mapping[str, Any]


def without_breaks(text: str) -> str:
    """The text with a space for each line break of HTML."""
    return BREAK.sub(" ", text)


def is_empty(text: str) -> bool:
    """Returns whether a text has nothing but white space and line breaks of HTML."""
    return not without_breaks(text).strip()


def is_whole(text: str) -> bool:
    """Returns whether a text has no half of a surrogate pair, which JSON and command lines can hold, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def decoded(content: bytes, *, where: str, first_line: int = 1) -> str:
    """The content as UTF-8 text, without a byte order mark; zero bytes, as in UTF-16, are refused too."""
    try:
        text = content.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = first_line + content[: error.start].count(b"\n")
        raise UserError(
            f"{where} is not UTF-8: byte {content[error.start]:#04x} in line {line}; convert the file to UTF-8"
        ) from error
    if "\0" in text:
        line = first_line + text[: text.index("\0")].count("\n")
        raise UserError(f"{where} is no UTF-8 text: it holds a zero byte in line {line}; convert the file to UTF-8")
    return text


def parse_json(text: str) -> Any:
    """Parses JSON; repeated names and numbers beyond 64-bit integers or float32 raise a ValueError."""
    return json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_number)


def checked(text: str, *, where: str) -> str:
    """The text, which must be more than white space and line breaks of HTML."""
    if is_empty(text):
        raise UserError(f"{where} has an empty text; take it away or copy the original again")
    return text


def read_rows(file: RowFile, columns: Sequence[str], *, numbered: bool = False) -> Iterator[Row]:
    """Reads a file: TSV and CSV with a header, TSV without quoting; JSONL with an object a line; no blank lines.

    With ``numbered``, TSV and CSV may lack a header: ``columns`` that are all numbers then count from 0, unless they
    are names of the first line.
    """
    lines = _lines(file)
    return _objects(file, lines, columns) if file.suffix == ".jsonl" else _records(file, lines, columns, numbered)


def _lines(file: RowFile) -> Iterator[str]:
    """Lines with their ends. They end at a newline alone: texts hold the other characters that Python splits at."""
    try:
        with file.open() as content:
            for number, line in enumerate(content, start=1):
                yield decoded(line, where=file.where, first_line=number)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # zipfile raises the last over passwords, and a kind of it over methods of packing that it does not know.
        raise UserError(f"{file.where} cannot be read ({error}); copy it again") from error


def _records(file: RowFile, lines: Iterator[str], columns: Sequence[str], numbered: bool) -> Iterator[Row]:
    header: list[str] | None = None
    for number, fields in _tabbed(lines) if file.suffix == ".tsv" else _quoted(file, lines):
        if not fields:
            continue
        where = f"{file.where} line {number}"
        if header is None:
            header, is_row = _header(fields, columns, where, numbered)
            if not is_row:
                continue
        elif fields == header:
            raise UserError(f"{where} is the header again; take the line away")
        if len(fields) != len(header):
            raise UserError(f"{where} has {len(fields)} field(s), the header has {len(header)}; mend the line")
        yield Row(where, dict(zip(header, fields, strict=True)))
    if header is None:
        raise UserError(f"{file.where} is empty; it must begin with a header that has {_listed(columns)}")


def _tabbed(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        content = line.removesuffix("\n").removesuffix("\r")
        yield number, content.split("\t") if content else []


def _quoted(file: RowFile, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    reader, number = csv.reader(lines, strict=True), 1
    try:
        for fields in reader:
            yield number, fields
            number = reader.line_num + 1  # a quoted field may hold line breaks: a row is known by its first line
    except csv.Error as error:
        raise UserError(f"{file.where} line {number} cannot be read as CSV ({error}); mend the line") from error


def _header(fields: list[str], columns: Sequence[str], where: str, numbered: bool) -> tuple[list[str], bool]:
    """Names of the columns, and whether they are numbers, because the first line is a row."""
    is_row = numbered and all(column.isdecimal() for column in columns) and not set(columns) <= set(fields)
    names = [str(number) for number in range(len(fields))] if is_row else fields
    repeated = {name for name in names if names.count(name) > 1} & set(columns)
    if repeated:
        raise UserError(f"{where} names the column {repeated.pop()!r} twice; rename one")
    way_out = "; where there is no header, give all columns as numbers, from 0" if numbered and not is_row else ""
    if len(fields) == 1 and len(columns) > 1:
        way_out = "; the columns of a .csv are separated by commas, those of a .tsv by tabs"
    _require(names, columns, where, way_out)
    return names, is_row


def _objects(file: RowFile, lines: Iterator[str], columns: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file.where} line {number}"
        try:
            fields = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} cannot be read as JSON ({error}); mend the line") from error
        if not isinstance(fields, dict):
            raise UserError(f"{where} is no JSON object with {_listed(columns)}; mend the line")
        _require(list(fields), columns, where)
        for column in columns:
            if isinstance(fields[column], str) and not is_whole(fields[column]):
                raise UserError(f"{where}: {column!r} has half a character, {fields[column]!a}; mend the line")
        yield Row(where, fields)


def _require(names: list[str], columns: Sequence[str], where: str, way_out: str = "") -> None:
    if missing := [column for column in columns if column not in names]:
        several = "s" if len(missing) > 1 else ""
        shown = f"{_listed(names[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
        raise UserError(f"{where} has no column{several} {_listed(missing)}; its columns are {shown}{way_out}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return fields


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS or abs(number := int(digits)) >= 2**63:
        raise ValueError(f"the number {digits:.20}... is too large")
    return number


def _number(digits: str) -> float:
    if abs(number := float(digits)) > LARGEST_FLOAT:
        raise ValueError(f"the number {digits:.20} is too large")
    return number


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
