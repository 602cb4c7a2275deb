"""Instructions with their answers out of files: Alpaca's JSON, and JSONL of conversations of the user's."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError, one_line
from .files import Log, fingerprint_files
from .prepare import Source
from .rows import Row, RowFile, decoded, is_whole, read_rows
from .splits import NAMES

ROLES = ("system", "user", "assistant")
WANTED = {
    "alpaca": "the JSON file of Alpaca: a list of objects with instruction, input and output",
    "conversations": "a JSONL file, or a folder with train.jsonl, and where there are any validation.jsonl and "
    "test.jsonl",
}
FIELDS = ("instruction", "input", "output")
SHAPES = "messages, or prompt and answer"


class Message(NamedTuple):
    """A message: its role, one of `ROLES`, and its content."""

    role: str
    content: str


class Conversation(NamedTuple):
    """The messages so far, and the answer to learn."""

    messages: tuple[Message, ...]
    answer: str


class Conversations(NamedTuple):
    """Conversations of a source: train, and test and validation where it has them; and the number without an answer."""

    splits: Mapping[str, Sequence[Conversation]]
    unanswered: int


def single_turn(prompt: str, answer: str) -> Conversation:
    """A conversation of one question and its answer."""
    return Conversation((Message("user", prompt),), answer)


def conversation_of(value: Any, *, where: str) -> Conversation:
    """The conversation in an object of JSON: of messages, the last of the assistant, or of prompt and answer."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with {SHAPES}, got {value!r:.60}; mend it")
    if "messages" in value:
        *before, last = messages = messages_of(value["messages"], where=where)
        if last.role != "assistant" or not any(message.role == "user" for message in before):
            roles = ", ".join(message.role for message in messages)
            raise UserError(
                f"{where} must end in an answer of the assistant to the user, its roles are {roles}; mend it"
            )
        return Conversation(tuple(before), last.content)
    if missing := [name for name in ("prompt", "answer") if name not in value]:
        shown = ", ".join(map(repr, value)) or "none"
        raise UserError(f"{where} lacks {' and '.join(map(repr, missing))}; it needs {SHAPES}, its fields are {shown}")
    return single_turn(*(_text(value[name], name, where) for name in ("prompt", "answer")))


def messages_of(values: Any, *, where: str) -> tuple[Message, ...]:
    """The messages in a list of objects with role and content."""
    if not isinstance(values, list | tuple) or not values:
        raise UserError(f"{where}: 'messages' must be a list of objects with role and content, at least one; mend it")
    messages = []
    for number, value in enumerate(values, start=1):
        place = f"{where}, message {number}"
        if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
            raise UserError(f"{place} must be an object with role and content, got {value!r:.60}; mend it")
        if value["role"] not in ROLES:
            raise UserError(f"{place} has the role {value['role']!r}; the roles known are {', '.join(ROLES)}")
        messages.append(Message(value["role"], _text(value["content"], "content", place)))
    return tuple(messages)


@contextlib.contextmanager
def open_alpaca(root: Path, _: Log) -> Iterator[Conversations]:
    """One split; an input stands below its instruction."""
    file = _alpaca_file(root)
    try:
        values = json.loads(decoded(file.read_bytes(), where=str(file)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as JSON ({one_line(error)}); copy it again") from error
    if not isinstance(values, list):
        raise UserError(f"{file} holds no list; give {WANTED['alpaca']}")
    conversations = [_alpaca(value, f"{file} entry {number}") for number, value in enumerate(values, start=1)]
    yield _answered({"train": conversations}, root)


@contextlib.contextmanager
def open_conversations(root: Path, _: Log) -> Iterator[Conversations]:
    """The splits that there are files of."""
    yield _answered({split: [_line(row) for row in _rows(file)] for split, file in _files(root).items()}, root)


def _answered(splits: Mapping[str, Sequence[Conversation]], root: Path) -> Conversations:
    """Conversations without those whose answer is empty, which would teach a model to say nothing."""
    kept = {split: [one for one in conversations if one.answer.strip()] for split, conversations in splits.items()}
    if empty := [split for split, conversations in kept.items() if not conversations]:
        raise UserError(f"data.root={root} has no answered instruction in {empty[0]}; give at least one")
    return Conversations(kept, sum(len(splits[split]) - len(kept[split]) for split in splits))


def _alpaca(value: Any, where: str) -> Conversation:
    if not isinstance(value, dict):
        raise UserError(f"{where} is no object; give {WANTED['alpaca']}")
    if missing := [name for name in FIELDS if name not in value]:
        raise UserError(f"{where} lacks {', '.join(map(repr, missing))}; give {WANTED['alpaca']}")
    instruction, given, answer = (_text(value[name], name, where) for name in FIELDS)
    return single_turn(f"{instruction}\n\n{given}" if given.strip() else instruction, answer)


def _alpaca_file(root: Path) -> Path:
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {WANTED['alpaca']}")
    if root.is_file():
        return root
    files = sorted(root.glob("*.json"))
    if len(files) != 1:
        raise UserError(f"data.root={root} holds {len(files)} JSON files; give {WANTED['alpaca']}")
    return files[0]


def _files(root: Path) -> dict[str, Path]:
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {WANTED['conversations']}")
    if root.is_file():
        return {"train": root}
    paths = {}
    for split, names in NAMES.items():
        files = [file for name in names if (file := root / f"{name}.jsonl").is_file()]
        if len(files) > 1:
            raise UserError(f"data.root={root} holds {' and '.join(file.name for file in files)}; keep one of them")
        if files:
            paths[split] = files[0]
    if "train" not in paths:
        raise UserError(f"data.root={root} holds no train.jsonl; give {WANTED['conversations']}")
    return paths


def _rows(file: Path) -> Iterator[Row]:
    return read_rows(RowFile(str(file), ".jsonl", functools.partial(file.open, "rb")), ())


def _line(row: Row) -> Conversation:
    return conversation_of(row.fields, where=row.where)


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not is_whole(value):
        raise UserError(f"{where}: {name!r} must be a text, got {value!a:.60}; mend it")
    return value


def _alpaca_fingerprint(root: Path) -> str:
    return fingerprint_files([_alpaca_file(root)], root=root)


def _fingerprint(root: Path) -> str:
    return fingerprint_files(_files(root).values(), root=root)


ALPACA = Source(_alpaca_fingerprint, open_alpaca, WANTED["alpaca"])
CONVERSATIONS = Source(_fingerprint, open_conversations, WANTED["conversations"])
