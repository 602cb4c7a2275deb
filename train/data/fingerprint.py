"""Fingerprints of original files: prepared data are keyed by them, so changed originals are prepared afresh."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from train.errors import UserError

__all__ = ["check_name", "fingerprint_files"]


def fingerprint_files(files: Iterable[Path], *, root: Path) -> str:
    """Hashes names below the root, sizes and times of change: quick on any amount of data, and moving the root is free.

    Returns:
      Twelve hexadecimal digits.

    Raises:
      UserError: if a name is not UTF-8.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        status = file.stat() if file.exists() else file.lstat()  # a link that leads nowhere fails when it is read
        check_name(file.relative_to(root).as_posix(), root)
        digest.update(f"{file.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def check_name(name: str, root: Path) -> None:
    """Refuses a name below a root that is not UTF-8: it can be neither logged nor kept.

    Raises:
      UserError: naming it with its bytes escaped.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"data.root={root}: the name {name!a} is not UTF-8; rename the file or folder") from None
