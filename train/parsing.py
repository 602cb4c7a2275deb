"""Options from words: tyro's parser, whose errors become one line with the nearest name that there is."""

import ast
import collections
import contextlib
import difflib
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import tyro

from train.errors import UserError

__all__ = ["given", "parse", "unknown"]

T = TypeVar("T")

CHOICE = re.compile(
    r"invalid choice (?P<word>'.*'|\".*\") for argument '(?P<option>.*)'\. Expected one of (?P<all>\(.*\))"
)
NUMBERS = (
    (re.compile(r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)"), "a whole number, as in 1000"),
    (re.compile(r"Error parsing (\S+): could not convert string to float: (.*)"), "a number, as in 0.1 or 1e-3"),
)
VALUE = re.compile(r"Error parsing (\S+): .*\[.*\]$")


def parse(cls: type[T], arguments: list[str], program: str, default: T | None = None, *, hint: str = "") -> T:
    """A ``cls`` from a command's options; ``hint`` is the way out where one is unknown, beside the command's help.

    Raises:
      UserError: for an unknown or malformed option, or one that is given twice or empty, in one line.
      SystemExit: where help was asked for, once it is printed.
    """
    errors = io.StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    _check_words(arguments)
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(cls, args=arguments, prog=program, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        message = _plain(errors.getvalue(), arguments, hint)
        raise UserError(f"{message}; see `{program} --help`") from None


def given(arguments: Iterable[str], option: str) -> bool:
    """Whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], choices: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the choices, or missing."""
    words = f"unknown {what} {arguments[0]!r}{_suggestion(arguments[0], choices)}" if arguments else f"no {what} given"
    return UserError(f"{words}; choose from {', '.join(choices)}")


def _check_words(arguments: Sequence[str]) -> None:
    """Refuses what a parser would take in silence: the last of one option's several values, and empty values."""
    if "--" in arguments:
        raise UserError("-- stands before the command of launch alone; leave it out")
    names = [_name(word) for word in arguments if word.startswith("--")]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{twice[0]} is given more than once; give it once")
    option = "an argument"
    for word in arguments:
        is_option = word.startswith("--")
        option = word.partition("=")[0] if is_option else option
        value = word.partition("=")[2] if is_option and "=" in word else word
        if not value.strip() and option not in _MAY_BE_EMPTY:
            raise UserError(f"{option} is empty; give it a value, or leave it out")


def _name(word: str) -> str:
    """An option as its help has it: --a_b=1 is --a-b, and --a.no-b is --a.b."""
    name = word.partition("=")[0].replace("_", "-")
    return re.sub(r"^(--(?:.*\.)?)no-", r"\1", name)


def _suggestion(word: str, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _plain(box: str, arguments: Sequence[str], hint: str) -> str:
    """The error of one of tyro's boxes in one line; an unknown option's with the hint, or else the nearest name."""
    parts = _parts(box)
    message = " ".join(parts[0]).rstrip(".")
    if found := CHOICE.search(message):
        word, choices = ast.literal_eval(found["word"]), ast.literal_eval(found["all"])
        return f"{found['option']} must be one of {', '.join(choices)}, got {word!r}{_suggestion(word, choices)}"
    for pattern, wanted in NUMBERS:
        if found := pattern.search(message):
            return f"{found[1]} must be {wanted}, got {found[2]}"
    if found := VALUE.search(message):
        form = next((line for part in parts for line in part if line.startswith(found[1])), found[1])
        return f"{form.replace(' ', ' must be ', 1)}, got {_values(arguments, found[1])}"
    if hint and message.startswith("Unrecognized options"):
        return f"{message}; {hint}"
    near = [
        line.split()[0].rstrip(",")
        for part in parts
        if part[0].startswith("Perhaps")
        for line in part
        if line.startswith("--")
    ]
    return f"{message} (did you mean {_nearest(message, near)}?)" if near else message


def _nearest(message: str, options: Sequence[str]) -> str:
    """The option most like the first one that a message quotes, by its whole name or the part behind its last dot."""
    word = next((part.rstrip(",") for part in message.split() if part.startswith("--")), "")

    def bare(name: str) -> str:
        return name.lstrip("-").rpartition(".")[2]

    def likeness(option: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, word, option).ratio()
        return max(whole, difflib.SequenceMatcher(None, bare(word), bare(option)).ratio()), whole

    return max(options, key=likeness)


def _values(arguments: Sequence[str], option: str) -> str:
    """What was given to an option; boxes fold long values."""
    place = next(place for place, word in enumerate(arguments) if _name(word) == option)
    value = arguments[place].partition("=")[2:]
    behind = itertools.takewhile(lambda word: not word.startswith("--"), arguments[place + 1 :])
    return " ".join([*filter(None, value), *behind])


def _parts(box: str) -> list[list[str]]:
    """The lines of a box behind its title, parted at its rules."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        text = line.strip(" │|")
        if text.strip("─-╰╯+"):
            parts[-1].append(text)
        else:
            parts.append([])
    return [part for part in parts if part] or [[]]


_MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has words of its own for those
