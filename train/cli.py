"""Options from the words of a command, by tyro, and from files of options; errors as
one line."""

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
from .config.fields import from_json, to_json, value_of, with_value
from .config.run import LENGTHS, PLACE, RunConfig
from .experiments import EXPERIMENTS
from .system.files import expanded, read_object
from .system.reading import read_regular

T = TypeVar("T")

HELP = ("-h", "--help")
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has errors for those
# the commands that take the folder of a run in place of an experiment
WITH_FOLDERS = ("run", "plan")
FOLDER = (
    "       unroll-jax {} FOLDER [--option value ...], with the options of the run in a"
    " folder\n"
)
# The options that a help begins with, as far as an experiment has them.
FIRST = {
    "method": (
        "plain, constrained, deep_supervision; both or all trains and compares them"
    ),
    "steps": "training steps",
    "epochs": "passes over the train split",
    "data.source": "name of the data",
    "data.root": "path of your own data",
    "out": "folder of the run, and of its report",
    "seed": "of initialisation, batches and noise",
}
WAY_OUT = "give a TOML file of options, or the config.json of a run of this experiment"
FRAME = re.compile(r"[\u2500-\u257f]|-{5,}")  # lines around and between tyro's messages


def parse(
    cls: type[T],
    arguments: list[str],
    program: str,
    default: T | None = None,
    *,
    hint: str = "",
    head: str = "",
) -> T:
    """Parses a command's options into a dataclass; ``hint`` is for unknown options,
    ``head`` comes before the help."""
    _check_words(arguments)
    given_default: dict[str, Any] = {} if default is None else {"default": default}
    # no terminals: colours would be escaped
    printed, shown = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(shown):
            return tyro.cli(cls, args=arguments, prog=program, **given_default)
    except SystemExit as ended:
        if not ended.code:
            sys.stdout.write(head + shown.getvalue())
            raise
        raise UserError(
            f"{_message(printed.getvalue(), hint)}; see `{program} --help`"
        ) from None


def configured(
    command: str, arguments: list[str], known: tuple[str, RunConfig] | None = None
) -> tuple[str, RunConfig] | None:
    """The experiment and its configuration (of a run: ``known``), with the options
    after its name; None for help."""
    options, base = arguments[1:], known
    if base is None:
        name = experiment_named(command, arguments)
        if name is None:
            return None
        base = name, EXPERIMENTS[name].config
    name, usual = base
    default, program = with_file(options, usual), f"unroll-jax {command} {arguments[0]}"
    hint, first = other_length(options, usual), head(program, usual)
    config = parse(type(default), options, program, default, hint=hint, head=first)
    for field, value in () if known else config.followers():
        if value_of(config, field) == value_of(usual, field) and not given(
            options, f"--{field.replace('_', '-')}"
        ):
            config = with_value(config, field, value)
    return name, config


def head(program: str, config: RunConfig) -> str:
    """Returns an example and the first options, with their defaults, for the
    beginning of a help of all options."""
    fields = [name for name in FIRST if hasattr(config, name.partition(".")[0])][:5]
    lines = [
        f"  --{name.replace('_', '-'):13} {value_of(config, name)!s:12} {FIRST[name]}\n"
        for name in fields
    ]
    length = next(
        (f" --{name} {getattr(config, name)}" for name in LENGTHS if name in fields), ""
    )
    return (
        f"example: {program}{length} --out runs/mine\n\nfirst options, with"
        f" defaults:\n{''.join(lines)}\n"
    )


def other_length(options: Iterable[str], config: RunConfig) -> str:
    """Returns the way out for `--steps` of a task of epochs, and the other way
    round; else ""."""
    wrong = any(
        given(options, f"--{name}") and not hasattr(config, name) for name in LENGTHS
    )
    right = [
        f"such runs have --{name}, here {getattr(config, name)}"
        for name in LENGTHS
        if hasattr(config, name)
    ]
    return right[0] if wrong and right else ""


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    name, takes_folders = arguments[0] if arguments else "", command in WITH_FOLDERS
    if name in HELP:
        sys.stdout.write(
            f"usage: unroll-jax {command} EXPERIMENT [--option value"
            f" ...]\n{FOLDER.format(command) if takes_folders else ''}experiments:"
            f" {', '.join(EXPERIMENTS)}\noptions: unroll-jax {command} EXPERIMENT"
            " --help shows those of one\n"
        )
        return None
    if name.startswith("-"):
        raise UserError(
            f"{command} has its experiment first, as in `{command} demo {name} ...`,"
            f" got {name}"
        )
    if os.sep in name or name in (os.curdir, os.pardir):
        if not takes_folders:
            raise UserError(
                f"{command} takes the name of an experiment, not a folder, got {name}"
            )
        raise UserError(
            f"there is no run folder {name}; give that of a run, or the name of an"
            " experiment"
        )
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def with_file(options: list[str], default: RunConfig) -> RunConfig:
    """The configuration with the options of a --config FILE."""
    place = next(
        (i for i, word in enumerate(options) if word.partition("=")[0] == "--config"),
        None,
    )
    value = (
        ""
        if place is None
        else options[place].partition("=")[2] or "".join(options[place + 1 : place + 2])
    )
    if not value or value.startswith("--"):  # `parse` raises for a missing value
        return default
    path, source = expanded(value, "--config"), f"--config {value}"
    if path.suffix != ".toml":
        return from_run(path, default, source)
    try:
        values = tomllib.loads(read_regular(path, where=source, mend=WAY_OUT).decode())
    except ValueError as error:
        raise UserError(
            f"{source} cannot be read ({one_line(error)}); {WAY_OUT}"
        ) from error
    return parse(
        type(default),
        list(_words(values)),
        "unroll-jax run",
        default,
        hint=f"leave it out of {value}",
    )


def from_run(path: Path, default: RunConfig, source: str) -> RunConfig:
    """A configuration with the options of the config.json of a run, but for its
    place; ``source`` is for messages."""
    values = read_object(
        path, missing=f"{source} does not exist; {WAY_OUT}", mend=WAY_OUT
    )
    if "version" not in values:
        raise UserError(f"{source} has no version of a run; {WAY_OUT}")
    # Where a run was is not an option of another one.
    others, place = (
        ("version", "experiment", "task", "found", *PLACE),
        {name: to_json(default)[name] for name in PLACE},
    )
    values = {
        name: value for name, value in values.items() if name not in others
    } | place
    return from_json(type(default), values, source=source, again=WAY_OUT)


def given(arguments: Iterable[str], option: str) -> bool:
    """Returns whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], known: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the known ones, or missing."""
    words = (
        f"unknown {what} {arguments[0]!r}{_suggestion(arguments[0], known)}"
        if arguments
        else f"no {what} given"
    )
    choices = (
        "`unroll-jax list` shows all"
        if len(known) > 20
        else f"choose from {', '.join(known)}"
    )
    return UserError(f"{words}; {choices}")


def _words(options: dict[str, Any], group: str = "--") -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _words(value, f"{group}{name}.")
        elif isinstance(value, bool):
            yield f"{group}{'' if value else 'no-'}{name}"
        else:
            yield from (
                group + name,
                *map(str, value if isinstance(value, list) else [value]),
            )


def _check_words(arguments: Sequence[str]) -> None:
    """Checks for words that a parser would take silently: the last of an option's
    several values, empty values."""
    if "--" in arguments:
        raise UserError("-- is no option; leave it out")
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
    """Returns tyro's first message in one line, with the hint or the names that tyro
    suggests."""
    # but the title
    lines = [FRAME.sub("", line).strip() for line in printed.splitlines()][1:]
    message = " ".join(
        itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines))
    ).rstrip(".")
    near = re.findall(
        r"^\W*(--[\w.-]+)",
        printed.partition("Perhaps you meant")[2],
        flags=re.MULTILINE,
    )
    if hint and "Unrecognized" in message:
        return f"{message}; {hint}"
    same = [
        name for name in near if name.rpartition(".")[2] == near[0].rpartition(".")[2]
    ]
    return f"{message} (did you mean {' or '.join(same)}?)" if near else message
