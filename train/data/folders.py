"""Folders of originals that may not be listed: refused, where `os.walk` and `glob` take them for empty."""

import os
from pathlib import Path
from typing import NoReturn

from train.errors import UserError

__all__ = ["files_below", "require_listable"]


def files_below(root: Path) -> list[Path]:
    """The files of a folder and of all folders below it, in no order.

    Raises:
      UserError: naming the folder that may not be listed.
    """
    return [Path(folder, name) for folder, _, names in os.walk(root, onerror=_refuse) for name in names]


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
