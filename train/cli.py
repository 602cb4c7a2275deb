"""Options from the words of a command: tyro's parser, errors of one line with the nearest name, and help."""

import collections
import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_origin

import tyro

from .config.errors import UserError
from .config.fields import allowed_words
from .config.files import from_file
from .config.options import Option, bare, choices, options_of, summary_of
from .config.run import RunConfig
from .experiments import EXPERIMENTS
from .system.files import expanded

T = TypeVar("T")

EVERY = "--help-all"
HELP = ("-h", "--help", EVERY)
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has errors for those
WITH_FOLDERS = ("run", "plan")  # the commands that take the folder of a run in place of an experiment
FOLDER = "       unroll-jax {} FOLDER [--option value ...], with the options of the run in a folder\n"


def parse(cls: type[T], arguments: list[str], program: str, default: T | None = None, *, hint: str = "") -> T:
    """Parses the options of a command.

    Args:
      cls: a dataclass.
      arguments: the words of the command.
      program: the command, for messages.
      default: an instance with the defaults; None takes those of the class.
      hint: the way out where an option is unknown.

    Raises:
      UserError: for an unknown or malformed option, or one that is given twice or empty.
      SystemExit: where help was asked for and is printed.
    """
    _check_words(arguments)
    options = list(options_of(cls, default))
    basic = any(option.is_basic for option in options)
    if flags := [word for word in arguments if word in HELP]:
        _show_help(cls, options, program, basic=basic and EVERY not in flags)
    see = f"see `{program} {EVERY if basic else '--help'}`"
    names = [option.name for option in options]
    unknown_names = [word for word in arguments if word.startswith("--") and _name(word) not in names]
    if unknown_names:
        raise UserError(f"{_unrecognized(unknown_names, names, hint)}; {see}")
    given_default: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # tyro prints some errors although it is asked not to
            parsed, stray = tyro.cli(
                cls, args=arguments, prog=program, console_outputs=False, return_unknown_args=True, **given_default
            )
    except SystemExit:
        raise UserError(f"{_problem(options, arguments, program)}; {see}") from None
    if stray:
        raise UserError(f"{_unrecognized(stray, names, hint)}; {see}")
    return parsed


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
    parsed = parse(type(default), options, f"unroll-jax {command} {arguments[0]}", default)
    return name, parsed.fitting(usual, chosen=given(options, "--constraints.warmup-steps"), log=print)


def experiment_named(command: str, arguments: list[str]) -> str | None:
    """The experiment that a command names; None where only help was asked for."""
    name, takes_folders = arguments[0] if arguments else "", command in WITH_FOLDERS
    if name in HELP:
        sys.stdout.write(
            f"usage: unroll-jax {command} EXPERIMENT [--option value ...]\n"
            f"{FOLDER.format(command) if takes_folders else ''}experiments: {', '.join(EXPERIMENTS)}\n"
            f"options: unroll-jax {command} EXPERIMENT --help shows the basic ones of one, --help-all every one\n"
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


def _unrecognized(words: Sequence[str], names: Sequence[str], hint: str) -> str:
    """The message of unknown options, with the hint, or else the nearest name."""
    message = f"Unrecognized options: {', '.join(words)}"
    if hint:
        return f"{message}; {hint}"
    word = _name(words[0])
    ends = {name.rpartition(".")[2].lstrip("-"): name for name in reversed(names)}
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    near += [ends[end] for end in difflib.get_close_matches(word.rpartition(".")[2].lstrip("-"), ends, n=1, cutoff=0.7)]
    return f"{message} (did you mean {near[0]}?)" if word.startswith("--") and near else message


def _problem(options: Sequence[Option], arguments: Sequence[str], program: str) -> str:
    """The message of words that cannot be parsed: of the first option whose values are not of its type."""
    by_name = {option.name: option for option in options}
    typed, words = _by_option(arguments)
    given_values = {
        name: [word] for name, word in zip((o.name for o in options if o.is_positional), words, strict=False)
    } | typed
    for name, values in given_values.items():
        if not by_name[name].reads(values):
            return _wrong(by_name[name], values)
    missing = (option for option in options if option.required and option.name not in given_values)
    labels = (f"{option.label} ({option.help.rstrip('.')}){_one_of(option)}" for option in missing)
    return f"Missing from {program}: {', '.join(labels)}"


def _by_option(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The values of every option, and the words before the first one."""
    typed: dict[str, list[str]] = {}
    values = words = []
    for word in arguments:
        if word.startswith("--"):
            values = typed[_name(word)] = [word.partition("=")[2]] if "=" in word else []
        else:
            values.append(word)
    return typed, words


def _wrong(option: Option, values: list[str]) -> str:
    """The message of an option whose values are not of its type."""
    if not values:
        return f"Missing value for argument '{option.label}'"
    hint, few = bare(option.hint), choices(option.hint)
    hint = get_args(hint)[0] if get_origin(hint) is tuple else hint
    wrong = next((value for value in values if not option.reads([value])), " ".join(values))
    if few:
        return f"{option.label} must be one of {', '.join(few)}, got {wrong!r}{_suggestion(wrong, few)}"
    return f"{option.label} must be {allowed_words(hint)}, got {wrong!r}"


def _one_of(option: Option) -> str:
    few = choices(option.hint)
    return f", one of {','.join(few)}" if few else ""


def _show_help(cls: Any, options: Sequence[Option], program: str, *, basic: bool) -> NoReturn:
    """Prints every option, or the basic ones and how to see the others; raises `SystemExit`."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    words = " ".join(option.usage for option in options if option.is_positional)
    lines = [f"usage: {program} {words}{' ' if words else ''}[--option value ...]", ""]
    lines += textwrap.wrap(summary_of(cls), width)
    group = ""
    for option in options:
        if basic and not option.is_basic:
            continue
        if option.group != group and "." in option.name:
            lines += ["", *textwrap.wrap(f"{option.name.rpartition('.')[0]}: {option.group}", width)]
        group = option.group
        lines.append(f"  {option.usage}")
        help_words, indent = option.help + option.default_words, " " * 6
        lines += textwrap.wrap(help_words, width, initial_indent=indent, subsequent_indent=indent)
    if basic:
        lines.append(f"every option: {program} {EVERY}")
    sys.stdout.write("\n".join(lines) + "\n")
    raise SystemExit(0)
