"""Options of a `--config` file, TOML or JSON."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UserError
from .fields import from_json, to_json, without_retired
from .run import PLACE, RunConfig

__all__ = ["from_file"]

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
    of_run, known = "version" in values, to_json(default)
    others = ("version", "experiment", "task", "found", *(PLACE if of_run else ()))
    values = {name: value for name, value in values.items() if name not in others}
    values = without_retired(values, known) if of_run else values
    return from_json(type(default), _with_options(known, values, source), source=source, typed=True)


def _read(path: Path, source: str) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{source} is not a regular file; {WAY_OUT}")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_once)
        return tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        words = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"{source} cannot be read ({words}); {WAY_OUT}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON of these pairs; a name that is there twice is an error, as in TOML."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name} is there more than once")
        values[name] = value
    return values


def _options(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a file by their dotted names, however they are grouped and written."""
    for typed, value in values.items():
        name = prefix + typed.replace("-", "_")
        yield from _options(value, f"{name}.") if isinstance(value, dict) else [(name, value)]


def _with_options(values: dict[str, Any], options: dict[str, Any], source: str) -> dict[str, Any]:
    """The values with those of the options in their places."""
    given: set[str] = set()
    for name, value in _options(options):
        *groups, last = name.split(".")
        group: Any = values
        for part in groups:
            group = group.get(part) if isinstance(group, dict) else None
        if not isinstance(group, dict) or last not in group:
            raise UserError(f"{source}: {name} is not an option of this experiment; leave it out")
        if name in given:
            raise UserError(f"{source}: {name} is there more than once; give it once")
        given.add(name)
        group[last] = _like(group[last], value)
    return values


def _like(old: Any, value: Any) -> Any:
    """The value as a command line gives it: one number for a list of one, 1 for 1.0, "None" for none."""
    if value == "None":  # TOML has no null
        return None
    if isinstance(old, list):
        several = value if isinstance(value, list) else [value]
        return [_like(old[0], one) for one in several] if old else several
    return float(value) if isinstance(old, float) and type(value) is int else value
