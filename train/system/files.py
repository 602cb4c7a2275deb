"""Files and disks: checked before the work, written in one move, and errors reported in
one line. Any room above may import it. It imports neither JAX nor Orbax.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import filelock

from ..config.errors import PLAIN, UNSHOWN, UserError, one_line

LARGEST = 1 << 28  # bytes of a file that is read whole
PIECE = 1 << 16  # bytes read at a time
# Errors of a disk that takes no more.
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# Errors of the system that Orbax, TensorStore and array_record raise as others, with
# its message in theirs.
QUOTED = (
    *REFUSED,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.EIO,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)
CHECKPOINTS = "checkpoints"  # the folder of a run folder
PARTIAL = ".partial"  # suffix of a file that is being written
PROBE = 1 << 16  # bytes. A disk without room for so many has room for nothing
MAX_LISTED = 5  # run folders in one line
MAX_DIGITS = 20  # of a whole number of 64 bits
WRITTEN = "give a folder that `unroll-jax run` wrote"
RESTORE = "restore it, or move the run folder away and train again"
PATHS = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/'\"]+/)*([^\s/'\"]+)/?")


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


def expanded(path: str, option: str) -> Path:
    """Returns a path with ~ as the home folder. Errors for a bad name or a missing
    home folder name ``option``."""
    if UNSHOWN.search(path):
        raise UserError(f"{option} must be {PLAIN}, got {path!a}; pass another")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{option}={path} is in nobody's home folder; write the path out"
        ) from error


def caches() -> Path:
    """Returns the folder of prepared data and compiled programs: unroll_jax in
    $XDG_CACHE_HOME, or in ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (
        expanded(root if Path(root).is_absolute() else "~/.cache", "XDG_CACHE_HOME")
        / "unroll_jax"
    )


def check_out(out: Path | str) -> Path:
    """Returns the folder that --out names, with ~ as the home folder. Raises UserError
    if it, or one above it, is a file, or holds the checkpoints of a run."""
    folder = expanded(str(out), "--out")
    for place in (folder.absolute(), *folder.absolute().parents):
        # Folders there with a number are read as checkpoints.
        if place.name == CHECKPOINTS and (place.parent / "config.json").exists():
            raise UserError(
                f"--out {out} is in the checkpoints of the run {place.parent}; pass"
                " another"
            )
    if not (nearest := _nearest(folder)).is_dir():
        raise UserError(
            f"cannot write to --out {out}: {nearest} is no folder; pass another"
        )
    return folder


def check_file(
    out: Path | str, *, overwrite: bool, inputs: Iterable[Path | str | None] = ()
) -> Path:
    """Returns the file that --out names. Raises UserError if it cannot be written. It
    must be new, or with ``overwrite`` none of the ``inputs``, nor a file of one that is
    a folder.
    """
    path = expanded(str(out), "--out")
    if path.is_dir():
        raise UserError(
            f"--out {out} is a folder; name a file in it, as {path / 'answers.json'}"
        )
    if path.exists() and not overwrite:
        raise UserError(
            f"--out {out} is there already; pass another file, or --overwrite, which"
            " replaces it"
        )
    require_regular(path)
    place = path.resolve()
    for name in filter(None, inputs):
        if path.exists() and {Path(name).expanduser().resolve()} & {
            place,
            *place.parents,
        }:
            raise UserError(
                f"--out {out} would replace what the command reads, {name}; pass"
                " another file"
            )
    require_writable(path.parent)
    return path


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder. The system releases it when the process ends
    or is killed."""
    path = folder / ".lock"
    try:
        lock = filelock.FileLock(path).acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(
            f"another process is training {folder}; wait until it ends, or pass another"
            " --out"
        ) from None
    with lock:
        yield


@contextlib.contextmanager
def system_errors(place: Path | None = None) -> Iterator[None]:
    """Raises an OSError about ``place`` for an error of a library that quotes one of
    the system."""
    try:
        yield
    except (OSError, UserError, MemoryError):
        raise
    except Exception as error:
        for number in QUOTED:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), place) from error
        raise


def require_writable(folder: Path) -> None:
    """Writes into a folder, or the nearest one above it, and deletes that. An OSError
    names the folder."""
    probe = _nearest(folder) / f".probe-{os.getpid()}"
    try:
        try:
            probe.write_bytes(bytes(PROBE))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def require_regular(path: Path) -> None:
    """Raises UserError for a device, a pipe or a folder in the place of a file."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; pass another, or move it away")


def steps_in(folder: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in order. Raises
    UserError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} is a file, not a folder of checkpoints; restore the folder, or"
            " move the file away"
        )
    return sorted(
        int(path.name)
        for path in folder.glob("*")
        if path.name.isdecimal() and path.is_dir()
    )


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by name, all or none, each in one move: a reader sees an old file or
    a new one. Moves come in the order of the files and need no room. A missing folder
    is made, and removed again on an OSError.
    """
    for name in files:
        require_regular(folder / name)
    partials = {name: folder / f"{name}{PARTIAL}" for name in files}
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            partials[name].write_bytes(content)
        for name, partial in partials.items():
            partial.replace(folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            for partial in partials.values():
                partial.unlink(missing_ok=True)
            for path in made:
                path.rmdir()
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes JSON in one move: a reader sees the old file or the new one, never half
    of it."""
    write_all(path.parent, {path.name: to_bytes(value)})


def to_bytes(value: Any) -> bytes:
    """Returns a JSON value as the contents of a file."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def strict_json(content: str | bytes) -> Any:
    """Reads a JSON text. Repeated names, NaN, numbers beyond float and deep nesting
    are a ValueError too."""
    try:
        return json.loads(
            content,
            object_pairs_hook=_once,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_whole,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(
    path: Path, *, missing: str = "", mend: str = RESTORE
) -> dict[str, Any]:
    """Returns the JSON object in a file. The UserError is ``missing`` without a file,
    and has the remedy ``mend`` else.
    """
    if not path.exists():
        raise UserError(missing or f"run {path.parent} has no {path.name}; {WRITTEN}")
    try:
        value = strict_json(read_regular(path, where=str(path), mend=mend).decode())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {mend}") from None
    return value


def no_run(folder: Path) -> str:
    """Returns the message for a folder without config.json. It lists the run folders
    inside."""
    if folder.is_file():
        return f"{folder} is a file, not a run folder; {WRITTEN}"
    paths = (
        path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.json")
    )
    # no exports
    runs = sorted(
        str(path.parent)
        for path in paths
        if not (path.parent / "model.safetensors").exists()
    )
    inside = (
        f"it holds the run folders {', '.join(runs[:MAX_LISTED])}; give one of these"
        if runs
        else WRITTEN
    )
    return f"{folder} is not a run folder: it has no config.json; {inside}"


def without_folders(value: Any) -> Any:
    """Returns a JSON value with every absolute path in its strings cut to the last
    part."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return PATHS.sub(r"\1", value) if isinstance(value, str) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"{next(name for name in names if names.count(name) > 1)} is there more"
            " than once"
        )
    return values


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.{MAX_DIGITS}} is not a finite number of JSON")
    return number


def _whole(text: str) -> int | float:
    """A whole number of 64 bits. A larger one is a float, as 1e30, which means no
    limit in tokenizers' files."""
    return (
        int(text)
        if len(text) <= MAX_DIGITS and -(2**63) <= int(text) < 2**64
        else _finite(text)
    )


def _nearest(folder: Path) -> Path:
    """Returns the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
