"""Tar archives read in place, never extracted; damage is told in one line."""

import contextlib
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from train.errors import UserError

__all__ = ["archive_members", "member_path", "open_archive", "read_member"]

ARCHIVE_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tar archive, compressed or not; errors of the caller's are passed on as they are.

    Raises:
      UserError: if the file is no tar archive.
    """
    try:
        archive = tarfile.open(path)  # noqa: SIM115 (closed below; errors of the caller's are not the archive's)
    except ARCHIVE_ERRORS as error:
        raise _damaged(path, error) from error
    with archive:
        yield archive


def archive_members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Iterates over the members; the contents of each are read forward when taken before the next member is.

    Raises:
      UserError: at the point where the archive, read from ``path``, turns out to be damaged or truncated.
    """
    try:
        yield from archive
        # tarfile takes an archive that stops between two members, or inside a header, for a whole one.
        # A whole one ends in blocks of zeros.
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        ending = archive.fileobj.read(tarfile.BLOCKSIZE)
    except ARCHIVE_ERRORS as error:
        raise _damaged(path, error) from error
    if ending != bytes(tarfile.BLOCKSIZE):
        raise _damaged(path, "it has no end mark")


def member_path(member: tarfile.TarInfo, path: Path) -> PurePosixPath:
    """Returns where a plain file of the archive at ``path`` lies in it.

    Raises:
      UserError: if that is outside the archive, or the member is a link or a device.
    """
    inside = PurePosixPath(member.name)
    if inside.is_absolute() or ".." in inside.parts:
        raise UserError(f"data.root={path}: member {member.name!r} points outside the archive; make it anew")
    if not member.isreg():
        raise UserError(f"data.root={path}: member {member.name!r} is not a plain file; make the archive anew")
    return inside


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    """Reads a plain file of the archive that was opened from ``path``.

    Raises:
      UserError: if the archive is damaged there, or the member is no plain file.
    """
    try:
        opened = archive.extractfile(member) if member.isreg() else None
        content = None if opened is None else opened.read()
    except ARCHIVE_ERRORS as error:
        raise _damaged(path, error) from error
    if content is None or len(content) != member.size:
        raise _damaged(path, f"member {member.name!r} is not a whole plain file")
    return content


def _damaged(path: Path, error: Exception | str) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
    return UserError(
        f"data.root={path} is neither a folder nor a whole tar archive ({reason}); if it was truncated, copy it again"
    )
