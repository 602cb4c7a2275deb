"""Instructions with their answers: prepared once, out of JSON and JSONL files or
made up (chores), and prompts."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import InstructionConfig
from ..config.errors import UserError
from . import generated
from .files import (
    SEED,
    SPLITS,
    Log,
    check_share,
    fingerprint_files,
    fingerprint_program,
    root_error,
)
from .prepare import Kind, Originals, Source, prepare_from
from .reader import Dataset, Records, open_prepared
from .rows import (
    checksum,
    is_whole,
    json_lines,
    json_of,
    read_text,
    split_files,
    split_rows,
)

INSTRUCTIONS = Kind("instructions", "1.1.0")
SUFFIXES = (".jsonl", ".json")
SHAPES = "prompt and answer, or instruction, output and optionally input"
WANTED = (
    f"a .json list or .jsonl of objects with {SHAPES}; or a folder with a train file"
)

# Chores: made-up instructions.
NUM_CHORES = {"train": 2000, "validation": 200, "test": 200}
ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", ("", "", "n", "r", "s", "l")
LARGEST = 20  # of the numbers that are counted to or added
REPEATS = ("Repeat", "Say", "Write")


class Conversation(NamedTuple):
    """A prompt, and the answer to learn."""

    prompt: str
    answer: str


class Conversations(NamedTuple):
    """Conversations of a source: train, and optionally test and validation; and the
    number without an answer."""

    splits: Mapping[str, Sequence[Conversation]]
    unanswered: int


class Prompt(NamedTuple):
    """A prompt for a language model; ``dataset`` is the part of AlpacaEval it
    belongs to, ``answer`` the file's."""

    instruction: str
    input: str = ""
    dataset: str = ""
    answer: str | None = None

    @property
    def text(self) -> str:
        """The instruction, and its input below."""
        return "\n\n".join([self.instruction, *filter(str.strip, [self.input])])


class InstructionData(Dataset[list[Conversation]]):
    """Prepared conversations; ``checksums`` are of each whole split, before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def _read(self, records: Records, numbers: list[int]) -> list[Conversation]:
        rows = records.read(numbers, "messages", "answer")
        return [
            Conversation(json.loads(messages)[0][1], answer.decode())
            for messages, answer in rows
        ]


def load(config: InstructionConfig, *, log: Log = print) -> InstructionData:
    """Opens the instructions of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), InstructionData)


def prepare(config: InstructionConfig, *, log: Log = print) -> Path:
    """Prepares the instructions of a configuration unless they are there, and
    returns their folder."""
    check_share(config.validation_share)
    return prepare_from(
        SOURCES,
        config,
        INSTRUCTIONS,
        _records,
        options=[f"{config.validation_share:g}"],
        log=log,
    )


def conversation_of(value: Any, *, where: str) -> Conversation:
    """Returns the prompt and the answer in a JSON object."""
    if isinstance(value, Mapping) and "instruction" in value:
        prompt = _prompt(value, where)
        return Conversation(prompt.text, _text(value, "output", where))
    prompt = _text(value, "prompt", where)
    return Conversation(prompt, _text(value, "answer", where))


@contextlib.contextmanager
def open_conversations(root: Path, _: Log) -> Iterator[Conversations]:
    """Reads every split, and drops conversations with an empty answer, which would
    teach a model silence."""
    splits, unanswered = {}, 0
    for split, file in split_files(root, SUFFIXES).items():
        read = [
            conversation_of(value, where=where)
            for value, where in _entries(file, str(file))
        ]
        splits[split] = [one for one in read if one.answer.strip()]
        unanswered += len(read) - len(splits[split])
        if not splits[split]:
            raise root_error(
                root, f"has no answered instruction in {split}; give at least one"
            )
    yield Conversations(splits, unanswered)


def read_prompts(
    path: Path, *, option: str = "--prompts", answers: bool = False
) -> list[Prompt]:
    """Reads prompts in order: a .json list or .jsonl of objects, with their
    ``answers``; else a text a line."""
    where = f"{option} {path}"
    if path.suffix.lower() in SUFFIXES:
        prompts = [
            _prompt(value, place, answers) for value, place in _entries(path, where)
        ]
        if not all(prompt.instruction.strip() for prompt in prompts):
            raise UserError(f"{where} has an empty instruction; leave it out")
    else:
        lines = read_text(path, where=where).replace("\r\n", "\n").split("\n")
        prompts = [Prompt(line) for line in lines if line.strip()]
    if not prompts:
        raise UserError(f"{where} has no prompt; give a file with one or more")
    return prompts


@contextlib.contextmanager
def open_chores(_: Path, __: Log) -> Iterator[Conversations]:
    """2,000 instructions to train, 200 to validate, 200 to test, all different: repeat
    words of random syllables once or twice, in capitals or by first letters; count on
    or add. No answer follows from the prompt's last token.
    """
    generator, seen = np.random.default_rng(SEED), set()

    def draw(_: int) -> Conversation:
        return Conversation(*_chore(generator))

    splits = {
        split: generated.distinct(draw, count, seen, key=lambda one: one.prompt)
        for split, count in NUM_CHORES.items()
    }
    yield Conversations(splits, 0)


def _records(dataset: Conversations, config: InstructionConfig, log: Log) -> Originals:
    if dataset.unanswered:
        log(f"  leaving out {dataset.unanswered} instruction(s) with an empty answer")
    splits = split_rows(dataset.splits, config.validation_share, "instructions")
    log("  " + ", ".join(f"{split}: {len(splits[split])}" for split in SPLITS))

    def as_text(prompt: str) -> str:
        return json.dumps([["user", prompt]], ensure_ascii=False)

    rows = {
        split: [{"messages": as_text(one), "answer": two} for one, two in splits[split]]
        for split in SPLITS
    }
    text = tfds.features.Text()
    facts = {
        "checksums": {
            split: checksum(row.values() for row in rows[split]) for split in SPLITS
        }
    }
    return Originals({"messages": text, "answer": text}, rows, facts)


def _text(value: Any, name: str, where: str, default: str | None = None) -> str:
    """Returns a text of an object; the default takes the place of null."""
    text = value.get(name) if isinstance(value, Mapping) else None
    text = default if text is None else text
    if not isinstance(text, str) or not is_whole(text):
        raise UserError(
            f"{where} must be an object with a text {name!r}, got {text!a:.60}; correct"
            " it"
        )
    return text


def _prompt(value: Any, where: str, answers: bool = False) -> Prompt:
    """Returns the prompt of an object, and with ``answers`` its answer if any."""
    instruction = _text(value, "instruction", where)
    context = _text(value, "input", where, "")
    dataset = _text(value, "dataset", where, "")
    answered = answers and value.get("output") is not None
    answer = _text(value, "output", where) if answered else None
    return Prompt(instruction, context, dataset, answer)


def _entries(path: Path, where: str) -> Iterator[tuple[Any, str]]:
    """Yields the entries of a .json list, or of a .jsonl file a line, each with its
    place."""
    if path.suffix.lower() == ".jsonl":
        yield from json_lines(path, where)
        return
    mend = "give a .jsonl file, an object a line"
    values = json_of(read_text(path, where=where, mend=mend), where=where)
    if not isinstance(values, list):
        raise UserError(f"{where} is not a list; give a list of objects")
    for number, value in enumerate(values, start=1):
        yield value, f"{where} entry {number}"


def _chore(generator: np.random.Generator) -> tuple[str, str]:
    word, verb = _word(generator), generated.pick(generator, REPEATS)
    start, other = (int(number) for number in generator.integers(1, LARGEST, 2))
    several = range(start, start + int(generator.integers(3, 7)))
    chores = (
        (f"{verb} {word}.", word),
        (f"{verb} {word} twice.", f"{word} {word}"),
        (f"{verb} {word} in capitals.", word.upper()),
        (f"{verb} the first letter of {word}.", word[0]),
        (f"Count from {several[0]} to {several[-1]}.", " ".join(map(str, several))),
        (f"Add {start} and {other}.", str(start + other)),
    )
    return chores[int(generator.integers(len(chores)))]


def _word(generator: np.random.Generator) -> str:
    places = range(3 * generator.integers(1, 4))
    return "".join(
        generated.pick(generator, (ONSETS, VOWELS, CODAS)[place % 3])
        for place in places
    )


SOURCES: dict[str, Source[Conversations]] = {
    "chores": Source(fingerprint_program(__file__, "numpy"), open_chores),
    "alpaca": Source(
        lambda root: fingerprint_files(split_files(root, SUFFIXES).values(), root=root),
        open_conversations,
        WANTED,
    ),
}
