"""Made-up instructions of a few words with their answers, which need no files."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .conversations import Conversation, Conversations, single_turn
from .files import Log, fingerprint_program
from .prepare import Source

SEED = 0
NUM_CHORES = {"train": 2000, "validation": 200, "test": 200}
ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", ("", "", "n", "r", "s", "l")
LARGEST = 20  # of the numbers that are counted to or added
REPEATS = ("Repeat", "Say", "Write")


@contextlib.contextmanager
def open_chores(_: Path, __: Log) -> Iterator[Conversations]:
    """2,000 instructions to train, 200 to validate, 200 to test, all different.

    Words are made of one to three random syllables, so they have to be read off the instruction: to repeat them once or
    twice, in capitals, or their first letter; beside them numbers are counted up or added. A model that sees the last
    token alone knows neither.
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


# Their fingerprint changes with this file.
CHORES = Source(fingerprint_program(__file__, "numpy"), open_chores)
