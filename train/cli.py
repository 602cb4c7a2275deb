"""Options from the words of a command, by tyro, and from files of options; errors as
one line."""

import collections
import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tyro

from .config.errors import OptionError, UserError, one_line
from .config.options import from_json
from .config.run import PLACE, RunConfig
from .experiments import EXPERIMENTS
from .system.files import expanded, read_object
from .system.reading import read_regular

T = TypeVar("T")

HELP = ("-h", "--help")
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has errors for those
# the commands that take the folder of a run in place of an experiment
WITH_FOLDERS = ("run", "plan")
USAGE = """\
usage: unroll-jax {command} EXPERIMENT [--option value ...]
{folder}experiments: {experiments}
options: unroll-jax {command} EXPERIMENT --help shows those of one
"""
FOLDER = """\
       unroll-jax {} FOLDER [--option value ...], with the options of that run
"""
WAY_OUT = "give a TOML file of options, or the config.json of a run of this experiment"
FRAME = re.compile(r"[\u2500-\u257f]|-{5,}")  # lines around and between tyro's messages
NOT_OPTIONS = ("version", "experiment", "task", "found")  # of a config.json
NARROWEST = 40  # columns in which tyro can draw


def parse(
    cls: type[T],
    arguments: list[str],
    program: str,
    default: T | None = None,
    *,
    hint: str = "",
) -> T:
    """Parses a command's options into a dataclass; ``hint`` is for unknown options."""
    _check_words(arguments)
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    given_default: dict[str, Any] = {} if default is None else {"default": default}
    # no terminals: colours would be escaped
    printed, shown = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(shown):
            return tyro.cli(cls, args=arguments, prog=program, **given_default)
    except SystemExit as ended:
        if not ended.code:
            sys.stdout.write(shown.getvalue())
            raise
        message = f"{_message(printed.getvalue(), hint)}; see `{program} --help`"
        raise _option_error(ended) or UserError(message) from None


def configured(
    command: str, arguments: list[str], known: tuple[str, RunConfig] | None = None
) -> tuple[str, RunConfig] | None:
    """The experiment and its configuration (of a run: ``known``), with the options
    after its name; None for help."""
    options = arguments[1:]
    if known is None:
        name = experiment_named(command, arguments)
        if name is None:
            return None
        known = name, EXPERIMENTS[name].config
    name, usual = known
    program = f"unroll-jax {command} {arguments[0]}"
    config = parse(type(usual), options, program, usual)
    if config.config:
        default = with_file(config.config, usual)
        config = parse(type(usual), options, program, default)
    return name, config


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    name = arguments[0] if arguments else ""
    takes_folders = command in WITH_FOLDERS
    if name in HELP:
        folder = FOLDER.format(command) if takes_folders else ""
        names = ", ".join(EXPERIMENTS)
        sys.stdout.write(
            USAGE.format(command=command, folder=folder, experiments=names)
        )
        return None
    if name.startswith("-"):
        raise UserError(
            f"{command} has its experiment first, as in `{command} demo {name} ...`,"
            f" got {name}"
        )
    if os.sep in name or name in (os.curdir, os.pardir):
        problem = f"{command} takes the name of an experiment, not a folder, got {name}"
        if takes_folders:
            problem = (
                f"there is no run folder {name}; give that of a run, or the name of an"
                " experiment"
            )
        raise UserError(problem)
    if name not in EXPERIMENTS:
        raise unknown("experiment", arguments, list(EXPERIMENTS))
    return name


def with_file(file: str, usual: RunConfig) -> RunConfig:
    """The configuration with the options of a TOML file, or all those of the
    config.json of a run but its place."""
    path, source = expanded(file, "--config"), f"--config {file}"
    if path.suffix == ".toml":
        try:
            text = read_regular(path, where=source, mend=WAY_OUT).decode()
            words = list(_words(tomllib.loads(text)))
        except (ValueError, RecursionError) as error:
            problem = f"{source} cannot be read ({one_line(error)}); {WAY_OUT}"
            raise UserError(problem) from error
        return parse(
            type(usual), words, "unroll-jax run", usual, hint=f"leave it out of {file}"
        )
    missing = f"{source} does not exist; {WAY_OUT}"
    values = read_object(path, missing=missing, mend=WAY_OUT)
    for name in NOT_OPTIONS:
        values.pop(name, None)
    values |= {name: getattr(usual, name) for name in PLACE}
    return from_json(type(usual), values, source=source, again=WAY_OUT)


def given(arguments: Iterable[str], option: str) -> bool:
    """Returns whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], known: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the known ones, or missing."""
    words = f"no {what} given"
    if arguments:
        near = difflib.get_close_matches(arguments[0], known, n=1)
        words = f"unknown {what} {arguments[0]!r}{_suggestion(near)}"
    choices = f"choose from {', '.join(known)}"
    if len(known) > 20:
        choices = "`unroll-jax list` shows all"
    return UserError(f"{words}; {choices}")


def _words(options: Mapping[str, Any], group: str = "--") -> Iterator[str]:
    """The options of a TOML file as words of a command."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _words(value, f"{group}{name}.")
        elif isinstance(value, bool):
            yield f"{group}{'' if value else 'no-'}{name}"
        else:
            yield group + name
            yield from map(str, value if isinstance(value, list) else [value])


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
        value = word
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            value = value if equals else option
        if not value.strip() and option not in MAY_BE_EMPTY:
            raise UserError(f"{option} is empty; give it a value, or leave it out")


def _name(word: str) -> str:
    """An option as its help has it: --a_b=1 is --a-b, and --a.no-b is --a.b."""
    name = word.partition("=")[0].replace("_", "-")
    return re.sub(r"^(--(?:.*\.)?)no-", r"\1", name)


def _suggestion(near: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _option_error(ended: SystemExit) -> OptionError | None:
    """The error of an option's value because of which tyro ended, with the group of
    the option; None for other mistakes."""
    fault: Any = ended.__context__
    if isinstance(fault, OptionError):
        return fault
    error = getattr(fault, "__context__", None)
    if not isinstance(error, OptionError):
        return None
    group = fault.arg.removeprefix("config.")  # the part of a sweep's arguments
    return OptionError(f"{group}.{error.field}", error.allowed, error.value)


def _message(printed: str, hint: str) -> str:
    """Returns tyro's first message in one line, with the hint or the names that tyro
    suggests."""
    lines = [FRAME.sub("", line).strip() for line in printed.splitlines()]
    paragraphs = "\n".join(lines[1:]).strip().split("\n\n")  # but the title
    message = " ".join(paragraphs[0].split()).rstrip(".")
    if hint and "Unrecognized" in message:
        return f"{message}; {hint}"
    near = re.search(r"Perhaps you meant[^-]*(--[\w.-]+)", printed)
    return message + _suggestion(near.groups() if near else ())
