"""Batches by number: a function of (seed, step) alone, so any step can be read at once and a run resumes anywhere."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

import grain
import numpy as np

__all__ = ["Batches", "in_order", "shuffled"]

T = TypeVar("T")
Read = Callable[[np.ndarray], T]
PREFETCHED = 16  # batches read ahead


class Batches(Generic[T]):
    """Batches with random access, and iterators over them that read ahead in a thread."""

    def __init__(self, batches: grain.MapDataset[T]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, step: int) -> T:
        return cast(T, self._batches[step])

    def iterate(self, start: int = 0) -> Iterator[T]:
        """Iterates from a step on; the first batches are read when the first is asked for."""
        # One thread reads a batch in a fraction of a training step; processes would need a main guard and flags.
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED)
        return iter(self._batches[start:].to_iter_dataset(options))


def shuffled(
    num_records: int, read: Read[T], *, batch_size: int, seed: int, rows: np.ndarray | None = None
) -> Batches[T]:
    """Endless batches; every epoch is a fresh permutation of the records, and a batch may span two epochs.

    Args:
      num_records: How many records there are.
      read: Maps record numbers (batch_size,) to a batch. Numbers are shuffled and batched before anything is read:
        a pipeline over the records themselves costs Grain six times as much.
      batch_size: Records a batch.
      seed: Of the permutations, in [0, 2**32).
      rows: Which rows of every batch to read, where other processes read the others; all if None.

    Raises:
      ValueError: if an argument is out of its range.
    """
    _check_batch_size(batch_size)
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), got {seed}")
    numbers = grain.MapDataset.range(num_records).seed(seed).shuffle().repeat()
    return Batches(numbers.batch(batch_size).map(read if rows is None else lambda batch: read(batch[rows])))


def in_order(num_records: int, read: Read[T], *, batch_size: int) -> Batches[T]:
    """Every record once, in order; the last batch may be short.

    Raises:
      ValueError: if ``batch_size`` is below 1.
    """
    _check_batch_size(batch_size)
    return Batches(grain.MapDataset.range(num_records).batch(batch_size).map(read))


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
