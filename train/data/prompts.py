"""Prompts for a language model, out of a file: a JSON list or JSONL as Alpaca's, or a text a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from .rows import decoded, is_whole

LARGEST = 1 << 28  # bytes of a file; more is taken for a file without end
WANTED = "an instruction, and an input if need be, both texts"


class Prompt(NamedTuple):
    """A prompt for a language model."""

    instruction: str
    input: str = ""
    dataset: str = ""  # of AlpacaEval's prompts, which its figures are split by
    answer: str | None = None  # of the file, where it is asked for

    @property
    def text(self) -> str:
        """The instruction, and its input below."""
        return f"{self.instruction}\n\n{self.input}" if self.input else self.instruction


def read_prompts(path: Path, *, option: str = "--prompts", answers: bool = False) -> list[Prompt]:
    """Reads prompts, in the order of the file.

    Args:
      path: a .json list or .jsonl of objects with ``instruction``, and ``input`` where there is one; any other file is
        a text a line.
      option: what errors call the file.
      answers: whether ``output`` of the objects is read too, where there is one; otherwise it may be anything.

    Raises:
      UserError: if the file cannot be read, is no such file, or holds no prompt or an empty one.
    """
    where = f"{option} {path}"
    text = read_content(path, where=where, mend="give a file of prompts")
    if path.suffix == ".json":
        values = _parsed(text, where)
        if not isinstance(values, list):
            raise UserError(f"{where} holds {_kind(values)} instead of a list; give a list of objects with {WANTED}")
        prompts = [_prompt(value, f"{where} entry {number}", answers) for number, value in enumerate(values, start=1)]
    elif path.suffix == ".jsonl":
        prompts = [_prompt(_parsed(line, place), place, answers) for line, place in _lines(text, where)]
    else:
        prompts = [Prompt(line) for line, _ in _lines(text, where)]
    if not prompts:
        raise UserError(f"{where} holds no prompt; give a file with one or more")
    return prompts


def read_content(path: Path, *, where: str, mend: str) -> str:
    """The text of a file in UTF-8.

    Args:
      path: the file.
      where: what errors call it.
      mend: the way out where it cannot be read.

    Raises:
      UserError: if it cannot be read, is not UTF-8, or is too large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}); {mend}") from error
    if len(content) > LARGEST:
        raise UserError(f"{where} holds more than {LARGEST >> 20} MiB; give it in several files")
    return decoded(content, where=where)


def _lines(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Lines that hold something, and what to call them."""
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if line.strip():
            yield line, f"{where} line {number}"


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where} is no JSON ({error}); give a list in .json, or an object a line in .jsonl") from error


def _prompt(value: Any, where: str, answers: bool) -> Prompt:
    if not isinstance(value, dict):
        raise UserError(f"{where} is {_kind(value)} instead of an object with {WANTED}")
    fields = ["" if value.get(name) is None else value[name] for name in ("instruction", "input", "dataset")]
    answer = value.get("output") if answers else None
    texts = fields if answer is None else [*fields, answer]
    if not all(isinstance(text, str) and is_whole(text) for text in texts):
        raise UserError(f"{where} has fields that are no texts; give {WANTED}{', as is the output' * answers}")
    if not fields[0].strip():
        raise UserError(f"{where} has no instruction; give {WANTED}")
    instruction, context, dataset = fields
    return Prompt(instruction, context, dataset, answer)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
