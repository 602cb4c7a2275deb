"""JSON files of run folders: strict, written in one move, and damage reported in one line with the way out."""

import json
import re
from pathlib import Path
from typing import Any

from ..config.errors import UserError, one_line
from .storage import overwrite, write_all

PATHS = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/'\"]+/)*([^\s/'\"]+)/?")


def strict_json(content: str | bytes) -> Any:
    """The value of a JSON text; NaN and infinities, which are no JSON, are a ValueError like other damage."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_json(path: Path, value: Any, *, or_in_place: bool = False) -> None:
    """Writes JSON in one move: a reader sees the old file or the new one, never half of it.

    Args:
      path: of the file.
      value: to be written.
      or_in_place: whether, where the system refuses a new file, as a full disk does, the old one is written over.
    """
    content = (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
    try:
        write_all(path.parent, {path.name: content})
    except OSError:
        if not or_in_place:
            raise
        overwrite(path, content)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


WRITTEN = "give a folder that `unroll-jax run` wrote"


SHOWN = 5  # run folders in one line


def no_run(folder: Path) -> str:
    """Says that what has no config.json is no run folder, which it holds, and the way out."""
    if folder.is_file():
        return f"{folder} is a file, not a run folder; {WRITTEN}"
    message = f"{folder} is no run folder: it has no config.json"
    if (folder / "search.json").is_file():
        best = read_object(folder / "search.json").get("best")
        if best:
            return f"{message}; it is a search, and its best run is {folder / str(best)}; give that one"
        return f"{message}; it is a search; {WRITTEN}"
    paths = (path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.json"))
    held = sorted(str(path.parent) for path in paths if not (path.parent / "model.safetensors").exists())  # no exports
    if not held:
        return f"{message}; {WRITTEN}"
    more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
    return f"{message}; it holds the run folders {', '.join(held[:SHOWN])}{more}; give one of these"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run folder; where it is missing or damaged, an error names the way out."""
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
    """Returns the way out for a damaged file of a run folder."""
    if path.name == "evaluation.json":
        return f"run `unroll-jax evaluate {path.parent}` again"
    if path.name == "status.json":
        return "restore it, or delete it and give the command of the run again: it goes on from its checkpoints"
    return "restore it, or move the run folder away and train again"


def without_folders(value: Any) -> Any:
    """The value with every absolute path in its strings, however deep, cut to the path's last part."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return PATHS.sub(r"\1", value) if isinstance(value, str) else value
