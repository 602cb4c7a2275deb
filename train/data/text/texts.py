"""Labelled text prepared once and read by number: TFDS records of a text and its class."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from train.data.batches import Batches, in_order, shuffled
from train.data.fingerprint import fingerprint_files
from train.data.prepared import LocalBuilder, LocalInfo, Records, damaged, prepare_once, prepared_root
from train.data.text.labelled import Labelled
from train.data.text.sources import TEXTS, TextSource
from train.errors import UserError

__all__ = ["TextBatch", "TextData", "Texts", "load_text"]

Log = Callable[[str], None]


class TextBatch(NamedTuple):
    """Texts and their labels, int (batch,)."""

    texts: list[str]
    labels: np.ndarray


class Texts(LocalBuilder, skip_registration=True):  # pyright: ignore
    """Texts and labels as TFDS records.

    Args:
      data_dir: Where TFDS keeps the prepared data.
      splits: The texts to prepare; None to read data that are prepared.
    """

    VERSION = tfds.core.Version("1.0.0")  # of the records: count up when other code makes other ones

    def __init__(self, *, data_dir: Path, splits: Mapping[str, Sequence[Labelled]] | None = None) -> None:
        self._texts = splits or {}
        super().__init__(data_dir=str(data_dir))

    def _info(self) -> tfds.core.DatasetInfo:
        return LocalInfo(
            builder=self,
            description="Labelled texts.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": np.int64}),
            disable_shuffling=True,  # batches are shuffled when read
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # the original files are at hand
        return {split: self._generate_examples(split) for split in self._texts}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, (text, label) in enumerate(self._texts[split]):
            yield key, {"text": text, "label": label}


class TextData:
    """Prepared texts.

    Attributes:
      classes: Names of the classes, in the order of the labels.
    """

    def __init__(self, builder: LocalBuilder, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._records = {split: Records(builder, split) for split in builder.info.splits}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the original has."""
        return tuple(self._records)

    def num_texts(self, split: str) -> int:
        """Returns how many texts a split has."""
        return len(self._split(split))

    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> TextBatch:
        """Reads the texts of these numbers."""
        records, numbers = self._split(split), [int(number) for number in numbers]
        texts = [text.decode() for text in records.bytes_of("text", numbers)]
        return TextBatch(texts, np.array(records.integers_of("label", numbers), np.int64))

    def batches(self, split: str, *, batch_size: int, seed: int) -> Batches[TextBatch]:
        """Shuffled batches without end, by number: each depends on (seed, number) alone."""
        return shuffled(self.num_texts(split), self._reader(split), batch_size=batch_size, seed=seed)

    def examples(self, split: str, *, batch_size: int) -> Iterator[TextBatch]:
        """Iterates over a whole split once, in order; the last batch may be short."""
        return in_order(self.num_texts(split), self._reader(split), batch_size=batch_size).iterate()

    def _reader(self, split: str) -> Callable[[np.ndarray], TextBatch]:
        return lambda numbers: self.read(split, numbers)

    def _split(self, split: str) -> Records:
        if split not in self._records:
            raise ValueError(f"split must be one of {', '.join(self._records)}, got {split!r}")
        return self._records[split]


def load_text(name: str, root: Path, *, prepared: str | None = None, log: Log = print) -> TextData:
    """Opens a data set of `TEXTS`, preparing it on first use.

    Args:
      name: Which one.
      root: The folder that holds the originals of all of them, each in its published layout.
      prepared: Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax.
      log: Takes lines of progress.

    Raises:
      UserError: if the original files cannot be used, or the prepared data are damaged.
    """
    source = TEXTS[name]
    if not root.is_dir():
        raise UserError(f"data.root={root} is not a folder; give the one that holds glue/ and imdb/")
    fingerprint = fingerprint_files(source.files(root), root=root)
    data_dir = prepared_root(prepared) / f"{name}-{fingerprint}"
    folder = data_dir / Texts.name / str(Texts.VERSION)
    if not folder.exists():
        _prepare(name, source, root, data_dir, log)
    try:
        data = TextData(Texts(data_dir=data_dir), source.classes)
        for split in data.splits:
            data.read(split, [0, data.num_texts(split) - 1])
    except UserError:
        raise
    except Exception as error:  # TFDS and array_record raise anything over a damaged folder
        raise damaged(folder, error) from error
    return data


def _prepare(name: str, source: TextSource, root: Path, data_dir: Path, log: Log) -> None:
    start = time.monotonic()
    log(f"preparing {name} in {data_dir} (done once)")
    splits = source.read(root)
    prepare_once(Texts(data_dir=data_dir, splits=splits))
    for split, texts in splits.items():
        counts = ", ".join(f"{c}: {sum(t.label == i for t in texts)}" for i, c in enumerate(source.classes))
        log(f"  {split}: {len(texts)} texts, {counts}")
    repeated = {text for text, _ in splits["train"]} & {text for text, _ in splits["test"]}
    if repeated:
        log(f"  {len(repeated)} text(s) occur in both train and test; they are kept, as in the original")
    log(f"prepared {name} in {time.monotonic() - start:.1f} s")
