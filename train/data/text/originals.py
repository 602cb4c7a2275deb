"""What a source of texts hands over, and the checks that every reader of originals makes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from train.data.text.words import without_breaks
from train.errors import UserError

__all__ = ["Labelled", "TextSet", "checked", "decoded"]


class Labelled(NamedTuple):
    """A text as it was written, the number of its class, and in a set of pairs the second text."""

    text: str
    label: int
    second: str = ""


class TextSet(NamedTuple):
    """The texts of a source.

    Attributes:
      class_names: Names of the classes, in the order of the labels.
      splits: Train, and test and validation where the source has them: texts in an order that does not depend on how
        the files are packed.
      pairs: Whether every record has a second text.
    """

    class_names: tuple[str, ...]
    splits: Mapping[str, Sequence[Labelled]]
    pairs: bool = False


def decoded(content: bytes, *, where: str, first_line: int = 1) -> str:
    """The content as UTF-8 text, without a byte order mark.

    Raises:
      UserError: naming ``where`` and the first byte that is not UTF-8, or is 0, as in UTF-16 and files of no text.
    """
    try:
        text = content.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = first_line + content[: error.start].count(b"\n")
        raise UserError(
            f"{where} is not UTF-8: byte {content[error.start]:#04x} in line {line}; convert the file to UTF-8"
        ) from error
    if "\0" in text:
        line = first_line + text[: text.index("\0")].count("\n")
        raise UserError(f"{where} is no UTF-8 text: it holds a zero byte in line {line}; convert the file to UTF-8")
    return text


def checked(text: str, *, where: str) -> str:
    """The text.

    Raises:
      UserError: if it is empty but for white space and the line breaks of HTML.
    """
    if not without_breaks(text).strip():
        raise UserError(f"{where} has an empty text; take it away or copy the original again")
    return text
