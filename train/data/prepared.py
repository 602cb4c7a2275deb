"""Prepared data: written once by TFDS, read in batches by number. Batches are functions
of (seed, step) with one NumPy, and a run resumes anywhere."""

import abc
import contextlib
import copy
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import filelock
import grain
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.constants import INCOMPLETE_PREFIX
from tensorflow_datasets.proto import tf_example_pb2

from ..config.errors import UserError, one_line, option_text
from ..config.run import SourceConfig
from ..system.files import caches, expanded, system_errors
from .files import SEED, SPLITS, Log

SECONDS_BETWEEN_LINES = 5.0  # of progress, while a split is prepared

T = TypeVar("T")
C = TypeVar("C", bound=SourceConfig)
Record = dict[str, Any]
# records fetched in one call, which takes a third of the time of one call each
TOGETHER = 1024
PREFETCHED = 16  # batches read ahead
ENDLESS = 2**62
D = TypeVar("D", bound="Dataset")
Read = Callable[[np.ndarray], T]
Batches = grain.MapDataset[T]


class Source(NamedTuple, Generic[T]):
    """A source of data. ``open`` takes a root and a log of progress, and its result is
    valid within the context. ``fingerprint`` changes with the original files.
    ``wanted`` describes the root. "" for a source without. Errors need not name the
    root.
    """

    fingerprint: Callable[[Path], str]
    open: Callable[[Path, Log], AbstractContextManager[T]]
    wanted: str = ""


class Originals(NamedTuple):
    """Originals to prepare: TFDS features, the records of the splits, and facts,
    complete once the records are read."""

    features: Mapping[str, Any]
    splits: Mapping[str, Iterable[Record]]
    facts: dict[str, Any]


class Kind(NamedTuple):
    """Prepared data of one kind: their name, and the version of their records."""

    name: str
    version: str


class _Info(tfds.core.DatasetInfo):
    """A `DatasetInfo` that never looks for copies elsewhere (TFDS leaves a temporary
    folder behind at each look)."""

    def initialize_from_bucket(self) -> None:
        pass


class Builder(tfds.core.ShardBasedBuilder, skip_registration=True):  # pyright: ignore
    """Writes `Originals` of any kind. TFDS prints nothing about downloads. Records go
    to the disk one by one, a file a split. A `GeneratorBasedBuilder` keeps the records
    of a split in memory, and from a gigabyte on needs TensorFlow.
    """

    def __init__(
        self, data_dir: Path, kind: Kind, originals: Originals, log: Log
    ) -> None:
        self.name = kind.name  # pyright: ignore (usually the name of a class)
        self.VERSION = tfds.core.Version(kind.version)
        self._originals = originals
        self._log = log
        super().__init__(data_dir=str(data_dir))

    def _info(self) -> tfds.core.DatasetInfo:
        return _Info(
            builder=self,
            features=tfds.features.FeaturesDict(self._originals.features),
            disable_shuffling=True,  # batches are shuffled when read
            metadata=tfds.core.MetadataDict(),
        )

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # the original files are there
        return {
            split: [functools.partial(self._generate_examples, split)]
            for split in SPLITS
        }

    def _generate_examples(self, split: str) -> Iterator[tuple[int, Record]]:
        # Each record replaces the one before, which is written: TFDS keeps all to count
        # them. It ignores the number.
        given: tuple[int, Record] = (0, {})
        count = 0
        spoken = time.monotonic()
        for record in self._originals.splits[split]:
            given[1].clear()
            given[1].update(record)
            yield given
            count += 1
            if time.monotonic() - spoken > SECONDS_BETWEEN_LINES:
                self._log(f"  {split}: {count} examples so far")
                spoken = time.monotonic()
        self._log(f"  {split}: {count} examples")
        self.info.metadata.update(self._originals.facts)  # pyright: ignore (the mapping of `_info`)

    def _log_download_bytes(self) -> None:
        pass

    def _log_download_done(self) -> None:
        pass


def prepare_from(
    sources: Mapping[str, Source[T]],
    config: C,
    kind: Kind,
    convert: Callable[[T, C, Log], Originals],
    *,
    options: Iterable[Any] = (),
    log: Log,
) -> Path:
    """Prepares the data of a configuration unless they are there, and returns their
    folder. The folder is named after the source, its fingerprint, and the ``options``
    that the records depend on. Errors name the root.
    """
    source, root = resolve_source(sources, config)
    prepared = prepared_root(config.prepared)
    try:
        key = "-".join([config.source, source.fingerprint(root), *map(str, options)])
        folder = prepared / key / kind.name / kind.version
        if folder.exists():
            return folder
        prepared.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        log(f"preparing {config.source} in {folder} (done once)")
        with source.open(root, log) as opened:
            _write(Builder(prepared / key, kind, convert(opened, config, log), log))
    except UserError as error:
        name = "root" if config.root else "source"
        where = option_text(f"data.{name}", getattr(config, name))
        raise UserError(f"{where}: {error}") from error
    log(f"prepared {config.source} in {time.monotonic() - start:.1f} s")
    return folder


def resolve_source(
    sources: Mapping[str, Source[T]], config: SourceConfig
) -> tuple[Source[T], Path]:
    """Returns the source that a configuration names, and its root, which exists, or "."
    for no root."""
    source = sources[config.source]
    name = option_text("data.source", config.source)
    option = option_text("data.root")
    if config.root is None:
        if source.wanted:
            raise UserError(f"{name} needs {option}: {source.wanted}")
        return source, Path()
    if not source.wanted:
        raise UserError(f"{name} takes no {option}; omit it")
    root = expanded(config.root, option)
    if not config.root or not (root.is_dir() or root.is_file()):
        raise UserError(
            f"{option_text('data.root', config.root)} is no folder or regular file,"
            f" seen from {Path.cwd()}; give {source.wanted}"
        )
    return source, root


def prepared_root(prepared: str | None) -> Path:
    """Returns the folder that prepared data live in: the given one,
    $UNROLL_PREPARED, or `caches`."""
    place = prepared or os.environ.get("UNROLL_PREPARED") or str(caches())
    return expanded(place, option_text("data.prepared"))


def _write(builder: Builder) -> None:
    """Writes a builder's data, unless they are there. TFDS renames a folder at the end:
    a killed preparation leaves nothing to read. Of two processes that prepare the same
    data, the second waits and finds the work done.
    """
    folder = Path(builder.data_dir).parent
    folder.mkdir(parents=True, exist_ok=True)
    tfds.disable_progress_bar()
    with system_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # the system takes it back from a process that dies
        with filelock.FileLock(folder / ".lock"):
            # of killed preparations: none is under way
            for leftover in folder.glob(f"{INCOMPLETE_PREFIX}*"):
                shutil.rmtree(leftover)
            builder.download_and_prepare(file_format="array_record")


class Records:
    """The records of one split by number, each a mapping from feature name to its bytes
    or integers as stored. TFDS's own decoding takes 25 microseconds a record, several
    times what reading it takes, so records are parsed here.
    `DeserializeMethod.DESERIALIZE_NO_DECODE`, which would do it, needs TensorFlow.
    """

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str) -> None:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        self.source: Any = builder.as_data_source(split, deserialize_method=raw)  # pyright: ignore (a decorator hides it)
        self._folder = builder.data_dir

    def read(self, numbers: np.ndarray, *features: str) -> list[list[Any]]:
        """Returns columns: the named features of the records, as stored: bytes, or one
        integer."""
        parse = tf_example_pb2.Example.FromString  # pyright: ignore (protobuf makes its classes when imported)
        columns: list[list[Any]] = [[] for _ in features]
        with whole(self._folder):
            for start in range(0, len(numbers), TOGETHER):
                some = numbers[start : start + TOGETHER].tolist()
                for record in self.source.__getitems__(some):
                    stored = parse(record).features.feature
                    for column, name in zip(columns, features, strict=True):
                        value = stored[name]
                        column += value.bytes_list.value or value.int64_list.value
        return columns


def joined(column: list[bytes], *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    """Returns the arrays of a column of records as one."""
    return np.frombuffer(b"".join(column), dtype).reshape(len(column), *shape)


def shuffled(
    num_records: int,
    read: Read[T],
    *,
    batch_size: int,
    seed: int,
    rows: np.ndarray | None = None,
) -> Batches[T]:
    """Endless batches. Every epoch is a fresh permutation of the records, and a batch
    may span two epochs. Of every batch the ``rows`` are read, where other processes
    read the others.
    """

    # Grain's shuffle takes 4 to 120 microseconds a number, more for smaller data sets:
    # milliseconds a batch.
    @functools.lru_cache(maxsize=2)  # reading ahead crosses from one epoch to the next
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(num_records)

    def batch(step: int) -> T:
        start = step * batch_size
        numbers = [
            order(place // num_records)[place % num_records]
            for place in range(start, start + batch_size)
        ]
        return read(np.array(numbers)[... if rows is None else rows])

    return by_step(batch)


def in_order(num_records: int, read: Read[T], *, batch_size: int) -> Batches[T]:
    """Every record once, in order. The last batch may be short."""
    return grain.MapDataset.range(num_records).batch(batch_size).map(read)


def by_step(read: Callable[[int], T], num_steps: int = ENDLESS) -> Batches[T]:
    """Returns batches that are any function of their step, endless unless
    ``num_steps`` is given."""
    return grain.MapDataset.range(num_steps).map(lambda step: read(int(step)))


def read_ahead(batches: Batches[T], start: int = 0) -> Iterator[T]:
    """Iterates from a step on, reading ahead in a thread. The first batches are read
    when the first is asked for."""
    # One thread reads a batch in a fraction of a training step. Processes would need a
    # main guard and flags.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED)
    return iter(batches[start:].to_iter_dataset(options))


class Splits(abc.ABC, Generic[T]):
    """Examples in three splits, which are read by number."""

    @abc.abstractmethod
    def num_examples(self, split: str) -> int:
        """Returns how many examples a split has."""

    @abc.abstractmethod
    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> T:
        """Reads the examples of these numbers as one batch."""

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
        read = functools.partial(self.read, split)
        count = self.num_examples(split)
        batches = shuffled(count, read, batch_size=batch_size, seed=seed, rows=rows)
        return read_ahead(batches, start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[T]:
        """Iterates over a whole split once, in order. The last batch may be short."""
        read = functools.partial(self.read, split)
        count = self.num_examples(split)
        return read_ahead(in_order(count, read, batch_size=batch_size))

    def whole(self, split: str) -> T:
        """Reads a whole split as one batch."""
        return self.read(split, np.arange(self.num_examples(split)))


class Dataset(Splits[T]):
    """Prepared examples, out of a folder of `prepare_from`. Subclasses make batches of
    records."""

    def __init__(self, folder: Path) -> None:
        builder = tfds.builder_from_directory(folder)
        self.facts: dict[str, Any] = dict(builder.info.metadata or {})
        # the records of each split, and the numbers of those that count
        self._splits: dict[str, tuple[Records, np.ndarray]] = {}
        for split in SPLITS:
            records = Records(builder, split)
            self._splits[split] = records, np.arange(len(records.source))

    def spec_of(self, kind: Any) -> Any:
        """Returns the spec of a kind among the facts."""
        return kind.from_json({name: self.facts[name] for name in kind._fields})

    @abc.abstractmethod
    def _read(self, records: Records, numbers: np.ndarray) -> T:
        """The batch of the records of these numbers."""

    def keep(self, split: str, count: int) -> None:
        """Makes a split no more than ``count`` of its examples, a fixed random
        choice."""
        records, numbers = self._splits[split]
        if not 1 <= count <= len(numbers):
            raise UserError(
                f"{option_text(f'{split}_examples')} must be in [1, {len(numbers)}],"
                f" the examples of the data, got {count}"
            )
        chosen = np.random.default_rng(SEED).permutation(numbers)[:count]
        self._splits[split] = records, np.sort(chosen)

    def with_test(self, other: Self) -> Self:
        """Returns the same data with the test split of others: examples that were
        never trained on."""
        both = copy.copy(self)
        both._splits = self._splits | {"test": other._splits["test"]}
        return both

    def num_examples(self, split: str) -> int:
        """Returns how many examples a split has."""
        return len(self._splits[split][1])

    def read(self, split: str, numbers: Sequence[int] | np.ndarray) -> T:
        """Reads the examples of these numbers as one batch."""
        records, kept = self._splits[split]
        return self._read(records, kept[np.asarray(numbers)])


@contextlib.contextmanager
def whole(folder: Path | str) -> Iterator[None]:
    """Reports damage of prepared data, over which TFDS and array_record raise
    anything."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the prepared data in {folder} are damaged ({one_line(error)}); delete"
            " that folder and run again"
        ) from error


def open_prepared(folder: Path, data: type[D]) -> D:
    """Opens prepared data and reads the ends of each split: damage is reported
    before training starts."""
    with whole(folder):
        opened = data(folder)
        for split in SPLITS:
            opened.read(split, [0, -1])
    return opened


def keep_examples(data: Any, config: Any) -> None:
    """Keeps as many examples of each split as `train_examples`,
    `validation_examples` and `test_examples` say."""
    for split in SPLITS:
        count = getattr(config, f"{split}_examples", None)
        if count is not None:
            data.keep(split, count)
