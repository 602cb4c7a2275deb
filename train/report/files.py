"""The files of run folders as reports read them, and those of reports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.errors import StorageError, UserError
from train.metrics import strict_json
from train.storage import write_all

__all__ = ["WRITTEN", "check_folders", "flat", "no_run", "one_line", "read_object", "way_out", "write_files"]

SHOWN = 5  # run folders in one line
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
            raise UserError(f"{no_run(folder)}; {WRITTEN}")
        if not (folder / "evaluation.json").is_file():
            raise UserError(f"run {folder} has no evaluation.json; run `python -m train evaluate {folder}` first")


def no_run(folder: Path) -> str:
    """Says that what has no config.json is no run folder, and which it holds."""
    if folder.is_file():
        return f"{folder} is a file, not a run folder"
    said = f"{folder} is no run folder: it has no config.json"
    if (folder / "search.json").is_file():
        best = read_object(folder / "search.json").get("best")
        return f"{said}; it is a search" + (f", and its best run is {folder / str(best)}" if best else "")
    held = sorted(str(path.parent) for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.json"))
    if not held:
        return said
    more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
    return f"{said}; it holds the run folders {', '.join(held[:SHOWN])}{more}"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run folder.

    Raises:
      UserError: naming the file and the way out, if it is missing or damaged.
    """
    try:
        value = strict_json(path.read_text(encoding="utf-8"))
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
    if path.name == "status.json":
        return "restore it, or delete it and give the command of the run again: it goes on from its checkpoints"
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
    said = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    files = {f"{name}.png": picture for name, picture in pictures.items()}
    try:
        write_all(out, files | {"index.html": page.encode(), "summary.json": said.encode()})
    except OSError as error:
        raise StorageError(f"cannot write the report to {out} ({error.strerror}); choose another folder") from None
