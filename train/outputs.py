"""Where a command is to write to, looked at before its work."""

from pathlib import Path

from train.errors import UserError

__all__ = ["check_out"]


def check_out(out: Path | str | None) -> None:
    """Checks that --out can be a folder; None is a command's own choice.

    Raises:
      UserError: if it is a file, or lies in one.
    """
    if out is None:
        return
    path = Path(out).expanduser().absolute()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        what = "it" if nearest == path else nearest
        raise UserError(f"cannot write to --out {out}: {what} is no folder; pass another")
