"""Instructions with their answers: prepared once, out of files or made up (chores), and read by number."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import InstructionConfig
from .conversations import ALPACA, CONVERSATIONS, Conversation, Conversations, Message, single_turn
from .files import Log, fingerprint_program
from .prepare import Kind, Originals, Record, Source, prepare_from
from .reader import Dataset, Records, open_prepared
from .rows import checksum, three_splits
from .splits import SEED, SPLITS, check_share

INSTRUCTIONS = Kind("instructions", "1.0.0")

# Chores: made-up instructions.
NUM_CHORES = {"train": 2000, "validation": 200, "test": 200}
ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", ("", "", "n", "r", "s", "l")
LARGEST = 20  # of the numbers that are counted to or added
REPEATS = ("Repeat", "Say", "Write")


class InstructionData(Dataset[list[Conversation]]):
    """Prepared conversations; ``checksums`` are of each whole split, before `keep`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def whole(self, split: str) -> list[Conversation]:
        """Returns a whole split."""
        return self.read(split, np.arange(self.num_examples(split)))

    def _read(self, records: Records, numbers: list[int]) -> list[Conversation]:
        rows = records.read(numbers, "messages", "answer")
        return [
            Conversation(tuple(Message(*message) for message in json.loads(messages)), answer.decode())
            for messages, answer in rows
        ]


def load(config: InstructionConfig, *, log: Log = print) -> InstructionData:
    """Opens the instructions of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), InstructionData)


def prepare(config: InstructionConfig, *, log: Log = print) -> Path:
    """Prepares the instructions of a configuration unless they are there, and returns their folder."""
    check_share(config.validation_share)
    return prepare_from(SOURCES, config, INSTRUCTIONS, _records, options=[f"{config.validation_share:g}"], log=log)


def _records(dataset: Conversations, config: InstructionConfig, log: Log) -> Originals:
    if dataset.unanswered:
        log(f"  leaving out {dataset.unanswered} instruction(s) with an empty answer")
    splits = three_splits(dataset.splits, config.validation_share, "instructions")
    log("  " + ", ".join(f"{split}: {len(splits[split])}" for split in SPLITS))
    rows = {split: list(_rows(splits[split])) for split in SPLITS}
    text = tfds.features.Text()
    facts = {"checksums": {split: checksum(row.values() for row in rows[split]) for split in SPLITS}}
    return Originals({"messages": text, "answer": text}, rows, facts)


def _rows(split: Sequence[Conversation]) -> Iterator[Record]:
    for messages, answer in split:
        yield {"messages": json.dumps(messages, ensure_ascii=False), "answer": answer}


@contextlib.contextmanager
def open_chores(_: Path, __: Log) -> Iterator[Conversations]:
    """2,000 instructions to train, 200 to validate, 200 to test, all different.

    Words of one to three random syllables are to be repeated once or twice, in capitals, or by their first letter;
    numbers are to be counted up or added. The answer needs more than the last token of the prompt.
    """
    generator, seen = np.random.default_rng(SEED), set()
    yield Conversations({split: _different(generator, count, seen) for split, count in NUM_CHORES.items()}, 0)


def _different(generator: np.random.Generator, count: int, seen: set[str]) -> list[Conversation]:
    conversations: list[Conversation] = []
    while len(conversations) < count:
        prompt, answer = _chore(generator)
        if prompt not in seen:
            seen.add(prompt)
            conversations.append(single_turn(prompt, answer))
    return conversations


def _chore(generator: np.random.Generator) -> tuple[str, str]:
    word, verb = _word(generator), _pick(generator, REPEATS)
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
    syllables = (_pick(generator, (ONSETS, VOWELS, CODAS)[part % 3]) for part in range(3 * generator.integers(1, 4)))
    return "".join(syllables)


def _pick(generator: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(generator.integers(len(choices)))]


SOURCES: dict[str, Source[Conversations]] = {
    "chores": Source(fingerprint_program(__file__, "numpy"), open_chores),
    "alpaca": ALPACA,
    "conversations": CONVERSATIONS,
}
