"""Folders of originals that may not be listed: refused, where `os.walk` and `glob` take them for empty."""

import os
from pathlib import Path
from typing import NoReturn

from train.errors import UserError

__all__ = ["files_below", "require_listable"]


def files_below(root: Path) -> list[Path]:
    """All files below a folder; links to folders are followed.

    Raises:
      UserError: for a folder that cannot be read, or that links to one above it.
    """

    files = []
    for folder, inside, names in os.walk(root, followlinks=True, onerror=_refuse):
        files += [Path(folder, name) for name in names]
        for link in (Path(folder, name) for name in inside):
            if link.is_symlink() and _is_above(link.resolve(), Path(folder), root):
                raise UserError(f"data.root={root}: '{link}' links to a folder above it; take the link away")
    return files


def require_listable(folder: Path) -> None:
    """Checks that a folder may be listed.

    Raises:
      UserError: if not.
    """
    try:
        os.scandir(folder).close()
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise UserError(
        f"data.root={error.filename} cannot be listed ({error.strerror}); it needs permission to read and to enter"
    ) from error


def _is_above(place: Path, folder: Path, root: Path) -> bool:
    """Whether a place is, or holds, one of the folders on the way from the root to a folder, wherever links lead."""
    way = (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))
    return any(each.resolve().is_relative_to(place) for each in way)
