"""Options from the words of a command, by tyro, and from a `--config` file; errors as one line."""

import collections
import contextlib
import difflib
import io
import itertools
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from .config.errors import UserError, one_line
from .config.fields import from_json, to_json, without_retired
from .config.run import PLACE, RunConfig
from .experiments import EXPERIMENTS
from .system.files import expanded, read_regular, strict_json

T = TypeVar("T")

HELP = ("-h", "--help")
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has errors for those
WITH_FOLDERS = ("run", "plan")  # the commands that take the folder of a run in place of an experiment
FOLDER = "       unroll-jax {} FOLDER [--option value ...], with the options of the run in a folder\n"
WAY_OUT = "give a TOML or JSON file of options"
FRAME = re.compile(r"[\u2500-\u257f]|-{5,}")  # lines around and between tyro's messages


def parse(cls: type[T], arguments: list[str], program: str, default: T | None = None, *, hint: str = "") -> T:
    """Parses the options of a command into a dataclass; ``hint`` is the way out where an option is unknown.

    Raises:
      UserError: for an unknown or malformed option, or one that is given twice or empty.
      SystemExit: where help was asked for and is printed.
    """
    _check_words(arguments)
    given_default: dict[str, Any] = {} if default is None else {"default": default}
    printed, shown = io.StringIO(), io.StringIO()  # no terminals: colours would be escaped
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(shown):
            return tyro.cli(cls, args=arguments, prog=program, **given_default)
    except SystemExit as ended:
        if not ended.code:
            sys.stdout.write(shown.getvalue())
            raise
        raise UserError(f"{_message(printed.getvalue(), hint)}; see `{program} --help`") from None


def configured(
    command: str, arguments: list[str], known: tuple[str, RunConfig] | None = None
) -> tuple[str, RunConfig] | None:
    """The experiment and its configuration, with the options after its name; None for help.

    ``known`` are those of a run that is named in the experiment's place.
    """
    options, base = arguments[1:], known
    if base is None:
        name = experiment_named(command, arguments)
        if name is None:
            return None
        base = name, EXPERIMENTS[name].config
    name, usual = base
    default = with_file(options, usual)
    return name, parse(type(default), options, f"unroll-jax {command} {arguments[0]}", default)


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    name, takes_folders = arguments[0] if arguments else "", command in WITH_FOLDERS
    if name in HELP:
        sys.stdout.write(
            f"usage: unroll-jax {command} EXPERIMENT [--option value ...]\n"
            f"{FOLDER.format(command) if takes_folders else ''}experiments: {', '.join(EXPERIMENTS)}\n"
            f"options: unroll-jax {command} EXPERIMENT --help shows those of one\n"
        )
        return None
    if name.startswith("-"):
        raise UserError(f"{command} has its experiment first, as in `{command} demo {name} ...`, got {name}")
    if os.sep in name or name in (os.curdir, os.pardir):
        if not takes_folders:
            raise UserError(f"{command} takes the name of an experiment, not a folder, got {name}")
        raise UserError(f"there is no run folder {name}; give that of a run, or the name of an experiment")
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def with_file(options: list[str], default: RunConfig) -> RunConfig:
    """The configuration with the options of a --config FILE."""
    place = next((i for i, word in enumerate(options) if word.partition("=")[0] == "--config"), None)
    value = "" if place is None else options[place].partition("=")[2] or "".join(options[place + 1 : place + 2])
    if not value or value.startswith("--"):  # `parse` raises for a missing value
        return default
    return from_file(expanded(value, "--config"), default, f"--config {value}")


def from_file(path: Path, default: RunConfig, source: str) -> RunConfig:
    """A configuration with the options of a file, in groups or by dotted names; ``source`` names it in messages.

    It is JSON where it ends in .json, else TOML. The config.json of a run is one.

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


def given(arguments: Iterable[str], option: str) -> bool:
    """Returns whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], known: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the known ones, or missing."""
    words = f"unknown {what} {arguments[0]!r}{_suggestion(arguments[0], known)}" if arguments else f"no {what} given"
    return UserError(f"{words}; choose from {', '.join(known)}")


def _check_words(arguments: Sequence[str]) -> None:
    """Checks for words that a parser would take in silence: the last of an option's several values, empty values."""
    if "--" in arguments:
        raise UserError("-- goes before the command of launch alone; leave it out")
    names = [_name(word) for word in arguments if word.startswith("--")]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{twice[0]} is given more than once; give it once")
    option = "an argument"
    for word in arguments:
        is_option = word.startswith("--")
        option = word.partition("=")[0] if is_option else option
        value = word.partition("=")[2] if is_option and "=" in word else word
        if not value.strip() and option not in MAY_BE_EMPTY:
            raise UserError(f"{option} is empty; give it a value, or leave it out")


def _name(word: str) -> str:
    """An option as its help has it: --a_b=1 is --a-b, and --a.no-b is --a.b."""
    name = word.partition("=")[0].replace("_", "-")
    return re.sub(r"^(--(?:.*\.)?)no-", r"\1", name)


def _suggestion(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _message(printed: str, hint: str) -> str:
    """Returns tyro's first message in one line, with the hint or the names that tyro suggests."""
    lines = [FRAME.sub("", line).strip() for line in printed.splitlines()][1:]  # but the title
    message = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines))).rstrip(".")
    near = re.findall(r"^\W*(--[\w.-]+)", printed.partition("Perhaps you meant")[2], flags=re.MULTILINE)
    if hint and "Unrecognized" in message:
        return f"{message}; {hint}"
    same = [name for name in near if name.rpartition(".")[2] == near[0].rpartition(".")[2]]
    return f"{message} (did you mean {' or '.join(same)}?)" if near else message


def _read(path: Path, source: str) -> Any:
    try:
        text = read_regular(path, where=source, mend=WAY_OUT).decode()
        return strict_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} cannot be read ({one_line(error)}); {WAY_OUT}") from error


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
    # Of the text: 10^400 is infinite then, which is out of every range, and no error of Python's.
    return float(str(value)) if isinstance(old, float) and type(value) is int else value
