"""Fingerprints of original files: prepared data are keyed by them, so changed originals are prepared afresh."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from train.errors import UserError

__all__ = ["check_name", "fingerprint_files"]

CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def fingerprint_files(files: Iterable[Path], *, root: Path) -> str:
    """Hashes names below the root, sizes and times of change: quick on any amount of data, and moving the root is free.

    Returns:
      Twelve hexadecimal digits.

    Raises:
      UserError: if a name cannot be used, see `check_name`.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        status = file.stat() if file.exists() else file.lstat()  # a link that leads nowhere fails when it is read
        check_name(file.relative_to(root).as_posix(), root)
        digest.update(f"{file.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def check_name(name: str, root: Path) -> None:
    """Refuses a name below a root that is not UTF-8 or holds line breaks and the like: logs and reports show names.

    Raises:
      UserError: naming it with these escaped.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"data.root={root}: the name {name!a} is not UTF-8; rename the file or folder") from None
    if CONTROL.search(name):
        raise UserError(f"data.root={root}: the name {name!a} holds control characters; rename the file or folder")
