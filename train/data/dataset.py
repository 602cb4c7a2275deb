"""Prepared data read in batches by number, whatever their records hold; and the way from originals to them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from train.data.batches import Batches, in_order, shuffled
from train.data.prepared import ELSEWHERE, LocalBuilder, Records, damaged, prepared_root
from train.data.source import Log
from train.data.splits import SEED, SPLITS
from train.errors import UserError
from train.storage import require_writable

__all__ = ["Dataset", "open_prepared", "prepare_from"]

T = TypeVar("T")
D = TypeVar("D", bound="Dataset")


class Dataset(Generic[T]):
    """Prepared examples in three splits.

    Args:
      builder: Of the prepared data.
      read: Maps the records of a split and the numbers of some to a batch.
    """

    def __init__(self, builder: LocalBuilder, read: Callable[[Records, list[int]], T]) -> None:
        self._records = {split: Records(builder, split) for split in SPLITS}
        self._kept: dict[str, np.ndarray] = {}
        self._read = read

    def keep(self, split: str, count: int) -> None:
        """Makes a split no more than ``count`` of its examples, a fixed random choice.

        Raises:
          ValueError: if the split does not have so many.
        """
        total = len(self._split(split))
        if not 1 <= count <= total:
            raise ValueError(f"{split} must keep between 1 and {total} examples, got {count}")
        self._kept[split] = np.sort(np.random.default_rng(SEED).permutation(total)[:count])

    def num_examples(self, split: str) -> int:
        """Returns how many examples a split has."""
        return len(self._kept[split]) if split in self._kept else len(self._split(split))

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int = 0, rows: np.ndarray | None = None
    ) -> Iterator[T]:
        """Iterates over shuffled batches without end, from any step on, reading ahead in a thread.

        Batch ``step`` depends on (seed, step) alone. Every epoch shows each example once, in an order of its own.
        Of every batch the ``rows`` are read, where other processes read the others.
        """
        if start_step < 0:
            raise ValueError(f"start_step must be at least 0, got {start_step}")
        return self._shuffled(split, batch_size, seed, rows).iterate(start_step)

    def batch(self, split: str, *, batch_size: int, seed: int, step: int) -> T:
        """Returns the batch that `batches` yields at a step."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        return self._shuffled(split, batch_size, seed)[step]

    def examples(self, split: str, *, batch_size: int) -> Iterator[T]:
        """Iterates over a whole split once, in order; the last batch may be short."""
        return in_order(self.num_examples(split), self._reader(split), batch_size=batch_size).iterate()

    def _shuffled(self, split: str, batch_size: int, seed: int, rows: np.ndarray | None = None) -> Batches[T]:
        return shuffled(self.num_examples(split), self._reader(split), batch_size=batch_size, seed=seed, rows=rows)

    def _reader(self, split: str) -> Callable[[np.ndarray], T]:
        records, kept = self._split(split), self._kept.get(split)
        return lambda numbers: self._read(records, (numbers if kept is None else kept[numbers]).tolist())

    def _split(self, split: str) -> Records:
        if split not in self._records:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return self._records[split]


def open_prepared(folder: Path, open_data: Callable[[Path], D]) -> D:
    """Opens prepared data and reads the ends of each split, so that damage is told before training starts.

    Args:
      folder: What `prepare_from` returned.
      open_data: Maps the folder that TFDS counts from to the data.

    Raises:
      UserError: if the prepared data are damaged.
    """
    try:
        data = open_data(folder.parent.parent)
        for split in SPLITS:
            data._reader(split)(np.array([0, data.num_examples(split) - 1]))
    except UserError:
        raise
    except Exception as error:  # TFDS and array_record raise anything over a damaged folder
        raise damaged(folder, error) from error
    return data


def prepare_from(
    builder: type[LocalBuilder], key: str, prepared: str | None, *, prepare: Callable[[Path], None], log: Log
) -> Path:
    """Prepares data unless that is done, and returns the folder that holds them.

    Args:
      builder: Class of their builder.
      key: Name of their folder: the source, and whatever else the records depend on.
      prepared: Folder of all prepared data, as `prepared_root` takes it.
      prepare: Writes the data; takes the folder that TFDS counts from.
      log: Takes lines of progress.
    """
    data_dir = prepared_root(prepared) / key
    folder = data_dir / builder.name / str(builder.VERSION)
    if folder.exists():
        return folder
    root = prepared_root(prepared)
    require_writable(root, f"the folder of prepared data {root}", ELSEWHERE)
    source, start = key.split("-")[0], time.monotonic()
    log(f"preparing {source} in {folder} (done once)")
    prepare(data_dir)
    log(f"prepared {source} in {time.monotonic() - start:.1f} s")
    return folder
