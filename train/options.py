"""The configuration that a command line means: an experiment's, a run's or a file's, and the options behind it."""

import collections
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .config.commands import elsewhere
from .config.errors import UserError
from .config.fields import from_json, to_json
from .config.run import PLACE, RunConfig
from .experiments import EXPERIMENTS
from .parsing import HELP, given, parse, unknown
from .system.files import expanded

# Scalars of YAML 1.1, which PyYAML reads, but for what surprises: 1e-3 is a number; 100:5 (60 times 100, and 5), 010
# (octal), on, off, yes, no and dates are texts.
SCALARS = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "merge": ("<<", "<"),
}
OF_RUNS = ("run", "plan")  # the commands that take the folder of a run in place of an experiment
FOLDER = "       unroll-jax {} FOLDER [--option value ...], with the options of the run in a folder\n"
TWICE = object()  # in place of the values of a name that a mapping of a file has more than once


def configured(
    command: str, arguments: list[str], known: tuple[str, RunConfig] | None = None
) -> tuple[str, RunConfig] | None:
    """The experiment and its configuration, with the options behind its name; None for help.

    ``known`` are those of a run that is named in the experiment's place.
    """
    options, base = arguments[1:], known
    if base is None:
        name = experiment_named(command, arguments)
        if name is None:
            return None
        base = name, EXPERIMENTS[name].config
    name, usual = base
    default = from_file(options, usual)
    program, hint = f"unroll-jax {command} {arguments[0]}", elsewhere(command, arguments)
    parsed = parse(type(default), options, program, default, hint=hint)
    config = parsed.fitting(usual, chosen=given(options, "--constraints.warmup-steps"), log=print)
    config.check()  # before what takes seconds to import
    return name, config


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    name = arguments[0] if arguments else ""
    if name in HELP:
        sys.stdout.write(
            f"usage: unroll-jax {command} EXPERIMENT [--option value ...]\n"
            f"{FOLDER.format(command) if command in OF_RUNS else ''}"
            f"experiments: {', '.join(EXPERIMENTS)}\n"
            f"options: unroll-jax {command} EXPERIMENT --help shows those of one, as in `{command} demo --help`:\n"
            "         the basic ones; --help-all in its place shows every one\n"
        )
        return None
    if name.startswith("-"):
        raise UserError(f"{command} has its experiment first, as in `{command} demo {name} ...`, got {name}")
    if command not in OF_RUNS and (os.sep in name or name in (os.curdir, os.pardir)):
        raise UserError(f"{command} takes the name of an experiment and no folder, got {name}; see `unroll-jax list`")
    if os.sep in name:
        raise UserError(f"there is no run folder {name}; give that of a run, or the name of an experiment")
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def from_file(options: list[str], default: RunConfig) -> RunConfig:
    """The configuration with the options of a --config FILE, by the names that are typed, or in groups."""
    place = next((i for i, word in enumerate(options) if word.partition("=")[0] == "--config"), None)
    value = "" if place is None else options[place].partition("=")[2] or "".join(options[place + 1 : place + 2])
    if not value or value.startswith("--"):  # none, which `parse` refuses
        return default
    source = f"--config {value}"
    values = _read(expanded(value, "--config"), source)
    if not isinstance(values, dict):
        raise UserError(f"{source} holds no options by name; give a YAML or JSON file of options")
    # Where a run was is no option of another one.
    others = ("version", "experiment", "task", "found", *(PLACE if "version" in values else ()))
    values = {name: value for name, value in values.items() if name not in others}
    _check_once(values, source)
    return from_json(type(default), _merged(to_json(default), values, source), source=source, typed=True)


def _loader() -> Any:
    """YAML's safe loader, with the scalars of `SCALARS`, and `TWICE` where a mapping has a key twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's safe loader, which gives keys that a mapping has twice the value `TWICE`."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []  # all else is refused below
            marked = _marked([(key.value, None) for key, _ in pairs if isinstance(key, yaml.ScalarNode)])
            twice = {name: TWICE for name, value in marked.items() if value is TWICE}
            return super().construct_mapping(node, deep=deep) | twice

    Loader.yaml_implicit_resolvers = {}  # those of YAML 1.1
    for name, (form, starts) in SCALARS.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"(?:{form})$"), list(starts))
    return Loader


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of the pairs, with `TWICE` for names that are there more than once."""
    counts = collections.Counter(name for name, _ in pairs)
    return {name: TWICE if counts[name] > 1 else value for name, value in pairs}


def _check_once(values: dict[Any, Any], source: str) -> None:
    """Refuses an option that is there more than once, in one group or in several."""
    for name, value in _marked(list(_names(values))).items():
        if value is TWICE:
            raise UserError(f"{source}: {name} is there more than once; give it once")


def _names(values: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a file by their dotted names, however they are grouped and written."""
    for typed, value in values.items():
        name = prefix + str(typed).replace("-", "_")
        yield from _names(value, f"{name}.") if isinstance(value, dict) else [(name, value)]


def _read(path: Path, source: str) -> Any:
    import yaml  # a few milliseconds, which only those wait for who give a file

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_marked)
        return yaml.load(text, Loader=_loader())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        words = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"{source} cannot be read ({words}); give a YAML or JSON file of options") from error


def _merged(values: dict[str, Any], others: dict[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    """The values with others in their places."""
    for typed, value in others.items():
        name, _, rest = str(typed).replace("-", "_").partition(".")
        if name not in values:
            raise UserError(f"{source}: {prefix}{typed} is no option of this experiment; leave it out")
        value, old = {rest: value} if rest else value, values[name]
        if isinstance(old, dict) and isinstance(value, dict):
            values[name] = _merged(old, value, source, f"{prefix}{name}.")
        else:
            values[name] = _like(old, value)
    return values


def _like(old: Any, value: Any) -> Any:
    """The value as a command line gives it: one number serves where there may be several, 1 is 1.0."""
    if isinstance(old, list):
        several = value if isinstance(value, list) else [value]
        return [_like(old[0], one) for one in several] if old else several
    return float(value) if isinstance(old, float) and type(value) is int else value
