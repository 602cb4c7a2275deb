"""Originals prepared once: written as records, whole or not at all, keyed by
fingerprint."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import filelock

from ..config.data import SourceConfig
from ..config.errors import UserError, option_text
from ..system.files import caches, expanded, require_writable, writing
from .files import Log, root_error
from .records import Originals, write_records

SECONDS_BETWEEN_LINES = 5.0  # of progress, while a split is prepared

INCOMPLETE = "incomplete-"  # folders that are being written

T = TypeVar("T")
C = TypeVar("C", bound=SourceConfig)


class Source(NamedTuple, Generic[T]):
    """A source of data; ``open`` takes a root and a log of progress, and its result is
    valid within the context. ``fingerprint`` changes with the original files.
    ``wanted`` describes the root; "" for a source without.
    """

    fingerprint: Callable[[Path], str]
    open: Callable[[Path, Log], AbstractContextManager[T]]
    wanted: str = ""


def prepare_from(
    sources: Mapping[str, Source[T]],
    config: C,
    kind: str,
    convert: Callable[[T, C, Log], Originals],
    *,
    options: Iterable[str] = (),
    log: Log,
) -> Path:
    """Prepares the data of a configuration unless they are there, and returns their
    folder. It is named after the source, its fingerprint, the ``options`` that the
    records depend on, and the ``kind`` of records, with its version.
    """
    with _reading(config):
        source, root = resolve_source(sources, config)
        prepared = prepared_root(config.prepared)
        data_dir = prepared / "-".join(
            [config.source, source.fingerprint(root or Path()), *options]
        )
        folder = data_dir / kind
        if folder.exists():
            return folder
        require_writable(
            prepared, f"the folder of prepared data {prepared}", _elsewhere()
        )
        start = time.monotonic()
        log(f"preparing {config.source} in {folder} (done once)")
        with source.open(root or Path(), log) as opened:
            _write(folder, convert(opened, config, log))
        log(f"prepared {config.source} in {time.monotonic() - start:.1f} s")
        return folder


def resolve_source(
    sources: Mapping[str, Source[T]], config: SourceConfig
) -> tuple[Source[T], Path | None]:
    """Returns the source that a configuration names, and its root, which exists;
    None for no root."""
    name, option = option_text("data.source", config.source), option_text("data.root")
    source = sources[config.source]
    if config.root is None:
        if source.wanted:
            raise UserError(f"{name} needs {option}: {source.wanted}")
        return source, None
    if not source.wanted:
        readers = ", ".join(name for name, one in sources.items() if one.wanted)
        raise UserError(
            f"{name} takes no {option}, got {config.root!r}; omit it or set"
            f" {option_text('data.source', readers)}"
        )
    root = expanded(config.root, option)
    if not config.root or not root.exists():
        where = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise root_error(config.root, f"does not exist{where}; give {source.wanted}")
    if not (root.is_dir() or root.is_file()):
        raise root_error(
            root, f"is neither a folder nor a regular file; give {source.wanted}"
        )
    return source, root


def prepared_root(prepared: str | None) -> Path:
    """Returns the folder that prepared data live in: the given one,
    $UNROLL_PREPARED, or `caches`."""
    place = prepared or os.environ.get("UNROLL_PREPARED") or str(caches())
    return expanded(place, option_text("data.prepared"))


def origin(config: SourceConfig) -> str:
    """Returns the name of the originals in errors."""
    name = "root" if config.root else "source"
    return option_text(f"data.{name}", getattr(config, name))


def _elsewhere() -> str:
    """Returns the advice if prepared data cannot be written."""
    # a command without the option names the variable in its place
    names = dict.fromkeys([option_text("data.prepared"), "UNROLL_PREPARED"])
    return f"name another place with {' or '.join(names)}"


def with_progress(items: Iterable[T], count: int, what: str, log: Log) -> Iterator[T]:
    """Iterates, and logs progress every few seconds."""
    spoken = time.monotonic()
    for number, item in enumerate(items):
        if time.monotonic() - spoken > SECONDS_BETWEEN_LINES:
            log(what.format(f"{number} of {count}"))
            spoken = time.monotonic()
        yield item


@contextlib.contextmanager
def _reading(config: SourceConfig) -> Iterator[None]:
    """Reports errors of the file system in one line while originals are read."""
    try:
        yield
    except OSError as error:
        name = f"'{error.filename}': " if error.filename else ""
        raise UserError(
            f"{origin(config)} cannot be read ({name}{error.strerror or error}); name a"
            " place that can"
        ) from error


def _write(folder: Path, originals: Originals) -> None:
    """Writes records unless they are there. The folder is renamed at the end: a killed
    preparation leaves nothing to read. Of two processes that prepare the same data, the
    second waits and finds the work done.
    """
    place = folder.parent
    with writing(f"the folder of prepared data {place}", _elsewhere()):
        place.mkdir(parents=True, exist_ok=True)
        # the system takes it back from a process that dies
        with filelock.FileLock(place / ".lock"):
            # of killed preparations: none is under way
            for leftover in place.glob(f"{INCOMPLETE}*"):
                shutil.rmtree(leftover)
            if folder.exists():
                return
            with tempfile.TemporaryDirectory(dir=place, prefix=INCOMPLETE) as partial:
                write_records(Path(partial, folder.name), originals)
                Path(partial, folder.name).rename(folder)
