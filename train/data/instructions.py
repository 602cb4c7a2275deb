"""Instructions with their answers, prepared once and read by number."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import InstructionConfig
from . import chores, conversations
from .conversations import Conversation, Conversations, Message
from .files import Log
from .prepare import Kind, Originals, Record, Source, prepare_from
from .reader import Dataset, Records, open_prepared
from .splits import SPLITS, check_share, cut_from_train

SOURCES: dict[str, Source[Conversations]] = {
    "chores": chores.CHORES,
    "alpaca": conversations.ALPACA,
    "conversations": conversations.CONVERSATIONS,
}
INSTRUCTIONS = Kind("instructions", "1.0.0")


class InstructionData(Dataset[list[Conversation]]):
    """Prepared conversations; ``checksums`` are of each split as prepared, whatever `keep` cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checksums: dict[str, int] = dict(self.facts["checksums"])

    def whole(self, split: str) -> list[Conversation]:
        """All of a split."""
        return self.read(split, np.arange(self.num_examples(split)))

    def _read(self, records: Records, numbers: list[int]) -> list[Conversation]:
        rows = records.read(numbers, "messages", "answer")
        return [
            Conversation(tuple(Message(*message) for message in json.loads(messages)), answer.decode())
            for messages, answer in rows
        ]


def load(config: InstructionConfig, *, log: Log = print) -> InstructionData:
    """Opens the instructions that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), InstructionData)


def prepare(config: InstructionConfig, *, log: Log = print) -> Path:
    """Prepares the instructions that a config names, unless that is done, and returns the folder that holds them."""
    check_share(config.validation_share)
    return prepare_from(SOURCES, config, INSTRUCTIONS, _records, options=[f"{config.validation_share:g}"], log=log)


def _records(dataset: Conversations, config: InstructionConfig, log: Log) -> Originals:
    if dataset.unanswered:
        log(f"  {dataset.unanswered} instruction(s) have an empty answer and are left out")
    splits = _three_splits(dataset.splits, config.validation_share)
    log("  " + ", ".join(f"{split}: {len(splits[split])}" for split in SPLITS))
    rows = {split: list(_rows(splits[split])) for split in SPLITS}
    text = tfds.features.Text()
    facts = {"checksums": {split: _checksum(rows[split]) for split in SPLITS}}
    return Originals({"messages": text, "answer": text}, rows, facts)


def _rows(split: Iterable[Conversation]) -> Iterator[Record]:
    for messages, answer in split:
        yield {"messages": json.dumps(messages, ensure_ascii=False), "answer": answer}


def _checksum(rows: Iterable[Record]) -> int:
    """CRC-32 of records in their order."""
    checksum = 0
    for row in rows:
        checksum = zlib.crc32(f"{row['messages']}\0{row['answer']}\n".encode(), checksum)
    return checksum


def _three_splits(splits: Mapping[str, Sequence[Conversation]], share: float) -> Mapping[str, Sequence[Conversation]]:
    """The splits; those that are missing are cut from train, test first."""
    all_splits = dict(splits)
    for split in (name for name in reversed(SPLITS) if name not in all_splits):
        train = all_splits["train"]
        stay, held_out = cut_from_train(np.zeros(len(train), int), share, "instructions", f"{split}.jsonl")
        all_splits |= {"train": [train[i] for i in stay], split: [train[i] for i in held_out]}
    return all_splits
