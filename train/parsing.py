"""Options from words: tyro's parser, whose errors become one line."""

import contextlib
import io
from typing import Any, TypeVar

import tyro

from train.errors import UserError

__all__ = ["parse"]

T = TypeVar("T")


def parse(cls: type[T], arguments: list[str], program: str, default: T | None = None, *, hint: str = "") -> T:
    """A ``cls`` from a command's options; ``hint`` is the way out where one is unknown, beside the command's help.

    Raises:
      UserError: for an unknown or malformed option, in one line: tyro's box of the error, folded.
      SystemExit: where help was asked for, once it is printed.
    """
    errors = io.StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(cls, args=arguments, prog=program, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        message = _one_line(errors.getvalue()).rstrip(".")
        if hint and message.startswith("Unrecognized options"):
            message += f"; {hint}"
        raise UserError(f"{message}; see `{program} --help`") from None


def _one_line(box: str) -> str:
    """The message of one of tyro's boxes: what stands between its title and the first rule."""
    message = []
    for line in box.splitlines()[1:]:
        text = line.strip(" │|")
        if text.strip("─-╰╯+"):
            message.append(text)
        elif message:
            break
    return " ".join(message)
