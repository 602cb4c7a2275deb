"""Instructions with their answers out of files: Alpaca's JSON, JSONL of conversations, and prompts."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError, one_line
from .files import Log, fingerprint_files, root_error
from .prepare import Source
from .rows import is_whole, parse_json, read_rows, read_text, split_files

ROLES = ("system", "user", "assistant")
WANTED = {
    "alpaca": "the JSON file of Alpaca: a list of objects with instruction, input and output",
    "conversations": "a JSONL file, or a folder with train.jsonl, and optionally validation.jsonl and test.jsonl",
}
JSONL = (".jsonl",)
FIELDS = ("instruction", "input", "output")
SHAPES = "messages, or prompt and answer"
FOR_PROMPTS = "an instruction and optionally an input, both texts"


class Message(NamedTuple):
    """A message: its role, one of `ROLES`, and its content."""

    role: str
    content: str


class Conversation(NamedTuple):
    """The messages so far, and the answer to learn."""

    messages: tuple[Message, ...]
    answer: str


class Conversations(NamedTuple):
    """Conversations of a source: train, and optionally test and validation; and the number without an answer."""

    splits: Mapping[str, Sequence[Conversation]]
    unanswered: int


class Prompt(NamedTuple):
    """A prompt for a language model; ``dataset`` is the part of AlpacaEval it belongs to, ``answer`` the file's."""

    instruction: str
    input: str = ""
    dataset: str = ""
    answer: str | None = None

    @property
    def text(self) -> str:
        """The instruction, and its input below."""
        return f"{self.instruction}\n\n{self.input}" if self.input else self.instruction


def single_turn(prompt: str, answer: str) -> Conversation:
    """Returns a conversation of one question and its answer."""
    return Conversation((Message("user", prompt),), answer)


def conversation_of(value: Any, *, where: str) -> Conversation:
    """Returns the conversation in a JSON object: messages, the last of the assistant, or prompt and answer."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with {SHAPES}, got {value!r:.60}; correct it")
    if "messages" in value:
        *before, last = messages = messages_of(value["messages"], where=where)
        if last.role != "assistant" or not any(message.role == "user" for message in before):
            roles = ", ".join(message.role for message in messages)
            raise UserError(f"{where} must end in an answer of the assistant to the user, got {roles}; correct it")
        return Conversation(tuple(before), last.content)
    if missing := [name for name in ("prompt", "answer") if name not in value]:
        shown = ", ".join(map(repr, value)) or "none"
        raise UserError(f"{where} has no {' and no '.join(map(repr, missing))}; it needs {SHAPES}, got {shown}")
    return single_turn(*(_text(value[name], name, where) for name in ("prompt", "answer")))


def messages_of(values: Any, *, where: str) -> tuple[Message, ...]:
    """Returns the messages in a list of objects with role and content."""
    if not isinstance(values, list | tuple) or not values:
        raise UserError(f"{where}: 'messages' must be a list of one object or more with role and content")
    messages = []
    for number, value in enumerate(values, start=1):
        place = f"{where}, message {number}"
        if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
            raise UserError(f"{place} must be an object with role and content, got {value!r:.60}; correct it")
        if value["role"] not in ROLES:
            raise UserError(f"{place} has the role {value['role']!r}; the roles known are {', '.join(ROLES)}")
        messages.append(Message(value["role"], _text(value["content"], "content", place)))
    return tuple(messages)


@contextlib.contextmanager
def open_alpaca(root: Path, _: Log) -> Iterator[Conversations]:
    """Reads one split; an input goes below its instruction."""
    file = _alpaca_file(root)
    entries = _entries(read_text(file, where=str(file)), str(file), WANTED["alpaca"])
    yield _answered({"train": [_alpaca(value, where) for value, where in entries]}, root)


@contextlib.contextmanager
def open_conversations(root: Path, _: Log) -> Iterator[Conversations]:
    """Reads the file of every split."""
    splits = {split: read_rows(file, ()) for split, file in split_files(root, JSONL).items()}
    conversations = {
        split: [conversation_of(row.fields, where=row.where) for row in rows] for split, rows in splits.items()
    }
    yield _answered(conversations, root)


def read_prompts(path: Path, *, option: str = "--prompts", answers: bool = False) -> list[Prompt]:
    """Reads prompts, in the order of the file.

    Args:
      path: a .json list or .jsonl of objects with ``instruction`` and optionally ``input``; any other file is a text a
        line.
      option: name of the file in errors.
      answers: whether to read ``output`` too.
    """
    where = f"{option} {path}"
    text = read_text(path, where=where)
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    filled = [(line, f"{where} line {number}") for number, line in lines if line.strip()]
    if path.suffix == ".json":
        entries = _entries(text, where, f"a list of objects with {FOR_PROMPTS}")
        prompts = [_prompt(value, place, answers) for value, place in entries]
    elif path.suffix == ".jsonl":
        prompts = [_prompt(_parsed(line, place), place, answers) for line, place in filled]
    else:
        prompts = [Prompt(line) for line, _ in filled]
    if not prompts:
        raise UserError(f"{where} has no prompt; give a file with one or more")
    return prompts


def _prompt(value: Any, where: str, answers: bool) -> Prompt:
    if not isinstance(value, dict):
        raise UserError(f"{where} is not an object with {FOR_PROMPTS}; correct it")
    fields = ["" if value.get(name) is None else value[name] for name in ("instruction", "input", "dataset")]
    answer = value.get("output") if answers else None
    if not all(isinstance(text, str) and is_whole(text) for text in [*fields, "" if answer is None else answer]):
        raise UserError(f"{where} has fields that are not texts; give {FOR_PROMPTS}")
    if not fields[0].strip():
        raise UserError(f"{where} has no instruction; give {FOR_PROMPTS}")
    instruction, context, dataset = fields
    return Prompt(instruction, context, dataset, answer)


def _answered(splits: Mapping[str, Sequence[Conversation]], root: Path) -> Conversations:
    """Drops conversations with an empty answer, which would teach a model silence."""
    kept = {split: [one for one in conversations if one.answer.strip()] for split, conversations in splits.items()}
    if empty := [split for split, conversations in kept.items() if not conversations]:
        raise root_error(root, f"has no answered instruction in {empty[0]}; give at least one")
    return Conversations(kept, sum(len(splits[split]) - len(kept[split]) for split in splits))


def _alpaca(value: Any, where: str) -> Conversation:
    if not isinstance(value, dict):
        raise UserError(f"{where} is not an object; give {WANTED['alpaca']}")
    if missing := [name for name in FIELDS if name not in value]:
        raise UserError(f"{where} has no {', '.join(map(repr, missing))}; give {WANTED['alpaca']}")
    instruction, given, answer = (_text(value[name], name, where) for name in FIELDS)
    return single_turn(f"{instruction}\n\n{given}" if given.strip() else instruction, answer)


def _alpaca_file(root: Path) -> Path:
    if root.is_file():
        return root
    files = sorted(root.glob("*.json"))
    if len(files) != 1:
        raise root_error(root, f"holds {len(files)} JSON files; give {WANTED['alpaca']}")
    return files[0]


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not is_whole(value):
        raise UserError(f"{where}: {name!r} must be a text, got {value!a:.60}; correct it")
    return value


def _entries(text: str, where: str, wanted: str) -> list[tuple[Any, str]]:
    """Returns the entries of a JSON list, each with its place."""
    values = _parsed(text, where)
    if not isinstance(values, list):
        raise UserError(f"{where} is not a list; give {wanted}")
    return [(value, f"{where} entry {number}") for number, value in enumerate(values, start=1)]


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({one_line(error)}); correct it, or copy it again") from error


def _fingerprint(root: Path) -> str:
    return fingerprint_files(split_files(root, JSONL).values(), root=root)


ALPACA = Source(lambda root: fingerprint_files([_alpaca_file(root)], root=root), open_alpaca, WANTED["alpaca"])
CONVERSATIONS = Source(_fingerprint, open_conversations, WANTED["conversations"])
