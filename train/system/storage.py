"""Disks that are full, read-only or forbidden: tested before the work, and reported in one line during it."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock

from ..config.errors import StorageError, UserError

# How systems refuse to write; Orbax, TensorStore and array_record quote these words in errors of their own.
REFUSALS = tuple(
    map(
        os.strerror,
        (
            errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
            errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE, errno.ESTALE,
        ),
    )
)  # fmt: skip
# Of these, what says nothing of a file's contents.
UNREACHABLE = tuple(
    map(os.strerror, (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOSPC, errno.EROFS))
)
AGAIN = "see to that disk and give the same command again"
PARTIAL = ".partial"  # suffix of a file that is being written
PROBE = 1 << 16  # bytes; a disk without room for so many has room for nothing


def expanded(path: str, option: str) -> Path:
    """A path with ~ as the home folder; errors name ``option`` where there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{option}={path} is in nobody's home folder; write the path out") from error


def check_out(out: Path | str) -> Path:
    """The folder that --out names, with ~ as the home folder: the one that is checked is the one to write to."""
    folder = expanded(str(out), "--out")
    path = folder.absolute()
    nearest = _nearest(path)
    if not nearest.is_dir():
        what = "it" if nearest == path else nearest
        raise UserError(f"cannot write to --out {out}: {what} is no folder; pass another")
    return folder


def check_file(out: Path | str, *, overwrite: bool) -> Path:
    """The file that --out names, with ~ as the home folder: one that can be written, and is there only to be replaced.

    Raises:
      UserError: if it is a folder, or is there and ``overwrite`` is False.
      StorageError: if it cannot be written.
    """
    path = expanded(str(out), "--out")
    if path.is_dir():
        raise UserError(f"--out {out} is a folder; name a file in it, as {path / 'answers.json'}")
    if path.exists() and not overwrite:
        raise UserError(f"--out {out} is there already; pass another file, or --overwrite, which replaces it")
    require_writable(path.parent, f"--out {out}", "pass another file")
    return path


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder while the context lasts; the system lets go of it when the process ends or is killed."""
    path = folder / ".lock"
    try:
        held = filelock.FileLock(path).acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"another process is training {folder}; wait until it ends, or pass another --out") from None
    except OSError as error:
        raise StorageError(
            f"cannot write to {path} ({error.strerror}); see to that file, or pass another --out"
        ) from error
    with held:
        yield


def refusal(error: BaseException) -> str | None:
    """The words in which the system refused to write or read; None for an error of another kind."""
    if isinstance(error, OSError) and error.strerror in REFUSALS:
        return error.strerror
    if isinstance(error, UserError):
        return None
    text = str(error)
    return next((words for words in REFUSALS if words in text), None)


def unreachable(error: BaseException) -> str | None:
    """The same, but only where it says nothing of whether a file is damaged."""
    words = refusal(error)
    return words if words in UNREACHABLE else None


@contextlib.contextmanager
def writing(target: str, way_out: str) -> Iterator[None]:
    """Turns a refusal of the system to write into an error of one line, while the context lasts.

    Raises:
      StorageError: naming the target, the system's words and the way out.
    """
    try:
        yield
    except Exception as error:
        words = refusal(error)
        if words is None:
            raise
        raise StorageError(f"cannot write to {target} ({words}); {way_out}") from error


def require_writable(folder: Path, name: str, way_out: str) -> None:
    """Tries to write a little into a folder, or where it will be made.

    Args:
      folder: to be written to.
      name: what it is called in messages, as in "--out runs/a".
      way_out: what to do where it cannot be.

    Raises:
      StorageError: if it cannot be written to.
    """
    probe = _nearest(folder) / f".probe-{os.getpid()}"
    try:
        try:
            probe.write_bytes(bytes(PROBE))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {name} ({error.strerror}); {way_out}") from error


def require_room(folder: Path, size: int, what: str) -> None:
    """Checks that a disk has room, as far as the system says how much it has.

    Args:
      folder: on the disk.
      size: bytes that will be written.
      what: what they are, as the subject of "takes".

    Raises:
      StorageError: if there is less.
    """
    disk = shutil.disk_usage(_nearest(folder))
    if disk.total and disk.free < size:
        raise StorageError(
            f"the disk of {folder} is full: {what} takes {_megabytes(size)}, {_megabytes(disk.free)} are free; {AGAIN}"
        )


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by their names, all or none, and each in one move: a reader sees an old file or a new one.

    Moves come in the order of the files, and need no room: what a full disk refuses leaves the old ones as they were.
    The folder is made where it is missing, and is not left behind empty.

    Raises:
      OSError: if the system refuses.
    """
    partials = {name: (folder / name).with_suffix(PARTIAL) for name in files}
    if len(set(partials.values())) < len(files):
        partials = {name: folder / f"{name}{PARTIAL}" for name in files}
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            partials[name].write_bytes(content)
        for name, partial in partials.items():
            partial.replace(folder / name)
    except OSError:
        for partial in partials.values():
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def overwrite(path: Path, content: bytes) -> None:
    """Writes over a file's own bytes, for which a full disk has room; where it has not, the old ones are put back.

    Raises:
      OSError: if there is no such file, or the system refuses.
    """
    old = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.truncate()
        except OSError:
            file.seek(0)
            file.write(old)
            file.truncate()
            raise


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in their order; one still being written has another name.

    Raises:
      UserError: if it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder of checkpoints; restore the folder, or move the file away")
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal() and path.is_dir())
