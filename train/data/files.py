"""Original files: in folders, in tar archives that are read in place, and downloads; their fingerprints."""

import contextlib
import functools
import hashlib
import io
import lzma
import os
import re
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

import tensorflow_datasets as tfds
from tensorflow_datasets.core import utils
from tensorflow_datasets.core.download import checksums, downloader

from ..config.errors import UserError, option_text
from ..system.files import require_room, require_writable, writing

Log = Callable[[str], None]
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ARCHIVE_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)
TAR_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz")
SECONDS_TO_ANSWER = 10.0  # after which a server counts as out of reach
RETRIES = 2  # of a server that was reached; TFDS's own 10 take minutes
LARGEST = 1 << 28  # bytes of a file that is read whole
PIECE = 1 << 20  # bytes of a member that are copied at a time
TEMPORARY = "free room there, or name another folder with TMPDIR"  # if temporary files cannot be written


class OriginalFile(NamedTuple):
    """A file below a root, its place in the order that reads fastest (0 where any does), and its contents.

    ``local`` opens it as a file by itself: a member of an archive is copied for as long as the context lasts.
    """

    path: PurePosixPath
    place: int
    read: Callable[[], bytes]
    local: Callable[[], contextlib.AbstractContextManager[Path]]


class Download(NamedTuple):
    """A file to fetch for a source: ``known`` has size in bytes, SHA-256 and name where TFDS does not know them."""

    url: str
    source: str
    known: tuple[int, str, str] | None = None

    @property
    def info(self) -> checksums.UrlInfo:
        """Size, checksum and name of the file."""
        if self.known is None:
            return checksums.get_all_url_infos()[self.url]
        size, checksum, filename = self.known
        return checksums.UrlInfo(utils.Size(size), checksum, filename)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the file, known before it is fetched."""
        return self.info.checksum[:12]


def root_error(root: Path | str, problem: str) -> UserError:
    """Returns an error about a root; the problem follows its name, or is a clause after a colon."""
    return UserError(f"{option_text('data.root', root)}{'' if problem.startswith(':') else ' '}{problem}")


def fingerprint_files(files: Iterable[Path], *, root: Path) -> str:
    """Hashes names below the root, sizes and times of change: quick on any amount of data, and moving the root is free.

    A root that is a file has its name alone. Prepared data are keyed by the twelve digits, so changed originals are
    prepared afresh.
    """
    root = root.parent if root.is_file() else root
    digest = hashlib.sha256()
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        status = file.stat() if file.exists() else file.lstat()  # a dangling link fails when it is read
        if file.exists() and not stat.S_ISREG(status.st_mode):
            raise root_error(root, f": {name!r} is not a regular file; remove it")
        check_name(name, root)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def fingerprint_program(file: str, *packages: str) -> Callable[[Path], str]:
    """Returns the fingerprint of generated data: of the program's file and the versions of its packages."""

    def fingerprint(_: Path) -> str:
        versions = " ".join(metadata.version(package) for package in packages)
        return hashlib.sha256(versions.encode() + Path(file).read_bytes()).hexdigest()[:12]

    return fingerprint


def read_regular(path: Path, *, where: str) -> bytes:
    """Reads a regular file of up to 256 MiB, so that no pipe or device is read without end."""
    try:
        with open(path, "rb", opener=_opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{where} is not a regular file; name another")
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}); name another file") from error
    if len(content) > LARGEST:
        raise UserError(f"{where} has more than {LARGEST >> 20} MiB; split it into several files")
    return content


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer would block


def check_name(name: str, root: Path) -> None:
    """Checks that a name is UTF-8 without control characters: logs and reports show names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise root_error(root, f": the name {name!a} is not UTF-8; rename the file or folder") from None
    if CONTROL.search(name):
        raise root_error(root, f": the name {name!a} holds control characters; rename the file or folder")


def files_below(root: Path) -> list[Path]:
    """Lists all files below a folder, following links; a folder that cannot be listed is an error."""
    files = []
    for folder, inside, names in os.walk(root, followlinks=True, onerror=_refuse):
        files += [Path(folder, name) for name in names]
        for link in (Path(folder, name) for name in inside):
            if link.is_symlink() and _is_above(link.resolve(), Path(folder), root):
                raise root_error(root, f": '{link}' links to a folder above it; remove the link")
    return files


def require_listable(folder: Path) -> None:
    """Checks that a folder can be listed: `Path.glob` takes others for empty ones."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        _refuse(error)


@contextlib.contextmanager
def open_tar(root: Path, wanted: Callable[[PurePosixPath], bool]) -> Iterator[list[OriginalFile]]:
    """Lists the wanted files of a tar archive, compressed or not; nothing is extracted, and all must be whole."""
    try:
        archive = tarfile.open(root)  # noqa: SIM115 (closed below; errors of the caller's are not the archive's)
    except ARCHIVE_ERRORS as error:
        raise _damaged(root, error) from error
    with archive:
        # The last of several members of one name counts, as it does when an archive is unpacked.
        members = {PurePosixPath(member.name): member for member in _members(archive, root)}
        # Seeking back in a compressed archive decompresses it again from its start.
        compressed = not isinstance(archive.fileobj, io.BufferedReader)
        yield [
            OriginalFile(
                path,
                member.offset if compressed else 0,
                functools.partial(_read, archive, member, root),
                functools.partial(_unpacked, archive, member, root),
            )
            for path, member in members.items()
            if wanted(path) and _is_safe(member, root)
        ]


def may_be_tar(path: Path) -> bool:
    """Returns whether a file may be a tar archive, cut or damaged ones included, by its name or its first bytes."""
    return any(suffix.lower() in TAR_SUFFIXES for suffix in path.suffixes) or tarfile.is_tarfile(path)


def fetch(download: Download, folder: Path, log: Log) -> Path:
    """Downloads a file into a folder by TFDS, unless it is there; fails at once if the server is out of reach."""
    info = download.info
    kept = folder / str(info.filename)
    if kept.exists():
        return kept
    require_writable(folder, f"the folder of downloads {folder}", "name another place with UNROLL_PREPARED")
    require_room(folder, int(info.size), f"{info.filename}")
    log(f"  downloading {download.url} ({info.size})")
    try:
        head = urllib.request.Request(download.url, method="HEAD")
        urllib.request.urlopen(head, timeout=SECONDS_TO_ANSWER).close()
        # TFDS names the file, and moves it into place when its checksum is right.
        downloader.MAX_RETRIES = RETRIES
        tfds.disable_progress_bar()
        known = {download.url: info}
        manager = tfds.download.DownloadManager(download_dir=folder, url_infos=known, force_checksums_validation=True)
        return Path(str(manager.download(download.url))).rename(kept)
    except Exception as error:  # of requests, urllib, TFDS and promise, which share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"cannot download {download.url} ({reason}); without a network, copy {info.filename} here from "
            f"elsewhere and name it: {option_text('data.source', download.source)} with "
            f"{option_text('data.root')}=PATH/{info.filename}"
        ) from error


def _refuse(error: OSError) -> NoReturn:
    raise root_error(
        error.filename, f"cannot be listed ({error.strerror}); it needs permission to read and to enter"
    ) from error


def _is_above(place: Path, folder: Path, root: Path) -> bool:
    """Returns whether a place is or holds a folder on the way from the root to ``folder``, wherever links lead."""
    way = (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))
    return any(each.resolve().is_relative_to(place) for each in way)


def _members(archive: tarfile.TarFile, root: Path) -> Iterator[tarfile.TarInfo]:
    try:
        yield from archive
        # tarfile accepts an archive that stops between two members or inside a header.
        # A complete one ends in blocks of zeros.
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        ending = archive.fileobj.read(tarfile.BLOCKSIZE)
    except ARCHIVE_ERRORS as error:
        raise _damaged(root, error) from error
    if ending != bytes(tarfile.BLOCKSIZE):
        raise _damaged(root, "it has no end mark")


def _is_safe(member: tarfile.TarInfo, root: Path) -> bool:
    inside = PurePosixPath(member.name)
    if inside.is_absolute() or ".." in inside.parts:
        raise root_error(root, f": member {member.name!r} points outside the archive; make it anew")
    if not member.isreg():
        raise root_error(root, f": member {member.name!r} is not a plain file; make the archive anew")
    check_name(member.name, root)
    return True


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> bytes:
    try:
        opened = archive.extractfile(member)
        content = b"" if opened is None else opened.read()
    except ARCHIVE_ERRORS as error:
        raise _damaged(root, error) from error
    if len(content) != member.size:
        raise _damaged(root, f"member {member.name!r} is not a whole plain file")
    return content


@contextlib.contextmanager
def _unpacked(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> Iterator[Path]:
    """Copies a member into a file, which is deleted after the context."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PurePosixPath(member.name).name)
        require_room(path.parent, member.size, f"{member.name} of {root}")
        with writing(f"{folder}, where {member.name} of {root} is unpacked", TEMPORARY), path.open("wb") as file:
            for piece in _pieces(archive, member, root):
                file.write(piece)
        yield path


def _pieces(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> Iterator[bytes]:
    """Yields the contents of a member; only errors of reading are damage of the archive."""
    try:
        with archive.extractfile(member) or io.BytesIO() as content:
            while piece := content.read(PIECE):
                yield piece
    except ARCHIVE_ERRORS as error:
        raise _damaged(root, error) from error


def _damaged(root: Path, error: Exception | str) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
    return root_error(
        root, f"is neither a folder nor a whole tar archive ({reason}); if it was truncated, copy it again"
    )
