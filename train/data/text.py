"""Labelled texts prepared once and read in reproducible batches."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import TextConfig
from ..config.errors import UserError
from . import generated, published_texts, table
from .files import Log
from .prepare import Kind, Originals, Source, origin, prepare_from
from .reader import Dataset, Records, open_prepared
from .rows import Labelled, TextSet
from .splits import SPLITS, check_share, cut_from_train

USUAL_COLUMNS = table.Columns(TextConfig.text_column, TextConfig.label_column, TextConfig.second_column)
TEXTS: dict[str, Source[TextSet]] = {
    "verdicts": generated.VERDICTS,
    "imdb": published_texts.IMDB,
    "sst2": published_texts.SST2,
    "mnli": published_texts.MNLI,
    "table": table.table(USUAL_COLUMNS),
}
TEXT = Kind("texts", "2.1.0")


class TextBatch(NamedTuple):
    """Texts, their classes, int32 (batch,), and where records are pairs their second texts."""

    texts: list[str]
    labels: np.ndarray
    seconds: list[str] | None = None


class TextData(Dataset[TextBatch]):
    """Prepared texts and their classes; ``checksums`` are of each split as prepared, whatever `keep` cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.class_names: tuple[str, ...] = tuple(self.facts["class_names"])
        self.pairs = bool(self.facts["pairs"])
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def _read(self, records: Records, numbers: list[int]) -> TextBatch:
        rows = records.read(numbers, "text", "second", "label")
        texts, seconds = ([row[column].decode() for row in rows] for column in range(2))
        return TextBatch(texts, np.array([row[2] for row in rows], np.int32), seconds if self.pairs else None)


def load(config: TextConfig, *, log: Log = print) -> TextData:
    """Opens the texts that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), TextData)


def prepare(config: TextConfig, *, log: Log = print) -> Path:
    """Prepares the texts that a config names, unless that is done, and returns the folder that holds them."""
    check_share(config.validation_share)
    columns = table.Columns(config.text_column, config.label_column, config.second_column)
    for name, value, usual in zip(columns._fields, columns, USUAL_COLUMNS, strict=True):
        if value != usual and config.source != "table":
            raise UserError(f"data.{name}_column={value} is for data.source=table; leave it out")
    if len(set(columns)) < len(columns):
        names = ", ".join(column for column in columns if column is not None)
        raise UserError(f"the columns of a table must differ, got {names}")
    # Records depend on the share; those of the sources with a validation split do not, but that costs nothing.
    options = [f"{config.validation_share:g}"]
    return prepare_from(TEXTS | {"table": table.table(columns)}, config, TEXT, _records, options=options, log=log)


def _records(texts: TextSet, config: TextConfig, log: Log) -> Originals:
    splits = _three_splits(texts, config.validation_share, log)
    _check_differ(splits["train"], texts.class_names, origin(config))
    _describe(splits, texts.class_names, log, test_is_cut="test" not in texts.splits)
    text = tfds.features.Text()
    checksums = {split: _checksum(splits[split]) for split in SPLITS}
    facts = {"class_names": list(texts.class_names), "pairs": texts.pairs, "checksums": checksums}
    records = {split: (text._asdict() for text in splits[split]) for split in SPLITS}
    return Originals({"text": text, "second": text, "label": np.int64}, records, facts)


def _checksum(texts: Iterable[Labelled]) -> int:
    """CRC-32 of records in their order: known from the preparation on, so that no start reads them all for it."""
    checksum = 0
    for text, label, second in texts:
        checksum = zlib.crc32(f"{text}\0{second}\0{label}\n".encode(), checksum)
    return checksum


def _three_splits(texts: TextSet, share: float, log: Log) -> Mapping[str, Sequence[Labelled]]:
    """The splits; those that are missing are cut from train, test first."""
    splits = dict(texts.splits)
    for split in (name for name in reversed(SPLITS) if name not in splits):
        labels = np.array([label for _, label, _ in splits["train"]])
        stay, held_out = cut_from_train(labels, share, "texts", f"{split} file")
        if split == "test":
            log(f"  there is no test file: {len(held_out)} of {len(labels)} texts are held out for it")
        splits |= {name: [splits["train"][i] for i in part] for name, part in (("train", stay), (split, held_out))}
    return splits


def _check_differ(train: Sequence[Labelled], class_names: Sequence[str], where: str) -> None:
    if len({(text, second) for text, _, second in train}) < 2:
        raise UserError(f"{where}: all texts of train are the same; give texts that differ")
    if len(labels := {label for _, label, _ in train}) < 2:
        name = class_names[labels.pop()]
        raise UserError(f"{where}: train has texts of one class alone ({name}); give at least two")


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
