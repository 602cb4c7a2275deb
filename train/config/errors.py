"""The exceptions that the command line turns into a line: a mistake (exit code 2),
and a request to end (0 or 130)."""

import contextlib
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

# Controls of terminals, marks of another direction of text, ends of lines, and bytes
# that are not UTF-8.
UNSHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
PLAIN = "a string of UTF-8 without control characters"
#: The packages of each extra of pyproject.toml that some commands do without.
EXTRAS = {
    "video": ("av", "skimage"),
    "search": ("optuna",),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
}

# Fields that are options (None: all) and names of options that are not --FIELD: of a
# command line, not of Python.
_surface: tuple[Collection[str] | None, Mapping[str, str]] = ((), {})
_NO_VALUE = object()


@contextlib.contextmanager
def on_command_line(
    names: Mapping[str, str] | None = None, *, only: Collection[str] | None = None
) -> Iterator[None]:
    """Names options in messages as they are typed, within the context: ``names`` has
    those that are not --FIELD. ``only`` these fields are typed, None for all, () for
    none. Others are named as in a run's config.json.
    """
    global _surface
    before, _surface = _surface, (only, names or {})
    try:
        yield
    finally:
        _surface = before


def option_text(field: str, value: Any = _NO_VALUE) -> str:
    """Returns the dotted name of an option, with its value if there is one, as the user
    gives it.

    Example:
      >>> option_text("data.root"), option_text("data.root", "clips")
      ('data.root', 'data.root=clips')
      >>> with on_command_line({"data.root": "--from"}):
      ...     (
      ...         option_text("data.root", "clips"),
      ...         option_text("batch_size", 8),
      ...         option_text("model.use_bias", False),
      ...     )
      ('--from clips', '--batch-size 8', '--model.no-use-bias')
    """
    typed, names = _surface
    if typed is not None and field not in typed:
        return field if value is _NO_VALUE else f"{field}={value}"
    option = names.get(field) or f"--{field.replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else re.sub(r"^--(.*\.)?", r"\g<0>no-", option)
    return option if value is _NO_VALUE else f"{option} {value}"


class UserError(Exception):
    """Something the user can mend. The message is one line that names the argument, its
    value and the way out.

    Example:
      >>> from unroll_jax.train import UserError, load
      >>> try:
      ...     load("no-such-run")
      ... except UserError as error:
      ...     print(len(str(error).splitlines()))
      1
    """


class OptionError(UserError, ValueError):
    """An option, by its dotted name, whose value is not allowed."""

    def __init__(self, field: str, allowed: str, value: Any):
        super().__init__(f"{option_text(field)} must be {allowed}, got {value}")
        self.field, self.allowed, self.value = field, allowed, value


class Interrupted(BaseException):
    """The process was asked to end, and has saved its work. Its exit code is 0 for
    SIGTERM, 130 for Ctrl-C. No `Exception`: code that takes every exception for a
    damaged file must not take this for one.
    """

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


def require_extra(extra: str) -> None:
    """Raises UserError if a package of an extra is not installed, with the command
    that installs it."""
    if missing := [
        package
        for package in EXTRAS[extra]
        if importlib.util.find_spec(package) is None
    ]:
        raise UserError(
            f"{' and '.join(missing)} must be installed first: pip install"
            f" 'unroll_jax[{extra}]'"
        )


def one_line(error: BaseException) -> str:
    """Returns the message of an error and its notes, in one line."""
    text = str(error).strip()
    if isinstance(error, KeyError):
        text = f"missing {text}"
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename:
            text = f"{error.filename}: {text}"
    if isinstance(error, MemoryError):
        text = f"out of memory {text}"
    notes = getattr(error, "__notes__", ())
    line = "; ".join([text or type(error).__name__, *notes])
    return " ".join(line.split())


def kind_of(value: Any) -> str:
    """Returns a value that is not a task in words, for messages."""
    words = (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"{value!r:.60} of type {type(value).__name__}"
    )
    return " ".join(words.split())
