"""Prepared data in batches by number: functions of (seed, step) with one NumPy. A
run resumes anywhere."""

import abc
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import grain
import numpy as np
import tensorflow_datasets as tfds
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from ..config.errors import UserError, option_text
from .files import SEED, SPLITS

# records fetched in one call, which takes a third of the time of one call each
TOGETHER = 1024
PREFETCHED = 16  # batches read ahead
ENDLESS = 2**62

T = TypeVar("T")
D = TypeVar("D", bound="Dataset")
Read = Callable[[np.ndarray], T]
Batches = grain.MapDataset[T]


class Records:
    """The records of one split by number, each a mapping from feature name to its bytes
    or integers as stored. TFDS's own decoding takes 25 microseconds a record, several
    times what reading it takes, so records are parsed here;
    `DeserializeMethod.DESERIALIZE_NO_DECODE`, which would do it, needs TensorFlow.
    """

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str) -> None:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        self._source = builder.as_data_source(split, deserialize_method=raw)  # pyright: ignore (a decorator hides it)
        self._folder = Path(builder.data_dir)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, numbers: Sequence[int], *features: str) -> list[tuple[Any, ...]]:
        """Returns the named features of each of the records, as stored: bytes, or
        one integer."""
        parse = tf_example_pb2.Example.FromString  # pyright: ignore (protobuf makes its classes when imported)
        rows = []
        try:
            for start in range(0, len(numbers), TOGETHER):
                for record in self._source.__getitems__(
                    list(numbers[start : start + TOGETHER])
                ):
                    stored = parse(record).features.feature
                    rows.append(tuple(_value(stored[name]) for name in features))
        except (RuntimeError, OSError, DecodeError) as error:
            raise _damaged(self._folder, error) from error
        return rows


def shuffled(
    num_records: int,
    read: Read[T],
    *,
    batch_size: int,
    seed: int,
    rows: np.ndarray | None = None,
) -> Batches[T]:
    """Endless batches; every epoch is a fresh permutation of the records, and a batch
    may span two epochs. Of every batch the ``rows`` are read, where other processes
    read the others.
    """
    # Grain's shuffle takes 4 to 120 microseconds a number, more for smaller data sets:
    # milliseconds a batch.
    check_batches(batch_size, seed)

    @functools.lru_cache(maxsize=2)  # reading ahead crosses from one epoch to the next
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(num_records)

    def batch(step: int) -> T:
        epochs, places = np.divmod(
            np.arange(step * batch_size, (step + 1) * batch_size), num_records
        )
        numbers = np.concatenate(
            [order(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
        )
        return read(numbers if rows is None else numbers[rows])

    return by_step(batch)


def in_order(num_records: int, read: Read[T], *, batch_size: int) -> Batches[T]:
    """Every record once, in order; the last batch may be short."""
    check_batches(batch_size)
    return grain.MapDataset.range(num_records).batch(batch_size).map(read)


def by_step(read: Callable[[int], T], num_steps: int = ENDLESS) -> Batches[T]:
    """Returns batches that are any function of their step; endless unless
    ``num_steps`` is given."""
    return grain.MapDataset.range(num_steps).map(lambda step: read(int(step)))


def read_ahead(batches: Batches[T], start: int = 0) -> Iterator[T]:
    """Iterates from a step on, reading ahead in a thread; the first batches are read
    when the first is asked for."""
    # One thread reads a batch in a fraction of a training step; processes would need a
    # main guard and flags.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED)
    return iter(batches[start:].to_iter_dataset(options))


def check_batches(batch_size: int, seed: int = 0, start_step: int = 0) -> None:
    """Checks the size, the seed and the first step of batches."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), got {seed}")
    if start_step < 0:
        raise ValueError(f"start_step must be at least 0, got {start_step}")


class Dataset(abc.ABC, Generic[T]):
    """Prepared examples in three splits, out of a folder of `prepare_from`;
    subclasses make batches of records."""

    def __init__(self, folder: Path) -> None:
        builder = tfds.builder_from_directory(folder)
        self.facts = dict(cast(tfds.core.MetadataDict, builder.info.metadata))
        self._records = {split: Records(builder, split) for split in SPLITS}
        self._kept: dict[str, np.ndarray] = {}

    @abc.abstractmethod
    def _read(self, records: Records, numbers: list[int]) -> T:
        """The batch of the records of these numbers."""

    def keep(self, split: str, count: int) -> None:
        """Makes a split no more than ``count`` of its examples, a fixed random
        choice."""
        total = len(self._split(split))
        if not 1 <= count <= total:
            raise ValueError(
                f"{split} must keep between 1 and {total} examples, got {count}"
            )
        self._kept[split] = np.sort(
            np.random.default_rng(SEED).permutation(total)[:count]
        )

    def with_test(self, other: Self) -> Self:
        """Returns the same data with the test split of others: examples that were
        never trained on."""
        both = copy.copy(self)
        both._records, both._kept = self._records.copy(), self._kept.copy()
        for mine, given in ((both._records, other._records), (both._kept, other._kept)):
            mine.pop("test", None)
            mine |= {"test": given["test"]} if "test" in given else {}
        return both

    def num_examples(self, split: str) -> int:
        """Returns how many examples a split has."""
        return (
            len(self._kept[split]) if split in self._kept else len(self._split(split))
        )

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[T]:
        """Iterates over shuffled batches without end, from any step on, reading ahead
        in a thread. Batch ``step`` depends on (seed, step) only. Every epoch shows each
        example once, in a new order.
        """
        check_batches(batch_size, seed, start_step)
        read, count = self._reader(split), self.num_examples(split)
        return read_ahead(
            shuffled(count, read, batch_size=batch_size, seed=seed, rows=rows),
            start_step,
        )

    def examples(self, split: str, *, batch_size: int) -> Iterator[T]:
        """Iterates over a whole split once, in order; the last batch may be short."""
        return read_ahead(
            in_order(
                self.num_examples(split), self._reader(split), batch_size=batch_size
            )
        )

    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> T:
        """Reads the examples of these numbers as one batch."""
        return self._reader(split)(np.asarray(numbers, np.int64))

    def whole(self, split: str) -> T:
        """Reads a whole split as one batch."""
        return self.read(split, np.arange(self.num_examples(split)))

    def _reader(self, split: str) -> Read[T]:
        records, kept = self._split(split), self._kept.get(split)
        return lambda numbers: self._read(
            records, (numbers if kept is None else kept[numbers]).tolist()
        )

    def _split(self, split: str) -> Records:
        if split not in self._records:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return self._records[split]


def open_prepared(folder: Path, data: type[D]) -> D:
    """Opens prepared data and reads the ends of each split: damage is reported
    before training starts."""
    try:
        opened = data(folder)
        for split in SPLITS:
            opened.read(split, [0, opened.num_examples(split) - 1])
    except UserError:
        raise
    # TFDS and array_record raise anything over a damaged folder
    except Exception as error:
        raise _damaged(folder, error) from error
    return opened


def keep_examples(data: Any, config: Any) -> None:
    """Keeps as many examples of each split as `train_examples`,
    `validation_examples` and `test_examples` say."""
    for split in SPLITS:
        count = getattr(config, f"{split}_examples", None)
        try:
            if count is not None:
                data.keep(split, count)
        except ValueError as error:
            raise UserError(
                f"{option_text(f'{split}_examples')} does not fit the data: {error}"
            ) from error


def _damaged(folder: Path, error: Exception) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(
        f"the prepared data in {folder} are damaged ({reason}); delete that folder and"
        " run again"
    )


def _value(feature: Any) -> bytes | int:
    stored = feature.bytes_list.value or feature.int64_list.value
    return stored[0]
