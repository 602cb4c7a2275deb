"""Labelled texts out of tables and published files (IMDB, SST-2, MultiNLI), prepared
once and read in batches."""

import contextlib
import functools
import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import TextConfig
from ..config.errors import UserError, option_text
from . import generated
from .files import (
    SPLITS,
    Log,
    OriginalFile,
    Published,
    check_share,
    files_below,
    fingerprint_files,
    log_alike,
    original_files,
    root_error,
)
from .prepare import Kind, Originals, Source, origin, prepare_from
from .reader import Dataset, Records, open_prepared
from .rows import (
    Labelled,
    Row,
    TextSet,
    checked,
    checksum,
    is_empty,
    read_rows,
    read_text,
    split_files,
    split_rows,
)

WANTED = (
    "a TSV, CSV or JSONL file, or a folder with one called train, and optionally test"
    " and validation"
)
# labels that all have this form are ordered by value
NUMBER = re.compile(r"-?[0-9]{1,18}")
TEXT = Kind("texts", "2.1.0")
T = TypeVar("T")
IMDB_SPLITS = ("train", "test")
IMDB_PLACE = Published(
    ("train/neg",),
    (".", "aclImdb", "imdb/aclImdb"),
    ("aclImdb*.tar.gz", "imdb/aclImdb*.tar.gz"),
    "the folder aclImdb of the reviews as published, or its archive,"
    " http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
)
CLASSES = ("neg", "pos")  # folders
# reviews in unsup have no label
REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_\d+\.txt")
SST2_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
SST2_COLUMNS, SST2_CLASSES = ("sentence", "label"), ("0", "1")  # negative, positive
MNLI_CLASSES = ("entailment", "neutral", "contradiction")
# The test labels are not published: the matched dev file is the test split.
MNLI_FILES = {
    "train": "multinli_1.0_train.jsonl",
    "test": "multinli_1.0_dev_matched.jsonl",
}
MNLI_COLUMNS = ("sentence1", "gold_label", "sentence2")
UNDECIDED = "-"  # the gold label of MultiNLI where the annotators did not agree
SST2_PLACE = Published(
    tuple(SST2_FILES.values()),
    (".", "SST-2", "glue/SST-2"),
    (),
    "the folder of SST-2's train.tsv, dev.tsv and test.tsv, or their archive, "
    "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
)
MNLI_PLACE = Published(
    tuple(MNLI_FILES.values()),
    (".", "multinli_1.0", "mnli"),
    (),
    f"the folder of {' and '.join(MNLI_FILES.values())}, or their archive,"
    " https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",
)


class TextBatch(NamedTuple):
    """Texts, their classes, int32 (batch,), and where records are pairs their second
    texts."""

    texts: list[str]
    labels: np.ndarray
    seconds: list[str] | None = None


class TextData(Dataset[TextBatch]):
    """Prepared texts and their classes; ``checksums`` are of each whole split,
    before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.class_names: tuple[str, ...] = tuple(self.facts["class_names"])
        self.pairs = bool(self.facts["pairs"])
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def _read(self, records: Records, numbers: list[int]) -> TextBatch:
        rows = records.read(numbers, "text", "second", "label")
        texts, seconds = ([row[column].decode() for row in rows] for column in range(2))
        return TextBatch(
            texts,
            np.array([row[2] for row in rows], np.int32),
            seconds if self.pairs else None,
        )


def load(config: TextConfig, *, log: Log = print) -> TextData:
    """Opens the texts of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), TextData)


def prepare(config: TextConfig, *, log: Log = print) -> Path:
    """Prepares the texts of a configuration unless they are there, and returns their
    folder."""
    check_share(config.validation_share)
    columns = config.text_column, config.label_column
    for name, value in zip(("text_column", "label_column"), columns, strict=True):
        if value != getattr(TextConfig, name) and config.source != "table":
            table = option_text("data.source", "table")
            raise UserError(
                f"{option_text(f'data.{name}', value)} is for {table}; omit it"
            )
    if columns[0] == columns[1]:
        raise UserError(f"the columns of a table must differ, got {', '.join(columns)}")
    # Records depend on the share, except for sources with a validation split, where it
    # costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(
        TEXTS | {"table": _table(columns)},
        config,
        TEXT,
        _records,
        options=options,
        log=log,
    )


def _records(texts: TextSet, config: TextConfig, log: Log) -> Originals:
    if "test" not in texts.splits:
        train, share = texts.splits["train"], config.validation_share
        log(
            f"  no test file: holding out {round(share * len(train))} of {len(train)}"
            " texts for it"
        )
    labels = {
        split: np.array([one.label for one in rows])
        for split, rows in texts.splits.items()
    }
    splits = split_rows(
        texts.splits, config.validation_share, "texts", labels, texts.class_names
    )
    _describe(splits, texts, origin(config), log)
    text = tfds.features.Text()
    checksums = {
        split: checksum((one.text, one.second, one.label) for one in splits[split])
        for split in SPLITS
    }
    facts = {
        "class_names": list(texts.class_names),
        "pairs": texts.pairs,
        "checksums": checksums,
    }
    records = {split: (text._asdict() for text in splits[split]) for split in SPLITS}
    return Originals({"text": text, "second": text, "label": np.int64}, records, facts)


def _describe(
    splits: Mapping[str, Sequence[Labelled]], texts: TextSet, where: str, log: Log
) -> None:
    """Logs the classes of each split and texts of two splits; a `UserError` where
    nothing can be learned."""
    for split in SPLITS:
        counts = Counter(one.label for one in splits[split])
        named = ", ".join(
            f"{name}: {counts[number]}" for number, name in enumerate(texts.class_names)
        )
        log(f"  {split}: {len(splits[split])} texts, {named}")
    train, test = (
        {(one.text, one.second) for one in splits[split]} for split in ("train", "test")
    )
    if len(train) < 2:
        raise UserError(
            f"{where}: all texts of train are the same; give texts that differ"
        )
    if len(labels := {one.label for one in splits["train"]}) < 2:
        only = texts.class_names[labels.pop()]
        raise UserError(
            f"{where}: train has texts of one class only ({only}); give at least two"
        )
    if both := len(train & test):
        why = (
            "as in the original"
            if "test" in texts.splits
            else "the original has them more than once"
        )
        log(f"  {both} text(s) occur in both train and test; they are kept, {why}")


@contextlib.contextmanager
def open_table(root: Path, log: Log, *, columns: tuple[str, str]) -> Iterator[TextSet]:
    """Reads every file. Classes are the labels of the train file: by value if all
    are integers, else by name."""
    hint = (
        f"; name yours by {option_text('data.text_column')} and"
        f" {option_text('data.label_column')}"
    )
    files = split_files(root).items()
    tables = {
        split: _some(list(read_rows(path, columns, hint=hint)), str(path))
        for split, path in files
    }
    names = {_label(row, columns[1]) for row in tables["train"]}
    numbers = all(NUMBER.fullmatch(name) for name in names)
    class_names = tuple(
        sorted(names, key=lambda name: (int(name) if numbers else 0, name))
    )
    log_alike(class_names, log)
    splits = {
        split: [_labelled(row, columns, class_names) for row in rows]
        for split, rows in tables.items()
    }
    yield TextSet(class_names, splits)


def fingerprint_imdb(root: Path) -> str:
    """Fingerprints the reviews of the unpacked folder, or the archive."""
    source = IMDB_PLACE.find(root)
    reviews = (
        [source]
        if source.is_file()
        else [file.local for file in files_below(source, _is_review)[0]]
    )
    return fingerprint_files(reviews, root=source)


@contextlib.contextmanager
def open_imdb(root: Path, _: Log) -> Iterator[TextSet]:
    """Reads both splits, negative reviews first, each class by number."""
    with original_files(IMDB_PLACE.find(root), _is_review) as (files, _unread):
        reviews = sorted(_reviews(files, root))
    splits = {
        name: [
            Labelled(text, label) for split, label, _, text in reviews if split == name
        ]
        for name in IMDB_SPLITS
    }
    for split, label in itertools.product(IMDB_SPLITS, range(len(CLASSES))):
        if not any(review.label == label for review in splits[split]):
            raise root_error(
                root,
                f"holds no reviews aclImdb/{split}/{CLASSES[label]}/ID_STARS.txt; copy"
                " it again",
            )
    yield TextSet(generated.SENTIMENTS, splits)


@contextlib.contextmanager
def open_sst2(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads every split; without test labels, as in GLUE, dev is the test split and
    validation is cut from train."""
    with SST2_PLACE.open(root) as files:
        first = next(read_rows(files[SST2_FILES["test"]].local, ("sentence",)), None)
        names = SST2_FILES
        if first is not None and "label" not in first.fields:
            log(
                "  test.tsv has no labels, as GLUE gives it out: dev.tsv is the test"
                " split, train gives validation"
            )
            names = {"train": names["train"], "test": names["validation"]}
        splits = {}
        for split, name in names.items():
            where = f"{root}: {files[name].path}"
            rows = read_rows(files[name].local, SST2_COLUMNS, where=where)
            splits[split] = _some(
                [_labelled(row, SST2_COLUMNS, SST2_CLASSES) for row in rows], where
            )
    yield TextSet(generated.SENTIMENTS, splits)


@contextlib.contextmanager
def open_mnli(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads train, and the matched dev file as the test split; logs the number of
    records left out."""
    with MNLI_PLACE.open(root) as files:
        splits = {
            split: _pairs(files[name], root, split, log)
            for split, name in MNLI_FILES.items()
        }
    yield TextSet(MNLI_CLASSES, splits, pairs=True)


def _some(examples: list[T], where: str) -> list[T]:
    if examples:
        return examples
    raise UserError(
        f"{where} has no labelled texts; give at least one, or copy the original again"
    )


def _text(row: Row, column: str) -> str:
    text = row.fields[column]
    if not isinstance(text, str):
        raise UserError(
            f"{row.where}: {column!r} must be a text, got {text!r}; correct the line"
        )
    return text


def _label(row: Row, column: str) -> str:
    """Returns a label in the composed form of Unicode, without marks that no one
    sees: classes do not differ by these."""
    label = row.fields[column]
    text = unicodedata.normalize("NFC", str(label))
    name = "".join(sign for sign in text if unicodedata.category(sign) != "Cf").strip()
    if not isinstance(label, str | int) or not name:
        raise UserError(
            f"{row.where}: {column!r} must be the name or number of a class, got"
            f" {label!r}; correct it"
        )
    return name


def _labelled(row: Row, columns: Sequence[str], class_names: Sequence[str]) -> Labelled:
    """Reads the text of the first column, the label of the second, and of a third
    the second text of a pair."""
    text, *second = (
        checked(_text(row, column), where=row.where) for column in columns[::2]
    )
    if (label := _label(row, columns[1])) not in class_names:
        names = ", ".join(class_names)
        raise UserError(
            f"{row.where} has {columns[1]} {label!r}; it must be one of train, which"
            f" are {names}"
        )
    return Labelled(text, class_names.index(label), *second)


def _is_review(path: PurePosixPath) -> bool:
    return REVIEW.fullmatch(str(path)) is not None


def _reviews(
    files: Iterable[OriginalFile], root: Path
) -> Iterator[tuple[str, int, int, str]]:
    """Yields split, label, number and text: the keys they are put in order with."""
    for path, local in files:
        match = REVIEW.fullmatch(str(path))
        assert match is not None  # only reviews are listed
        where = f"{option_text('data.root', root)}: {path}"
        text = checked(read_text(local, where=where), where=where)
        yield match[1], CLASSES.index(match[2]), int(match[3]), text


def _pairs(file: OriginalFile, root: Path, split: str, log: Log) -> list[Labelled]:
    pairs, dropped, where = [], Counter(), f"{root}: {file.path}"
    premise, label, hypothesis = MNLI_COLUMNS
    for row in read_rows(file.local, MNLI_COLUMNS, where=where):
        if row.fields[label] == UNDECIDED:
            dropped["have no gold label ('-')"] += 1
        elif is_empty(_text(row, premise)) or is_empty(_text(row, hypothesis)):
            dropped["have an empty sentence"] += 1
        else:
            pairs.append(_labelled(row, MNLI_COLUMNS, MNLI_CLASSES))
    for reason, count in dropped.items():
        log(f"  {split}: leaving out {count} record(s) that {reason}")
    return _some(pairs, where)


def _table(columns: tuple[str, str]) -> Source[TextSet]:
    def fingerprint(root: Path) -> str:
        files = fingerprint_files(split_files(root).values(), root=root)
        return hashlib.sha256(f"{files}\0{columns!r}".encode()).hexdigest()[:12]

    return Source(fingerprint, functools.partial(open_table, columns=columns), WANTED)


TEXTS: dict[str, Source[TextSet]] = {
    "verdicts": generated.VERDICTS,
    "imdb": Source(fingerprint_imdb, open_imdb, IMDB_PLACE.wanted),
    "sst2": Source(SST2_PLACE.fingerprint, open_sst2, SST2_PLACE.wanted),
    "mnli": Source(MNLI_PLACE.fingerprint, open_mnli, MNLI_PLACE.wanted),
    "table": _table((TextConfig.text_column, TextConfig.label_column)),
}
