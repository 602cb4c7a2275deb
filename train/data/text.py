"""Labelled texts: prepared once, out of tables, published files or made-up sentences, and read in batches."""

import contextlib
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import TextConfig
from ..config.errors import UserError, option_text
from . import generated, published_texts
from .files import Log, fingerprint_files, root_error
from .prepare import Kind, Originals, Source, origin, prepare_from
from .reader import Dataset, Records, open_prepared
from .rows import SUFFIXES, Labelled, Row, TextSet, checked, checksum, read_rows, split_files, three_splits
from .splits import SPLITS, check_share

WANTED = "a TSV, CSV or JSONL file, or a folder with one called train, and optionally test and validation"
NUMBER = re.compile(r"-?[0-9]{1,18}")  # labels that all have this form are ordered by value
TEXT = Kind("texts", "2.1.0")


class Columns(NamedTuple):
    """The columns of a table: the text, the label, and the second text of a pair."""

    text: str = TextConfig.text_column
    label: str = TextConfig.label_column
    second: str | None = TextConfig.second_column


class TextBatch(NamedTuple):
    """Texts, their classes, int32 (batch,), and where records are pairs their second texts."""

    texts: list[str]
    labels: np.ndarray
    seconds: list[str] | None = None


class TextData(Dataset[TextBatch]):
    """Prepared texts and their classes; ``checksums`` are of each whole split, before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.class_names: tuple[str, ...] = tuple(self.facts["class_names"])
        self.pairs = bool(self.facts["pairs"])
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def _read(self, records: Records, numbers: list[int]) -> TextBatch:
        rows = records.read(numbers, "text", "second", "label")
        texts, seconds = ([row[column].decode() for row in rows] for column in range(2))
        return TextBatch(texts, np.array([row[2] for row in rows], np.int32), seconds if self.pairs else None)


def load(config: TextConfig, *, log: Log = print) -> TextData:
    """Opens the texts of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), TextData)


def prepare(config: TextConfig, *, log: Log = print) -> Path:
    """Prepares the texts of a configuration unless they are there, and returns their folder."""
    check_share(config.validation_share)
    columns = Columns(config.text_column, config.label_column, config.second_column)
    for name, value in columns._asdict().items():
        if value != Columns._field_defaults[name] and config.source != "table":
            raise UserError(
                f"{option_text(f'data.{name}_column', value)} is for {option_text('data.source', 'table')}; omit it"
            )
    if len(set(columns)) < len(columns):
        names = ", ".join(column for column in columns if column is not None)
        raise UserError(f"the columns of a table must differ, got {names}")
    # Records depend on the share, but for those of sources with a validation split, where it costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(TEXTS | {"table": _table(columns)}, config, TEXT, _records, options=options, log=log)


def _records(texts: TextSet, config: TextConfig, log: Log) -> Originals:
    if "test" not in texts.splits:
        train, share = texts.splits["train"], config.validation_share
        log(f"  no test file: holding out {round(share * len(train))} of {len(train)} texts for it")
    splits = three_splits(texts.splits, config.validation_share, "texts", labels=lambda one: one.label)
    _check_differ(splits["train"], texts.class_names, origin(config))
    _describe(splits, texts.class_names, log, test_is_cut="test" not in texts.splits)
    text = tfds.features.Text()
    checksums = {split: checksum((one.text, one.second, one.label) for one in splits[split]) for split in SPLITS}
    facts = {"class_names": list(texts.class_names), "pairs": texts.pairs, "checksums": checksums}
    records = {split: (text._asdict() for text in splits[split]) for split in SPLITS}
    return Originals({"text": text, "second": text, "label": np.int64}, records, facts)


def _check_differ(train: Sequence[Labelled], class_names: Sequence[str], where: str) -> None:
    if len({(text, second) for text, _, second in train}) < 2:
        raise UserError(f"{where}: all texts of train are the same; give texts that differ")
    if len(labels := {label for _, label, _ in train}) < 2:
        name = class_names[labels.pop()]
        raise UserError(f"{where}: train has texts of one class only ({name}); give at least two")


def _describe(
    splits: Mapping[str, Sequence[Labelled]], class_names: Sequence[str], log: Log, *, test_is_cut: bool
) -> None:
    for split in SPLITS:
        counts = Counter(label for _, label, _ in splits[split])
        named = ", ".join(f"{name}: {counts[number]}" for number, name in enumerate(class_names))
        log(f"  {split}: {len(splits[split])} texts, {named}")
    train, test = ({(text, second) for text, _, second in splits[split]} for split in ("train", "test"))
    if train & test:
        why = "the original has them more than once" if test_is_cut else "as in the original"
        log(f"  {len(train & test)} text(s) occur in both train and test; they are kept, {why}")


@contextlib.contextmanager
def open_table(root: Path, _: Log, *, columns: Columns) -> Iterator[TextSet]:
    """Reads every file. Classes are the labels of the train file: by value if all are integers, else by name."""
    tables = {split: _read(path, columns) for split, path in split_files(root, SUFFIXES).items()}
    class_names = _class_names({_label(row, columns.label) for row in tables["train"]}, root)
    splits = {split: [_labelled(row, columns, class_names) for row in rows] for split, rows in tables.items()}
    yield TextSet(class_names, splits, pairs=columns.second is not None)


def _read(path: Path, columns: Columns) -> list[Row]:
    rows = list(read_rows(path, [column for column in columns if column is not None]))
    if not rows:
        raise UserError(f"{path} has no rows; give at least one")
    return rows


def _fingerprint(root: Path, *, columns: Columns) -> str:
    files = fingerprint_files(split_files(root, SUFFIXES).values(), root=root)
    return hashlib.sha256(f"{files}\0{columns!r}".encode()).hexdigest()[:12]


def _text(row: Row, column: str) -> str:
    text = row.fields[column]
    if not isinstance(text, str):
        raise UserError(f"{row.where}: {column!r} must be a text, got {text!r}; correct the line")
    return checked(text, where=row.where)


def _label(row: Row, column: str) -> str:
    label = row.fields[column]
    if not isinstance(label, str | int) or not str(label).strip():
        raise UserError(
            f"{row.where}: {column!r} must be the name or number of a class, got {label!r}; correct the line"
        )
    return str(label).strip()


def _class_names(names: set[str], root: Path) -> tuple[str, ...]:
    if len(names) < 2:
        raise root_error(root, f": train has texts of one class only ({names.pop()}); give at least two")
    numbers = all(NUMBER.fullmatch(name) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _labelled(row: Row, columns: Columns, class_names: Sequence[str]) -> Labelled:
    text, label = _text(row, columns.text), _label(row, columns.label)
    if label not in class_names:
        raise UserError(f"{row.where} has label {label!r}, which train lacks; its classes are {', '.join(class_names)}")
    second = "" if columns.second is None else _text(row, columns.second)
    return Labelled(text, class_names.index(label), second)


def _table(columns: Columns) -> Source[TextSet]:
    fingerprint = functools.partial(_fingerprint, columns=columns)
    return Source(fingerprint, functools.partial(open_table, columns=columns), WANTED)


TEXTS: dict[str, Source[TextSet]] = {
    "verdicts": generated.VERDICTS,
    "imdb": published_texts.IMDB,
    "sst2": published_texts.SST2,
    "mnli": published_texts.MNLI,
    "table": _table(Columns()),
}
