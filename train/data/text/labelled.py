"""A text and its label, and the checks that every reader of originals makes."""

from typing import NamedTuple

from train.errors import UserError

__all__ = ["UNLABELLED", "Labelled", "checked", "decoded"]

UNLABELLED = -1  # stands where originals keep the label back


class Labelled(NamedTuple):
    """A text as it was written, and the number of its class or `UNLABELLED`."""

    text: str
    label: int


def decoded(content: bytes, *, where: str) -> str:
    """The content as UTF-8 text, without a byte order mark.

    Raises:
      UserError: naming ``where`` and the first byte that is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{where} is not UTF-8: byte {content[error.start]:#04x} in line {line}; convert the file to UTF-8"
        ) from error


def checked(text: str, label: int, *, where: str) -> Labelled:
    """The text and its label.

    Raises:
      UserError: if the text is empty but for white space and the line breaks of HTML.
    """
    if not text.replace("<br />", " ").strip():
        raise UserError(f"{where} has an empty text; take it away or copy the original again")
    return Labelled(text, label)
