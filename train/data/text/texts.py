"""Labelled texts prepared once and read in reproducible batches."""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from train.data.dataset import Dataset, open_prepared, prepare_from
from train.data.prepared import LocalBuilder, LocalInfo, Records, prepare_once
from train.data.source import Log, fingerprint_source, open_source, origin, reading
from train.data.splits import SPLITS, hold_out
from train.data.text.originals import Labelled, TextSet
from train.data.text.sources import TextConfig, resolve_text
from train.errors import UserError

__all__ = ["TextBatch", "TextData", "Texts", "load", "prepare"]


class TextBatch(NamedTuple):
    """Texts, their classes, int32 (batch,), and where records are pairs their second texts."""

    texts: list[str]
    labels: np.ndarray
    seconds: list[str] | None = None


class Texts(LocalBuilder, skip_registration=True):  # pyright: ignore
    """Texts and labels as TFDS records; the names of the classes and checksums are kept beside them.

    Args:
      data_dir: Where TFDS keeps the prepared data.
      originals: The texts to prepare, in all three splits; None to read data that are prepared.
    """

    VERSION = tfds.core.Version("2.1.0")  # of records and facts: count up when other code makes other ones

    def __init__(self, *, data_dir: Path, originals: TextSet | None = None) -> None:
        self._originals = originals
        super().__init__(data_dir=str(data_dir))

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return LocalInfo(
            builder=self,
            description="Labelled texts.",
            features=tfds.features.FeaturesDict({"text": text, "second": text, "label": np.int64}),
            disable_shuffling=True,  # batches are shuffled when read
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # the original files are at hand
        assert self._originals is not None
        self.facts["class_names"] = list(self._originals.class_names)
        self.facts["pairs"] = self._originals.pairs
        self.facts["checksums"] = {split: _checksum(self._originals.splits[split]) for split in SPLITS}
        return {split: self._generate_examples(self._originals.splits[split]) for split in SPLITS}

    def _generate_examples(self, texts: Sequence[Labelled]) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, text in enumerate(texts):
            yield key, text._asdict()


class TextData(Dataset[TextBatch]):
    """Prepared texts and their classes.

    Attributes:
      class_names: Names of the classes, in the order of the labels.
      pairs: Whether every record has a second text.
      checksums: Of the texts and labels of each split as prepared, whatever `keep` cut.
    """

    def __init__(self, builder: LocalBuilder) -> None:
        self.class_names: tuple[str, ...] = tuple(builder.facts["class_names"])
        self.pairs = bool(builder.facts["pairs"])
        self.checksums: dict[str, int] = dict(builder.facts["checksums"])
        super().__init__(builder, self._read_batch)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> TextBatch:
        """Reads the texts of these numbers."""
        return self._reader(split)(np.asarray(numbers, np.int64))

    def _read_batch(self, records: Records, numbers: list[int]) -> TextBatch:
        rows = records.read(numbers, "text", "second", "label")
        texts, seconds = ([row[column].decode() for row in rows] for column in range(2))
        return TextBatch(texts, np.array([row[2] for row in rows], np.int32), seconds if self.pairs else None)


def load(config: TextConfig, *, log: Log = print) -> TextData:
    """Opens the texts that a config names, preparing them on first use.

    Raises:
      UserError: if the original files cannot be used, or the prepared data are damaged.
    """
    return open_prepared(prepare(config, log=log), lambda data_dir: TextData(Texts(data_dir=data_dir)))


def prepare(config: TextConfig, *, log: Log = print) -> Path:
    """Prepares the texts that a config names, unless that is done, and returns the folder that holds them.

    Raises:
      UserError: if the original files cannot be used, or the folder cannot be written.
    """
    if not 0.0 < config.validation_share < 1.0:
        raise UserError(f"data.validation_share must be in (0, 1), got {config.validation_share}")
    source, root = resolve_text(config)

    def write(data_dir: Path) -> None:
        with open_source(source, root, config.prepared, log) as texts:
            originals = texts._replace(splits=_three_splits(texts, config.validation_share, log))
        _check_differ(originals, origin(config))
        prepare_once(Texts(data_dir=data_dir, originals=originals))
        _describe(originals, log, test_is_cut="test" not in texts.splits)

    with reading(config):
        # Records depend on the share; those of the sources with a validation split do not, but that costs nothing.
        key = f"{config.source}-{fingerprint_source(source, root)}-{config.validation_share:g}"
        return prepare_from(Texts, key, config.prepared, prepare=write, log=log)


def _checksum(texts: Iterable[Labelled]) -> int:
    """CRC-32 of records in their order: known from the preparation on, so that no start reads them all for it."""
    found = 0
    for text, label, second in texts:
        found = zlib.crc32(f"{text}\0{second}\0{label}\n".encode(), found)
    return found


def _three_splits(texts: TextSet, share: float, log: Log) -> Mapping[str, Sequence[Labelled]]:
    """The splits; those that are missing are cut from train, test first."""
    splits = dict(texts.splits)
    for split in (name for name in reversed(SPLITS) if name not in splits):
        labels = np.array([label for _, label, _ in splits["train"]])
        try:
            stay, held_out = hold_out(labels, share)
        except ValueError as error:
            raise UserError(
                f"data.validation_share={share:g} cannot be cut from the train texts ({error}); give more of them, "
                f"another share, or a {split} file"
            ) from error
        if split == "test":
            log(f"  there is no test file: {len(held_out)} of {len(labels)} texts are held out for it")
        splits |= {name: [splits["train"][i] for i in part] for name, part in (("train", stay), (split, held_out))}
    return splits


def _check_differ(texts: TextSet, where: str) -> None:
    if len({(text, second) for text, _, second in texts.splits["train"]}) < 2:
        raise UserError(f"{where}: all texts of train are the same; give texts that differ")
    if len(labels := {label for _, label, _ in texts.splits["train"]}) < 2:
        name = texts.class_names[labels.pop()]
        raise UserError(f"{where}: train has texts of one class alone ({name}); give at least two")


def _describe(texts: TextSet, log: Log, *, test_is_cut: bool) -> None:
    for split in SPLITS:
        counts = Counter(label for _, label, _ in texts.splits[split])
        named = ", ".join(f"{name}: {counts[number]}" for number, name in enumerate(texts.class_names))
        log(f"  {split}: {len(texts.splits[split])} texts, {named}")
    train, test = ({(text, second) for text, _, second in texts.splits[split]} for split in ("train", "test"))
    if train & test:
        why = "the original has them more than once" if test_is_cut else "as in the original"
        log(f"  {len(train & test)} text(s) occur in both train and test; they are kept, {why}")
