"""Opening of files that a run did not write: regular ones only, of a limited size,
in pieces."""

import contextlib
import errno
import itertools
import os
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from ..config.errors import UserError

LARGEST = 1 << 28  # bytes of a file that is read whole
PIECE = 1 << 16  # bytes read at a time


@contextlib.contextmanager
def open_regular(
    path: Path, *, where: str, mend: str = "name another file", limit: int = sys.maxsize
) -> Iterator[BufferedReader]:
    """Opens a file that this run did not write: a regular one of at most ``limit``
    bytes, no pipe and no device. Every such file is opened here. Those that a library
    opens by their path are checked by `check_regular` before.
    """
    try:
        # Opening a pipe without a writer would block.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{where} is not a regular file; {mend}")
            _check_size(status.st_size, limit, where, mend)
            yield file
    except OSError as error:
        if error.errno is None:  # of a library, over the contents
            raise
        reason = error.strerror
        if error.errno == errno.ENOENT and not path.is_absolute():
            reason = f"{reason} in {Path.cwd()}"
        raise UserError(f"{where} cannot be read ({reason}); {mend}") from error


def check_regular(
    path: Path, *, where: str = "", mend: str = "name another file"
) -> None:
    """Checks that `open_regular` opens a file."""
    with open_regular(path, where=where or str(path), mend=mend):
        pass


def check_regular_below(folder: Path, *, mend: str) -> None:
    """Checks that a folder has no pipes and devices, nor links to them, before a
    library reads it."""
    for inside, _, names in os.walk(folder):
        for path in (Path(inside, name) for name in names):
            # one that is deleted meanwhile, or a link to nothing, is no hindrance
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(path.stat().st_mode):
                    raise UserError(f"{path} is not a regular file; {mend}")


def read_regular(
    path: Path, *, where: str, mend: str = "name another file", limit: int = LARGEST
) -> bytes:
    """Reads a regular file of at most ``limit`` bytes, by default 256 MiB."""
    with open_regular(path, where=where, mend=mend, limit=limit) as file:
        # In pieces: `read(limit)` would take the memory of ``limit``.
        content = b"".join(
            itertools.islice(iter(lambda: file.read(PIECE), b""), limit // PIECE + 1)
        )
    _check_size(len(content), limit, where, mend)
    return content


def _check_size(size: int, limit: int, where: str, mend: str) -> None:
    if size > limit:
        raise UserError(f"{where} has more than {limit >> 20} MiB; {mend}")
