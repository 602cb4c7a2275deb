"""Where a command is to write to, looked at before its work."""

from pathlib import Path

from train.errors import UserError
from train.home import expanded

__all__ = ["check_out"]


def check_out(out: Path | str) -> Path:
    """The folder that --out names, with ~ as the home folder: the one that is checked is the one to write to.

    Raises:
      UserError: if it is a file, lies in one, or is in the home folder of nobody.
    """
    folder = expanded(str(out), "--out")
    path = folder.absolute()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        what = "it" if nearest == path else nearest
        raise UserError(f"cannot write to --out {out}: {what} is no folder; pass another")
    return folder
