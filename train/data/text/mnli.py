"""MultiNLI as published: multinli_1.0_{train,dev_matched}.jsonl, a premise and a hypothesis a line."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from train.data.download import Download
from train.data.source import Log
from train.data.text.originals import Labelled, TextSet
from train.data.text.rows import Place, Row, RowFile, fingerprint_rows, open_rows, read_rows
from train.data.text.words import without_breaks
from train.errors import UserError

__all__ = ["CLASSES", "DOWNLOAD", "ROOT", "fingerprint_mnli", "open_mnli"]

CLASSES = ("entailment", "neutral", "contradiction")
DOWNLOAD = Download("https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip", "mnli")
# The labels of the published test files are kept back, so the matched dev file is the test split.
FILES = {"train": "multinli_1.0_train.jsonl", "test": "multinli_1.0_dev_matched.jsonl"}
ROOT = f"the folder of {' and '.join(FILES.values())}, or multinli_1.0.zip, which holds both"
UNDECIDED = "-"  # the gold label where the annotators did not agree
COLUMNS = ("sentence1", "sentence2", "gold_label")
PLACE = Place(tuple(FILES.values()), (".", "multinli_1.0", "mnli"), ROOT)

fingerprint_mnli = functools.partial(fingerprint_rows, place=PLACE)


@contextlib.contextmanager
def open_mnli(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads train, and the matched dev file as the test split; says how many records count for nothing, and why.

    Raises:
      UserError: for a file that is missing, empty or not UTF-8, and for a line that is no record or has another label;
        it names file and line.
    """
    with open_rows(root, PLACE) as files:
        yield TextSet(CLASSES, {split: _pairs(files[name], split, log) for split, name in FILES.items()}, pairs=True)


def _pairs(file: RowFile, split: str, log: Log) -> list[Labelled]:
    pairs, dropped = [], Counter()
    for row in read_rows(file, COLUMNS):
        premise, hypothesis, label = (row.fields[column] for column in COLUMNS)
        if label == UNDECIDED:
            dropped["have no gold label ('-')"] += 1
        elif not (isinstance(premise, str) and isinstance(hypothesis, str)):
            raise UserError(f"{row.where}: sentence1 and sentence2 must be texts; mend the line")
        elif not (without_breaks(premise).strip() and without_breaks(hypothesis).strip()):
            dropped["have an empty sentence"] += 1
        else:
            pairs.append(Labelled(premise, _label(row), hypothesis))
    for reason, count in dropped.items():
        log(f"  {split}: {count} record(s) {reason} and are left out")
    if not pairs:
        raise UserError(f"{file.where} holds no labelled records; copy the original again")
    return pairs


def _label(row: Row) -> int:
    label = row.fields["gold_label"]
    if label not in CLASSES:
        raise UserError(f"{row.where} has gold_label {label!r}; it must be one of {', '.join(CLASSES)}")
    return CLASSES.index(label)
