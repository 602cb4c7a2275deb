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
        what = "is no folder" if nearest == path else f"lies in {nearest}, which is no folder"
        raise UserError(f"--out {out} {what}; pass another")
