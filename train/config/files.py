"""Options of a `--config` file, TOML or JSON."""

import collections
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UserError
from .fields import from_json, to_json
from .run import PLACE, RunConfig

__all__ = ["from_file"]

TWICE = object()  # in place of the values of a name that an object of JSON has more than once
WAY_OUT = "give a TOML or JSON file of options"


def from_file(path: Path, default: RunConfig, source: str) -> RunConfig:
    """A configuration with the options of a file, in groups or by dotted names.

    Args:
      path: of the file; JSON where it ends in .json, else TOML. The config.json of a run is one.
      default: the values of all other options.
      source: what messages call the file.

    Raises:
      UserError: if the file cannot be read, or has an option twice, an unknown one, or one of another type.
    """
    values = _read(path, source)
    if not isinstance(values, dict) or not values:
        raise UserError(f"{source} holds no options by name; {WAY_OUT}")
    # Where a run was is not an option of another one.
    others = ("version", "experiment", "task", "found", *(PLACE if "version" in values else ()))
    values = {name: value for name, value in values.items() if name not in others}
    for name, value in _marked(list(_names(values))).items():
        if value is TWICE:
            raise UserError(f"{source}: {name} is there more than once; give it once")
    return from_json(type(default), _merged(to_json(default), values, source), source=source, typed=True)


def _read(path: Path, source: str) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{source} is not a regular file; {WAY_OUT}")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_marked)
        return tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        words = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"{source} cannot be read ({words}); {WAY_OUT}") from error


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of the pairs, with `TWICE` for names that are there more than once."""
    counts = collections.Counter(name for name, _ in pairs)
    return {name: TWICE if counts[name] > 1 else value for name, value in pairs}


def _names(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a file by their dotted names, however they are grouped and written."""
    for typed, value in values.items():
        name = prefix + typed.replace("-", "_")
        yield from _names(value, f"{name}.") if isinstance(value, dict) else [(name, value)]


def _merged(values: dict[str, Any], others: dict[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    """The values with others in their places."""
    for typed, value in others.items():
        name, _, rest = typed.replace("-", "_").partition(".")
        if name not in values:
            raise UserError(f"{source}: {prefix}{typed} is not an option of this experiment; leave it out")
        value, old = {rest: value} if rest else value, values[name]
        if isinstance(old, dict) and isinstance(value, dict):
            values[name] = _merged(old, value, source, f"{prefix}{name}.")
        else:
            values[name] = _like(old, value)
    return values


def _like(old: Any, value: Any) -> Any:
    """The value as a command line gives it: one number for a list of one, 1 for 1.0, "None" for none."""
    if value == "None":  # TOML has no null
        return None
    if isinstance(old, list):
        several = value if isinstance(value, list) else [value]
        return [_like(old[0], one) for one in several] if old else several
    return float(value) if isinstance(old, float) and type(value) is int else value
