"""Paths as users write them."""

from pathlib import Path

from train.errors import UserError

__all__ = ["expanded"]


def expanded(path: str, option: str) -> Path:
    """A path with ~ as the home folder.

    Raises:
      UserError: naming ``option`` if it is the home folder of nobody.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{option}={path} is in nobody's home folder; write the path out") from error
