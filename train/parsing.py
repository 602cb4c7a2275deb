"""Options from words: tyro's parser, whose refusals become one line with the nearest name that there is."""

import collections
import dataclasses
import difflib
import functools
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import tyro
from tyro import _errors as refusals  # the structured errors; pinned, as tyro promises nothing of them
from tyro.constructors._struct_spec_dataclass import dataclass_rule

from .config.errors import UserError
from .config.fields import BASIC

# How the application is started: from a clone, or installed with the library.

T = TypeVar("T")

EVERY = "--help-all"
HELP = ("-h", "--help", EVERY)
KINDS = {int: "a whole number, as in 1000", float: "a number, as in 0.1 or 1e-3"}
# Options in messages of the readers of data, who know them as fields of a configuration.
DATA = "root|source|prepared|validation_share|reduction|text_column|label_column|second_column"
FIELD = re.compile(
    rf"(?<![\w./-])(?:--)?(data\.(?:{DATA})\b|(?:model\.pretrained|model\.embeddings|embeddings|revision)(?==))(=?)"
)
WITH_DATA = ("run", "plan", "sweep", "figures", "prepare")  # those that take options of data
# Where a command takes an option by another name than --FIELD.
NAMES = {
    "prepare": {"data.root": "--from", "data.prepared": "UNROLL_PREPARED", "data.source": "prepare"},
    "figures": {"embeddings": "--embeddings"},
    "": {"embeddings": "--model.embeddings", "revision": "--model.revision"},
}
MAY_BE_EMPTY = ("--text", "--second")  # texts of predict, which has words of its own for those


def parse(cls: type[T], arguments: list[str], program: str, default: T | None = None, *, hint: str = "") -> T:
    """A ``cls`` from a command's options; ``hint`` is the way out where one is unknown, beside the command's help.

    An unknown or malformed option, or one that is given twice or empty, is refused in one line. Where help was asked
    for, it is printed, and `SystemExit` raised: where some of its options are `Basic`, these by --help.
    """
    _check_words(arguments)
    has_basic = next(_basic(cls), None) is not None
    if help_flags := [word for word in arguments if word in HELP]:
        _show_help(cls, program, default, basic=has_basic and EVERY not in help_flags)

    def refuse(event: refusals.ParseErrorEvent) -> None:
        message = _message(event, arguments, hint, list(_options(cls, default)))
        raise UserError(f"{message}; see `{program} {EVERY if has_basic else '--help'}`")

    with refusals.on_parse_error(refuse):
        return tyro.cli(cls, args=arguments, **_told(program, default))


def given(arguments: Iterable[str], option: str) -> bool:
    """Returns whether an option is among the words of a command."""
    return option in map(_name, arguments)


def unknown(what: str, arguments: Sequence[str], choices: Sequence[str]) -> UserError:
    """The error of a command whose first word is none of the choices, or missing."""
    words = f"unknown {what} {arguments[0]!r}{_suggestion(arguments[0], choices)}" if arguments else f"no {what} given"
    return UserError(f"{words}; choose from {', '.join(choices)}")


def as_typed(message: str, command: str) -> str:
    """A message with data.FIELD=VALUE as ``command`` takes it, and commands as this installation has them.

    Example:
      >>> as_typed("data.root=clips is empty; see data.source=file", "run")
      '--data.root clips is empty; see --data.source file'
      >>> as_typed("data.root=clips is empty; see data.source=file", "prepare")
      '--from clips is empty; see prepare file'
    """
    if command not in WITH_DATA or message.startswith("Unrecognized"):
        # Data are those of a run's config.json; or the option is quoted.
        return message.replace("data.prepared or UNROLL_PREPARED", "UNROLL_PREPARED")

    def option(match: re.Match[str]) -> str:
        field, value = match.groups()
        plain = field.removeprefix("data.") if command == "prepare" else field
        name = (NAMES[""] | NAMES.get(command, {})).get(field, f"--{plain.replace('_', '-')}")
        return f"{name} " if value else name

    return FIELD.sub(option, message).replace("UNROLL_PREPARED or UNROLL_PREPARED", "UNROLL_PREPARED")


def _told(program: str, default: Any) -> dict[str, Any]:
    options: dict[str, Any] = {} if default is None else {"default": default}
    return {"prog": program, **options}


def _show_help(cls: Any, program: str, default: Any, *, basic: bool) -> NoReturn:
    """Prints every option, or the basic ones and how to see the others; raises `SystemExit`."""
    registry = tyro.constructors.ConstructorRegistry()
    registry.struct_rule(functools.partial(_help_rule, basic=basic))
    try:
        tyro.cli(cls, args=["--help"], registry=registry, **_told(program, default))
    finally:
        if basic:
            sys.stdout.write(f"every option: {program} {EVERY}\n")
    raise AssertionError("tyro leaves when it has printed its help")


def _help_rule(info: Any, *, basic: bool) -> Any:
    """tyro's rule for dataclasses, with the words of each field in one line, as tyro breaks them to the terminal's.

    With ``basic``, fields that are neither basic nor groups are left out.
    """
    spec = dataclass_rule(info)
    if spec is None:
        return None
    shown = set(_basic(info.type)) if basic else {field.name for field in spec.fields}
    fields = (
        dataclasses.replace(
            field,
            helptext=functools.partial(_words, field.helptext),
            type=field.type
            if field.name in shown or dataclasses.is_dataclass(field.default)
            else tyro.conf.Suppress[field.type],
        )
        for field in spec.fields
    )
    return dataclasses.replace(spec, fields=tuple(fields))


def _basic(cls: Any) -> Iterator[str]:
    """The names of a dataclass's fields that it, or a base whose default it changes, marks as `Basic`."""
    for base in (typing.get_origin(cls) or cls).__mro__:
        hints = typing.get_type_hints(base, include_extras=True)
        yield from (name for name, hint in hints.items() if BASIC in getattr(hint, "__metadata__", ()))


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
        if not value.strip() and option not in MAY_BE_EMPTY:
            raise UserError(f"{option} is empty; give it a value, or leave it out")


def _name(word: str) -> str:
    """An option as its help has it: --a_b=1 is --a-b, and --a.no-b is --a.b."""
    name = word.partition("=")[0].replace("_", "-")
    return re.sub(r"^(--(?:.*\.)?)no-", r"\1", name)


def _suggestion(word: str, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _message(event: refusals.ParseErrorEvent, arguments: Sequence[str], hint: str, options: Sequence[str]) -> str:
    """A refusal in one line; an unknown option's with the hint, or else the nearest name."""
    if isinstance(event, refusals.UnrecognizedArgs):
        message = f"Unrecognized options: {', '.join(event.tokens)}"
        near = hint or _nearest(event.tokens, options)
        return f"{message}; {hint}" if hint else f"{message} (did you mean {near}?)" if near else message
    if isinstance(event, refusals.InvalidChoice):
        name, choices = event.argument.display_name(), event.choices
        return f"{name} must be one of {', '.join(choices)}, got {event.value!r}{_suggestion(event.value, choices)}"
    if isinstance(event, refusals.BadValue):
        return f"Missing value for argument '{event.argument.display_name()}'"
    if isinstance(event, refusals.MissingArgs):
        missing = [one.arg for one in event.missing_arguments]
        words = (f"{arg.display_name()} ({_help(arg)}){_choices(arg.lowered.choices)}" for arg in missing)
        return f"Missing from {event.prog}: {', '.join(words)}"
    if isinstance(event, refusals.InstantiationFailure) and event.argument is not None:
        name, kind = event.argument.display_name(), event.argument.field.type_stripped
        value = _values(arguments, name)
        wanted = KINDS.get(kind)
        return f"{name} must be {wanted}, got {value!r}" if wanted else f"{name} must be {_form(event)}, got {value}"
    return " ".join(str(getattr(event, "message", type(event).__name__)).split())


def _help(argument: Any) -> str:
    """The words that its dataclass has for an argument."""
    return _words(argument.field.helptext).rstrip(".")


def _words(told: Any) -> str:
    """The words of a field in one line, which tyro looks up when they are asked for."""
    return " ".join(str((told() if callable(told) else told) or "").split())


def _form(event: refusals.InstantiationFailure) -> str:
    return str(event.argument.lowered.metavar) if event.argument else ""


def _choices(choices: Sequence[str] | None) -> str:
    return f", one of {','.join(choices)}" if choices else ""


def _nearest(tokens: Sequence[str], options: Sequence[str]) -> str | None:
    """The option most like the first one of the tokens, by its whole name or the part behind its last dot."""
    word = next((_name(token) for token in tokens if token.startswith("--")), None)
    if word is None:
        return None

    def bare(name: str) -> str:
        return name.lstrip("-").rpartition(".")[2]

    def likeness(option: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, word, option).ratio()
        return max(whole, difflib.SequenceMatcher(None, bare(word), bare(option)).ratio()), whole

    near = max(options, key=likeness, default="")
    return near if near and likeness(near)[0] >= 0.7 else None


def _values(arguments: Sequence[str], option: str) -> str:
    """Returns the values given to an option, in one string."""
    place = next(place for place, word in enumerate(arguments) if _name(word) == option)
    value = arguments[place].partition("=")[2:]
    behind = itertools.takewhile(lambda word: not word.startswith("--"), arguments[place + 1 :])
    return " ".join([*filter(None, value), *behind])


def _options(cls: Any, default: Any = None, prefix: str = "") -> Iterator[str]:
    """The options of a dataclass, or a named tuple, as they are typed."""
    cls = typing.get_origin(cls) or cls  # of a generic one
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields
    for name in names:
        told = [getattr(extra, "name", None) for extra in getattr(hints[name], "__metadata__", ())]
        shown = next((one for one in told if isinstance(one, str)), name.replace("_", "-"))
        value = getattr(default, name, None)
        path = ".".join(filter(None, (prefix, shown)))
        if dataclasses.is_dataclass(value):
            yield from _options(type(value), value, path)
        else:
            yield f"--{path}"
