"""What a source of data is, and the choice of one from a table."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from train.data.download import Download, fetch, fingerprint_download
from train.data.prepared import prepared_root
from train.errors import UserError
from train.home import expanded

__all__ = ["Log", "Selection", "Source", "fingerprint_source", "open_source", "origin", "reading", "resolve_source"]

Log = Callable[[str], None]
T = TypeVar("T")


class Selection(Protocol):
    """What every data config says."""

    @property
    def source(self) -> str:
        """Name of a source."""
        ...

    @property
    def root(self) -> str | None:
        """Where the originals are."""
        ...


class Source(NamedTuple, Generic[T]):
    """One source of data.

    Attributes:
      root: What its root must be, in words; empty where it takes none.
      fingerprint: Maps the root to a short text that changes when the original files do.
      open: Opens the originals, for as long as the context lasts; takes the root and a log.
      download: Where the originals come from when no root is given; None where one must be.
    """

    root: str
    fingerprint: Callable[[Path], str]
    open: Callable[[Path, Log], AbstractContextManager[T]]
    download: Download | None = None


def resolve_source(sources: Mapping[str, Source[T]], config: Selection) -> tuple[Source[T], Path | None]:
    """Returns the source that a config names, and its root; None where none is given.

    Raises:
      UserError: if there is no such source, or the root is missing, empty or superfluous.
    """
    source = sources.get(config.source)
    if source is None:
        raise UserError(f"data.source={config.source} is unknown; choose one of {', '.join(sources)}")
    if source.root and not config.root and source.download is None:
        raise UserError(f"data.source={config.source} needs data.root: {source.root}")
    if config.root == "":
        raise UserError("data.root='' is empty; name the originals, or leave it out")
    if config.root and not source.root:
        raise UserError(f"data.source={config.source} takes no data.root, got {config.root}; leave it out")
    return source, expanded(config.root, "data.root") if config.root else None


def origin(config: Selection) -> str:
    """What errors call the originals."""
    return f"data.root={config.root}" if config.root else f"data.source={config.source}"


@contextmanager
def reading(config: Selection) -> Iterator[None]:
    """Tells in one line what the file system refuses while originals are read.

    Raises:
      UserError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        name = f"'{error.filename}': " if error.filename else ""
        raise UserError(
            f"{origin(config)} cannot be read ({name}{error.strerror or error}); name a place that can"
        ) from error


def fingerprint_source(source: Source[T], root: Path | None) -> str:
    """The fingerprint of the originals; of those to be downloaded it is known before they are.

    Raises:
      UserError: if there are no originals at the root.
    """
    if root is None and source.download is not None:
        return fingerprint_download(source.download)
    return source.fingerprint(root or Path())


def open_source(source: Source[T], root: Path | None, prepared: str | None, log: Log) -> AbstractContextManager[T]:
    """Opens the originals of a source; downloads them first, beside the prepared data, where no root is given.

    Raises:
      UserError: if they cannot be opened or fetched.
    """
    if root is None and source.download is not None:
        root = fetch(source.download, prepared_root(prepared) / "downloads", log)
    return source.open(root or Path(), log)
