"""Instructions with their answers out of JSON and JSONL files, as Alpaca or as conversations, and prompts."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError, one_line
from .files import Log, fingerprint_files, root_error
from .prepare import Source
from .rows import is_whole, lines_of, parse_json, read_text, split_files

ROLES = ("system", "user", "assistant")
SUFFIXES = (".jsonl", ".json")
SHAPES = "messages, prompt and answer, or instruction, input and output"
WANTED = f"a .json list or .jsonl of objects with {SHAPES}; or a folder with a train file"
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
    """Returns the conversation in a JSON object: messages, the last of the assistant; or a question and its answer."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with {SHAPES}, got {value!r:.60}; correct it")
    if "messages" in value:
        *before, last = messages = messages_of(value["messages"], where=where)
        if last.role != "assistant" or not any(message.role == "user" for message in before):
            roles = ", ".join(message.role for message in messages)
            raise UserError(f"{where} must end in an answer of the assistant to the user, got {roles}; correct it")
        return Conversation(tuple(before), last.content)
    names = ("instruction", "input", "output") if "instruction" in value else ("prompt", "answer")
    if missing := [name for name in names if name not in value]:
        shown = ", ".join(map(repr, value)) or "none"
        raise UserError(f"{where} has no {' and no '.join(map(repr, missing))}; it needs {SHAPES}, got {shown}")
    *question, answer = (_text(value[name], name, where) for name in names)
    return single_turn("\n\n".join([question[0], *filter(str.strip, question[1:])]), answer)


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
def open_conversations(root: Path, _: Log) -> Iterator[Conversations]:
    """Reads every split, and drops conversations with an empty answer, which would teach a model silence."""
    splits, unanswered = {}, 0
    for split, file in _files(root).items():
        read = [conversation_of(value, where=where) for value, where in _entries(file, str(file))]
        splits[split] = [one for one in read if one.answer.strip()]
        unanswered += len(read) - len(splits[split])
        if not splits[split]:
            raise root_error(root, f"has no answered instruction in {split}; give at least one")
    yield Conversations(splits, unanswered)


def read_prompts(path: Path, *, option: str = "--prompts", answers: bool = False) -> list[Prompt]:
    """Reads prompts, in the order of the file.

    Args:
      path: a .json list or .jsonl of objects with ``instruction`` and optionally ``input``; any other file is a text a
        line.
      option: name of the file in errors.
      answers: whether to read ``output`` too.
    """
    where = f"{option} {path}"
    if path.suffix in SUFFIXES:
        prompts = [_prompt(value, place, answers) for value, place in _entries(path, where)]
    else:
        lines = read_text(path, where=where).replace("\r\n", "\n").split("\n")
        prompts = [Prompt(line) for line in lines if line.strip()]
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


def _files(root: Path) -> dict[str, Path]:
    """Returns the file of each split; a folder's only .json, as Alpaca has it, is train."""
    if root.is_dir() and len(files := sorted(root.glob("*.json"))) == 1 and not any(root.glob("train.jsonl")):
        return {"train": files[0]}
    return split_files(root, SUFFIXES)


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not is_whole(value):
        raise UserError(f"{where}: {name!r} must be a text, got {value!a:.60}; correct it")
    return value


def _entries(path: Path, where: str) -> Iterator[tuple[Any, str]]:
    """Yields the entries of a .json list, or of a .jsonl file a line, each with its place."""
    if path.suffix == ".json":
        values = _parsed(read_text(path, where=where), where)
        if not isinstance(values, list):
            raise UserError(f"{where} is not a list; give a list of objects")
        yield from ((value, f"{where} entry {number}") for number, value in enumerate(values, start=1))
        return
    for number, line in enumerate(lines_of(path, where), start=1):
        if line.strip():
            yield _parsed(line, place := f"{where} line {number}"), place


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({one_line(error)}); correct it, or copy it again") from error


CONVERSATIONS = Source(lambda root: fingerprint_files(_files(root).values(), root=root), open_conversations, WANTED)
ALPACA = CONVERSATIONS  # the JSON of Stanford's Alpaca is one of the shapes
