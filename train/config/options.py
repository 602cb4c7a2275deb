"""The options of a command: what the fields of its dataclass are called, take and mean on a command line."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from .fields import BASIC, hints_of

__all__ = ["Option", "options_of"]

METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}


class Option(NamedTuple):
    """An option, or a positional argument.

    Attributes:
      name: as it is typed, --data.root; of a positional argument its field.
      hint: the type of its value, with its range.
      default: the value without it; `dataclasses.MISSING` where it must be given.
      help: the docstring of its field.
      group: docstring of the dataclass that has the field.
      is_basic: whether it, or a field that it overrides, is marked as `Basic`.
    """

    name: str
    hint: Any
    default: Any
    help: str
    group: str
    is_basic: bool

    @property
    def is_positional(self) -> bool:
        """True for a word without a name."""
        return not self.name.startswith("--")

    @property
    def usage(self) -> str:
        """Its name and the form of its value, as in --steps INT."""
        if bare(self.hint) is bool:
            group, dot, name = self.name.removeprefix("--").rpartition(".")
            return f"{self.name}, --{group}{dot}no-{name}"
        form = metavar(self.hint)
        if self.is_positional:
            return form if form.startswith("{") else self.label
        return f"{self.name} {form}"

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.name.upper() if self.is_positional else self.name

    @property
    def required(self) -> bool:
        """True without a default."""
        return self.default is dataclasses.MISSING

    @property
    def default_words(self) -> str:
        """Its default, after its help."""
        if self.required:
            return " (required)"
        value = " ".join(map(str, self.default)) if isinstance(self.default, tuple) else self.default
        return f" (default: {value})"

    def reads(self, words: list[str]) -> bool:
        """Returns whether words are a value of its type, whatever its range."""
        return _reads(self.hint, words)


def options_of(cls: Any, default: Any = None, prefix: str = "") -> Iterator[Option]:
    """Yields the options of a dataclass, those of its parts too.

    Args:
      cls: the dataclass.
      default: an instance, whose values are the defaults; None takes those of the class.
      prefix: of their names.
    """
    cls = get_origin(cls) or cls
    docs, group, basic = _docs(cls), summary_of(cls), _basic(cls)
    for field in dataclasses.fields(cls):
        hint = hints_of(cls)[field.name]
        extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        named = [extra.name for extra in extras if isinstance(getattr(extra, "name", None), str)]
        name = ".".join(filter(None, (prefix, named[0] if named else field.name.replace("_", "-"))))
        value = _default(field) if default is None else getattr(default, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from options_of(type(value), value, name)
            continue
        positional = any(str(extra) == "Positional" for extra in extras)
        typed = field.name if positional else f"--{name}"
        yield Option(typed, hint, value, docs.get(field.name, ""), group, field.name in basic)


def summary_of(cls: Any) -> str:
    """The first paragraph of the docstring of a dataclass, in one line."""
    return " ".join(((get_origin(cls) or cls).__doc__ or "").partition("\n\n")[0].split())


def bare(hint: Any) -> Any:
    """A type without its ranges and marks."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def metavar(hint: Any) -> str:
    """The form of a value, as in INT or {a,b}."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return metavar(parts[0])
    if kind in (Union, UnionType):
        return "|".join(map(metavar, parts))
    if kind is Literal:
        return "{" + ",".join(map(str, parts)) + "}"
    if kind is tuple:
        return f"[{metavar(parts[0])} ...]"
    return "None" if hint is NoneType else METAVARS.get(hint, "VALUE")


def choices(hint: Any) -> list[str]:
    """The words that a type allows, if they are a few."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return list(map(str, parts))
    if kind in (Annotated, tuple):
        return choices(parts[0])
    return [word for part in parts for word in choices(part)] if kind in (Union, UnionType) else []


def _reads(hint: Any, words: list[str]) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _reads(parts[0], words)
    if kind in (Union, UnionType):
        return any(_reads(part, words) for part in parts)
    if kind is tuple:
        return all(_reads(parts[0], [word]) for word in words)
    if hint is bool or len(words) != 1:
        return hint is bool and not words
    if hint in (int, float):
        with contextlib.suppress(ValueError):
            return hint(words[0]) is not None
        return False
    return words[0] in map(str, parts) if kind is Literal else hint is not NoneType or words[0] == "None"


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@functools.cache
def _docs(cls: type) -> dict[str, str]:
    """The docstring of every field of a dataclass, in one line, from its source and those of its bases."""
    docs: dict[str, str] = {}
    for base in cls.__mro__[-2::-1]:
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for node, after in itertools.pairwise(body):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                docs[node.target.id] = " ".join(str(after.value.value).split())
    return docs


@functools.cache
def _basic(cls: type) -> set[str]:
    """The names of the fields that a dataclass, or a base whose default it changes, marks as `Basic`."""
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    return {
        name
        for base in bases
        for name, hint in hints_of(base).items()
        if get_origin(hint) is Annotated and BASIC in get_args(hint)[1:]
    }
