"""Originals prepared once: written by one TFDS builder as array_record, whole or not
at all, keyed by fingerprint."""

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import filelock
import tensorflow_datasets as tfds
from tensorflow_datasets.core.constants import INCOMPLETE_PREFIX

from ..config.errors import UserError, option_text
from ..config.run import SourceConfig
from ..system.files import caches, expanded, system_errors
from .files import SPLITS, Log

SECONDS_BETWEEN_LINES = 5.0  # of progress, while a split is prepared

T = TypeVar("T")
C = TypeVar("C", bound=SourceConfig)
Record = dict[str, Any]


class Source(NamedTuple, Generic[T]):
    """A source of data; ``open`` takes a root and a log of progress, and its result is
    valid within the context. ``fingerprint`` changes with the original files.
    ``wanted`` describes the root; "" for a source without. Errors need not name the
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
    """Writes `Originals` of any kind; TFDS prints nothing about downloads. Records go
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
    """Returns the source that a configuration names, and its root, which exists; "."
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
