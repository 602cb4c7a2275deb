"""The files of run folders as reports read them, and those of reports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.metrics import write_json

__all__ = ["WRITTEN", "check_folders", "flat", "one_line", "read_object", "way_out", "write_files"]

WRITTEN = "give a folder that `python -m train run` wrote"


def check_folders(folders: Sequence[Path]) -> None:
    """Checks that folders are those of evaluated runs, each given once.

    Raises:
      UserError: if there is none, or naming the one that is not.
    """
    if not folders:
        raise UserError("report needs at least one run folder, got none; give folders such as runs/NAME")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"run folder {folder} is given twice; give each run once")
        seen.add(folder.resolve())
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"run folder {folder} does not exist; {WRITTEN}")
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} is not a run folder (no config.json); {WRITTEN}")
        if not (folder / "evaluation.json").is_file():
            raise UserError(f"run {folder} has no evaluation.json; run `python -m train evaluate {folder}` first")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run folder.

    Raises:
      UserError: naming the file and the way out, if it is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"run {path.parent} has no {path.name}; {WRITTEN}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {way_out(path)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (not a JSON object); {way_out(path)}")
    return value


def way_out(path: Path) -> str:
    """How to mend a damaged file of a run folder."""
    if path.name == "evaluation.json":
        return f"run `python -m train evaluate {path.parent}` again"
    return "restore it, or move the run folder away and train again"


def one_line(error: Exception) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split())
    return f"missing {text}" if isinstance(error, KeyError) else text or type(error).__name__


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config as one dict with dotted names."""
    items: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        items.update(flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return items


def write_files(out: Path, *, pictures: dict[str, bytes], page: str, summary: dict[str, Any]) -> None:
    """Writes ``NAME.png`` of every picture, ``index.html`` and ``summary.json`` into ``out``, made if needed.

    Raises:
      UserError: if it cannot be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            (out / f"{name}.png").write_bytes(picture)
        (out / "index.html").write_text(page, encoding="utf-8")
        write_json(out / "summary.json", summary)
    except OSError as error:
        raise UserError(f"cannot write the report to {out} ({error.strerror}); choose another folder") from None
