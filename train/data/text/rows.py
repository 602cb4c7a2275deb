"""Rows of TSV, CSV and JSONL files, read line by line from a folder or a zip archive; what is wrong names its line."""

import contextlib
import csv
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from train.data.fingerprint import fingerprint_files
from train.data.text.originals import decoded
from train.data.text.words import is_whole
from train.errors import UserError

__all__ = ["SUFFIXES", "Place", "Row", "RowFile", "fingerprint_rows", "open_rows", "read_rows"]

SUFFIXES = (".tsv", ".csv", ".jsonl")
SHOWN = 10  # columns that a message lists
LONGEST_FIELD = 2**31 - 1  # of CSV: Python's own 131,072 letters are fewer than a long review has


class Place(NamedTuple):
    """Where published files lie.

    Attributes:
      names: Of the files; all must be there.
      folders: Where below a folder they may lie; the first with any of them counts. In a zip archive they lie anywhere.
      wanted: What the root must be, in words.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...]
    wanted: str


class RowFile(NamedTuple):
    """A file of rows: what to call it in messages, its suffix, and how to open it."""

    where: str
    suffix: str
    open: Callable[[], IO[bytes]]


class Row(NamedTuple):
    """A row: what to call its place, and its fields by the name of their column."""

    where: str
    fields: Mapping[str, Any]


def fingerprint_rows(root: Path, place: Place) -> str:
    """Fingerprints those of the files that are there, or the zip archive that holds them.

    Raises:
      UserError: if none is there.
    """
    folder = _folder(root, place)
    if folder is None:
        return fingerprint_files([root], root=root.parent)
    return fingerprint_files([folder / name for name in place.names if (folder / name).exists()], root=folder)


@contextlib.contextmanager
def open_rows(root: Path, place: Place) -> Iterator[dict[str, RowFile]]:
    """Finds the files, each by its name; they can be read while the context lasts.

    Raises:
      UserError: if one is missing.
    """
    folder = _folder(root, place)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            found = {name: _plain(folder / name) for name in place.names if (folder / name).exists()}
        else:
            archive = stack.enter_context(_open_zip(root, place))
            found = {name: file for name in place.names if (file := _packed(archive, name, root))}
        for name in place.names:
            if name not in found:
                raise UserError(f"data.root={folder or root} holds no {name}; give {place.wanted}")
        yield found


def read_rows(file: RowFile, columns: Sequence[str], *, numbered: bool = False) -> Iterator[Row]:
    """Reads a file: TSV and CSV with a header, TSV without quoting; JSONL with an object a line; no blank lines.

    Args:
      file: The file.
      columns: Names of the columns that it must have.
      numbered: Whether TSV and CSV may lack a header: ``columns`` that are all numbers then count from 0, unless
        they are names of the first line.

    Raises:
      UserError: for a file that is damaged or not UTF-8, that lacks one of ``columns``, or that has a line which cannot
        be read; it names file and line.
    """
    lines = _lines(file)
    return _objects(file, lines, columns) if file.suffix == ".jsonl" else _records(file, lines, columns, numbered)


def _folder(root: Path, place: Place) -> Path | None:
    """The folder that holds the files; None where the root is a file."""
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {place.wanted}")
    if root.is_file():
        return None
    for folder in (root / name for name in place.folders):
        if any((folder / name).exists() for name in place.names):
            return folder
    raise UserError(f"data.root={root} holds no {place.names[0]}; give {place.wanted}")


def _plain(path: Path) -> RowFile:
    return RowFile(str(path), path.suffix, lambda: path.open("rb"))


def _open_zip(root: Path, place: Place) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(root)
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(
            f"data.root={root} is neither a folder nor a whole zip archive ({error}); if it was truncated, copy it "
            f"again; give {place.wanted}"
        ) from error


def _packed(archive: zipfile.ZipFile, name: str, root: Path) -> RowFile | None:
    members = [member for member in archive.namelist() if PurePosixPath(member).name == name]
    if not members:
        return None
    member = min(members, key=lambda path: path.count("/"))
    return RowFile(f"{root}: {member}", PurePosixPath(name).suffix, lambda: archive.open(member))


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
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} cannot be read as JSON ({error}); mend the line") from error
        if not isinstance(fields, dict):
            raise UserError(f"{where} is no JSON object with {_listed(columns)}; mend the line")
        _require(fields, columns, where)
        for column in columns:
            if isinstance(fields[column], str) and not is_whole(fields[column]):
                raise UserError(f"{where}: {column!r} has half a character, {fields[column]!a}; mend the line")
        yield Row(where, fields)


def _require(names: Any, columns: Sequence[str], where: str, way_out: str = "") -> None:
    if missing := [column for column in columns if column not in names]:
        several = "s" if len(missing) > 1 else ""
        shown = f"{_listed(list(names)[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
        raise UserError(f"{where} has no column{several} {_listed(missing)}; its columns are {shown}{way_out}")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
