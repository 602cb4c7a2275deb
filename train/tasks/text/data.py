"""Labelled texts out of tables and published files (IMDB, SST-2, MultiNLI), prepared
once and read in batches."""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from ...config.errors import UserError, option_text
from ...data import generated
from ...data.files import (
    Log,
    OriginalFile,
    Published,
    class_name,
    fingerprint_below,
    fingerprint_files,
    log_alike,
    original_files,
)
from ...data.prepared import (
    Dataset,
    Kind,
    Originals,
    Records,
    Source,
    open_prepared,
    prepare_from,
)
from ...data.rows import (
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
from .options import TextConfig

WANTED = (
    "a TSV, CSV or JSONL file, or a folder with one called train, and optionally test"
    " and validation"
)
# labels that all have this form are ordered by value
NUMBER = re.compile(r"-?[0-9]{1,18}")
TEXT = Kind("texts", "2.1.0")
COLUMNS = ("text", "label")  # of a table, by default
IMDB_WANTED = (
    "the folder aclImdb of the reviews as published, or its archive,"
    " http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
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
    "the folder of SST-2's train.tsv, dev.tsv and test.tsv, or their archive, "
    "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
)
MNLI_PLACE = Published(
    tuple(MNLI_FILES.values()),
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
    """Prepared texts and their classes. ``checksums`` are of each whole split,
    before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.class_names: tuple[str, ...] = tuple(self.facts["class_names"])
        self.pairs = bool(self.facts["pairs"])
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def _read(self, records: Records, numbers: np.ndarray) -> TextBatch:
        texts, seconds, labels = records.read(numbers, "text", "second", "label")
        others = list(map(bytes.decode, seconds)) if self.pairs else None
        return TextBatch(
            list(map(bytes.decode, texts)), np.array(labels, np.int32), others
        )


def load(config: TextConfig, *, log: Log = print) -> TextData:
    """Opens the texts of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), TextData)


def prepare(config: TextConfig, *, log: Log = print) -> Path:
    """Prepares the texts of a configuration unless they are there, and returns their
    folder."""
    columns = config.text_column, config.label_column
    is_table = config.source == "table"
    if columns[0] == columns[1] or not (is_table or columns == COLUMNS):
        names = map(option_text, ("data.text_column", "data.label_column"), columns)
        raise UserError(
            f"{' and '.join(names)} must differ, and are for"
            f" {option_text('data.source', 'table')}; omit or change them"
        )
    reading = functools.partial(open_table, columns=columns)
    sources = {**TEXTS, "table": TEXTS["table"]._replace(open=reading)}
    # Records depend on the share, except for sources with a validation split, where it
    # costs nothing.
    options = [f"{config.validation_share:g}", checksum([columns])]
    return prepare_from(sources, config, TEXT, _records, options=options, log=log)


def _records(texts: TextSet, config: TextConfig, log: Log) -> Originals:
    labels = {
        split: np.array([one.label for one in rows])
        for split, rows in texts.splits.items()
    }
    splits = split_rows(texts.splits, config.validation_share, labels)
    distinct = {split: {one[:2] for one in rows} for split, rows in splits.items()}
    classes = {one.label for one in splits["train"]}
    if len(classes) < 2 or len(distinct["train"]) < 2:
        raise UserError(
            "train has texts of one class only, or one text only; give texts that"
            " differ of at least two classes"
        )
    both = distinct["train"] & distinct["test"]
    if both:
        log(f"  {len(both)} text(s) occur in both train and test, and are kept")
    text = tfds.features.Text()
    facts = {
        "class_names": list(texts.class_names),
        "pairs": texts.pairs,
        "checksums": {split: checksum(rows) for split, rows in splits.items()},
    }
    records = {split: map(Labelled._asdict, rows) for split, rows in splits.items()}
    return Originals({"text": text, "second": text, "label": np.int64}, records, facts)


@contextlib.contextmanager
def open_table(root: Path, log: Log, *, columns: tuple[str, str]) -> Iterator[TextSet]:
    """Reads every file. Classes are the labels of the train file: by value if all
    are integers, else by name."""
    hint = (
        f"; name yours by {option_text('data.text_column')} and"
        f" {option_text('data.label_column')}"
    )
    tables = {
        split: list(read_rows(path, columns, where=path.name, hint=hint))
        for split, path in split_files(root, log=log).items()
    }
    names = sorted({_label(row, columns[1]) for row in tables["train"]})
    if all(NUMBER.fullmatch(name) for name in names):
        names.sort(key=int)
    log_alike(names, log)
    splits = {
        split: _examples(rows, columns, names, f"the {split} file")
        for split, rows in tables.items()
    }
    yield TextSet(tuple(names), splits)


@contextlib.contextmanager
def open_imdb(root: Path, _: Log) -> Iterator[TextSet]:
    """Reads both splits, negative reviews first, each class by number."""
    splits: dict[str, list[Labelled]] = {"train": [], "test": []}
    with original_files(root, _is_review) as (files, _unread):
        for file in sorted(files, key=_order):
            where = str(file.path)
            text = checked(read_text(file.local, where=where), where=where)
            label = CLASSES.index(file.path.parent.name)
            splits[file.path.parents[1].name].append(Labelled(text, "", label))
    for split, reviews in splits.items():
        if len({review.label for review in reviews}) < 2:
            raise UserError(
                f"holds no reviews {split}/CLASS/ID_STARS.txt of both classes,"
                f" {' and '.join(CLASSES)}; give {IMDB_WANTED}"
            )
    yield TextSet(generated.SENTIMENTS, splits)


@contextlib.contextmanager
def open_sst2(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads every split. Without test labels, as in GLUE, dev is the test split and
    validation is cut from train."""
    with SST2_PLACE.open(root) as files:
        names = SST2_FILES
        first = next(read_rows(files[names["test"]].local, ("sentence",)), None)
        if first is not None and "label" not in first.fields:
            log(
                "  test.tsv has no labels, as GLUE gives it out: dev.tsv is the test"
                " split, train gives validation"
            )
            names = {"train": names["train"], "test": names["validation"]}
        splits = {}
        for split, name in names.items():
            rows = read_rows(files[name].local, SST2_COLUMNS, where=name)
            splits[split] = _examples(rows, SST2_COLUMNS, SST2_CLASSES, name)
    yield TextSet(generated.SENTIMENTS, splits)


@contextlib.contextmanager
def open_mnli(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads train, and the matched dev file as the test split. Logs the number of
    records left out."""
    splits = {}
    with MNLI_PLACE.open(root) as files:
        for split, name in MNLI_FILES.items():
            rows = [*read_rows(files[name].local, MNLI_COLUMNS, where=name)]
            usable = [row for row in rows if _is_usable(row)]
            if len(usable) < len(rows):
                log(
                    f"  {split}: leaving out {len(rows) - len(usable)} record(s) that"
                    f" have no gold label ({UNDECIDED!r}) or an empty sentence"
                )
            splits[split] = _examples(usable, MNLI_COLUMNS, MNLI_CLASSES, name)
    yield TextSet(MNLI_CLASSES, splits, pairs=True)


def _examples(
    rows: Iterable[Row], columns: Sequence[str], class_names: Sequence[str], where: str
) -> list[Labelled]:
    """Reads the text of the first column, the label of the second, and of a third
    the second text of a pair."""
    examples = []
    for row in rows:
        label = _label(row, columns[1])
        if label not in class_names:
            raise UserError(
                f"{row.where} has {columns[1]} {label!r}; it must be one of train,"
                f" which are {', '.join(class_names)}"
            )
        texts = [_text(row, column) for column in columns[::2]]
        second = texts[1] if texts[1:] else ""
        examples.append(Labelled(texts[0], second, class_names.index(label)))
    if not examples:
        raise UserError(
            f"{where} has no labelled texts; give at least one, or copy the original"
            " again"
        )
    return examples


def _text(row: Row, column: str) -> str:
    text = row.fields[column]
    if not isinstance(text, str):
        raise UserError(
            f"{row.where}: {column!r} must be a text, got {text!r}; correct the line"
        )
    return checked(text, where=row.where)


def _label(row: Row, column: str) -> str:
    """Returns the class that the label of a row names."""
    label = row.fields[column]
    name = class_name(str(label))
    if not isinstance(label, str | int) or not name:
        raise UserError(
            f"{row.where}: {column!r} must be the name or number of a class, got"
            f" {label!r}; correct it"
        )
    return name


def _is_review(path: PurePosixPath) -> bool:
    return REVIEW.fullmatch(str(path)) is not None


def _order(file: OriginalFile) -> tuple[str, int, PurePosixPath]:
    """Orders reviews by class and number."""
    return file.path.parent.name, int(file.path.name.partition("_")[0]), file.path


def _is_usable(row: Row) -> bool:
    first, label, second = (str(row.fields[column]) for column in MNLI_COLUMNS)
    return label != UNDECIDED and not is_empty(first) and not is_empty(second)


TEXTS: dict[str, Source[TextSet]] = {
    "verdicts": generated.VERDICTS,
    "imdb": Source(
        functools.partial(fingerprint_below, wanted=_is_review), open_imdb, IMDB_WANTED
    ),
    "sst2": Source(SST2_PLACE.fingerprint, open_sst2, SST2_PLACE.wanted),
    "mnli": Source(MNLI_PLACE.fingerprint, open_mnli, MNLI_PLACE.wanted),
    "table": Source(
        lambda root: fingerprint_files(split_files(root).values(), root=root),
        functools.partial(open_table, columns=COLUMNS),
        WANTED,
    ),
}
