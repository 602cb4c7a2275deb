"""Instructions with their answers: prepared once, out of JSON and JSONL files or
made up (chores), and prompts."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from ...config.errors import UserError
from ...data import generated
from ...data.files import SEED, Log, fingerprint_files, fingerprint_program
from ...data.prepared import (
    Dataset,
    Kind,
    Originals,
    Records,
    Source,
    open_prepared,
    prepare_from,
)
from ...data.rows import (
    checksum,
    json_lines,
    json_of,
    read_text,
    split_files,
    split_rows,
)
from .options import InstructionConfig

INSTRUCTIONS = Kind("instructions", "2.0.0")
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


Splits = Mapping[str, Sequence[Conversation]]


class Prompt(NamedTuple):
    """A prompt for a language model. ``dataset`` is the part of AlpacaEval it
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
    """Prepared conversations. ``checksums`` are of each whole split, before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def _read(self, records: Records, numbers: np.ndarray) -> list[Conversation]:
        columns = records.read(numbers, "prompt", "answer")
        texts = [map(bytes.decode, column) for column in columns]
        return list(map(Conversation, *texts))


def load(config: InstructionConfig, *, log: Log = print) -> InstructionData:
    """Opens the instructions of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), InstructionData)


def prepare(config: InstructionConfig, *, log: Log = print) -> Path:
    """Prepares the instructions of a configuration unless they are there, and
    returns their folder."""
    options = [f"{config.validation_share:g}"]
    return prepare_from(
        SOURCES, config, INSTRUCTIONS, _records, options=options, log=log
    )


@contextlib.contextmanager
def open_conversations(root: Path, log: Log) -> Iterator[Splits]:
    """Reads every split, and drops conversations with an empty answer, which would
    teach a model silence."""
    splits: dict[str, list[Conversation]] = {}
    for split, file in split_files(root, SUFFIXES, log).items():
        read = [
            _conversation(value, place) for value, place in _entries(file, file.name)
        ]
        splits[split] = [one for one in read if one.answer.strip()]
        unanswered = len(read) - len(splits[split])
        if unanswered:
            log(f"  leaving out {unanswered} instruction(s) with an empty answer")
        if not splits[split]:
            raise UserError(
                f"has no answered instruction in {split}; give at least one"
            )
    yield splits


def read_prompts(
    path: Path, *, option: str = "--prompts", answers: bool = False
) -> list[Prompt]:
    """Reads prompts in order: a .json list or .jsonl of objects, with their
    ``answers``, else a text a line."""
    where = f"{option} {path}"
    if path.suffix.lower() in SUFFIXES:
        prompts = [
            _prompt(value, place, answers) for value, place in _entries(path, where)
        ]
    else:
        lines = read_text(path, where=where).replace("\r\n", "\n").split("\n")
        prompts = [Prompt(line) for line in lines if line.strip()]
    if not prompts or not all(prompt.instruction.strip() for prompt in prompts):
        raise UserError(f"{where} has no prompt, or an empty one; give at least one")
    return prompts


@contextlib.contextmanager
def open_chores(_: Path, __: Log) -> Iterator[Splits]:
    """2,000 instructions to train, 200 to validate, 200 to test, all different: repeat
    words of random syllables once or twice, in capitals or by first letters; count on
    or add. No answer follows from the prompt's last token.
    """
    generator = np.random.default_rng(SEED)
    seen: set[str] = set()
    yield {
        split: generated.distinct(lambda _: _chore(generator), count, seen)
        for split, count in NUM_CHORES.items()
    }


def _records(given: Splits, config: InstructionConfig, log: Log) -> Originals:
    labels = {split: np.zeros(len(rows), int) for split, rows in given.items()}
    splits = split_rows(given, config.validation_share, labels)
    del log  # nothing more is said of them
    checksums = {}
    for split, rows in splits.items():
        # as messages of a chat, by which runs that were trained before know their data
        chats = ((_message(one.prompt), one.answer) for one in rows)
        checksums[split] = checksum(chats)
    records = {split: map(Conversation._asdict, rows) for split, rows in splits.items()}
    text = tfds.features.Text()
    return Originals(
        {"prompt": text, "answer": text}, records, {"checksums": checksums}
    )


def _message(prompt: str) -> str:
    return json.dumps([["user", prompt]], ensure_ascii=False)


def _text(value: Any, name: str, where: str, default: str | None = None) -> str:
    """Returns a text of an object. The default takes the place of null."""
    text = value.get(name) if isinstance(value, Mapping) else None
    text = default if text is None else text
    if not isinstance(text, str):
        raise UserError(
            f"{where} must be an object with a text {name!r}, got {text!a:.60}; correct"
            " it"
        )
    return text


def _conversation(value: Any, where: str) -> Conversation:
    """Returns the prompt and the answer in a JSON object."""
    if isinstance(value, Mapping) and "instruction" in value:
        prompt = _prompt(value, where).text
        return Conversation(prompt, _text(value, "output", where))
    return Conversation(_text(value, "prompt", where), _text(value, "answer", where))


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


def _chore(generator: np.random.Generator) -> Conversation:
    word = _word(generator)
    verb = generated.pick(generator, REPEATS)
    start, other = generator.integers(1, LARGEST, 2).tolist()
    stop = start + int(generator.integers(3, 7))
    chores = (
        Conversation(f"{verb} {word}.", word),
        Conversation(f"{verb} {word} twice.", f"{word} {word}"),
        Conversation(f"{verb} {word} in capitals.", word.upper()),
        Conversation(f"{verb} the first letter of {word}.", word[0]),
        Conversation(
            f"Count from {start} to {stop - 1}.", " ".join(map(str, range(start, stop)))
        ),
        Conversation(f"Add {start} and {other}.", str(start + other)),
    )
    return generated.pick(generator, chores)


def _word(generator: np.random.Generator) -> str:
    word = ""
    for _ in range(generator.integers(1, 4)):
        for letters in (ONSETS, VOWELS, CODAS):
            word += generated.pick(generator, letters)
    return word


SOURCES: dict[str, Source[Splits]] = {
    "chores": Source(fingerprint_program(__file__, "numpy"), open_chores),
    "alpaca": Source(
        lambda root: fingerprint_files(split_files(root, SUFFIXES).values(), root=root),
        open_conversations,
        WANTED,
    ),
}
