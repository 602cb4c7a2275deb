"""Published texts, in a folder or an archive: IMDB, SST-2 of GLUE, and MultiNLI."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from ..config.errors import UserError, option_text
from .files import (
    Log,
    OriginalFile,
    Published,
    files_below,
    fingerprint_files,
    original_files,
    root_error,
)
from .prepare import Source
from .rows import Labelled, TextSet, checked, decoded, is_empty, read_rows

SENTIMENTS = ("negative", "positive")

# IMDB: aclImdb/{train,test}/{neg,pos}/ID_STARS.txt.
IMDB_SPLITS = ("train", "test")
IMDB_PLACE = Published(
    ("train/neg",),
    (".", "aclImdb", "imdb/aclImdb"),
    ("aclImdb*.tar.gz", "imdb/aclImdb*.tar.gz"),
    "the folder aclImdb of the reviews as published, or its archive, http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
)
# Folder of each class, and the stars its reviews give; reviews of 5 and 6 stars were left out.
STARS = {"neg": range(1, 5), "pos": range(7, 11)}
# Reviews in unsup have no label.
REVIEW = re.compile(r"(?:.*/)?(train|test)/(?!unsup/)([^/.][^/]*)/(\d+)_(\d+)\.txt")

Review = tuple[str, int, int, str]  # split, label, number, text: the keys they are put in order with

SST2_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
MNLI_CLASSES = ("entailment", "neutral", "contradiction")
# The test labels are not published: the matched dev file is the test split.
MNLI_FILES = {"train": "multinli_1.0_train.jsonl", "test": "multinli_1.0_dev_matched.jsonl"}
MNLI_COLUMNS = ("sentence1", "sentence2", "gold_label")
UNDECIDED = "-"  # the gold label of MultiNLI where the annotators did not agree


SST2_PLACE = Published(
    tuple(SST2_FILES.values()),
    (".", "SST-2", "glue/SST-2"),
    (),
    "the folder of SST-2's train.tsv, dev.tsv and test.tsv, or their archive, "
    "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
)
MNLI_PLACE = Published(
    tuple(MNLI_FILES.values()),
    (".", "multinli_1.0", "mnli"),
    (),
    f"the folder of {' and '.join(MNLI_FILES.values())}, or their archive, https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",
)


def fingerprint_imdb(root: Path) -> str:
    """Fingerprints the reviews of the unpacked folder, or the archive."""
    source = IMDB_PLACE.find(root)
    reviews = [source] if source.is_file() else [file.local for file in files_below(source, _is_review)]
    return fingerprint_files(reviews, root=source)


@contextlib.contextmanager
def open_imdb(root: Path, _: Log) -> Iterator[TextSet]:
    """Reads both splits, negative reviews first, each class by number."""
    with original_files(IMDB_PLACE.find(root), _is_review) as files:
        reviews = sorted(_reviews(files, root))
    present = {(split, label) for split, label, *_ in reviews}
    for split in IMDB_SPLITS:
        for label, name in enumerate(STARS):
            if (split, label) not in present:
                raise root_error(root, f"holds no reviews aclImdb/{split}/{name}/ID_STARS.txt; copy it again")
    labelled = {
        split: [Labelled(text, label) for where, label, _, text in reviews if where == split] for split in IMDB_SPLITS
    }
    yield TextSet(SENTIMENTS, labelled)


@contextlib.contextmanager
def open_sst2(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads every split; without test labels, as in GLUE, dev is the test split and validation is cut from train."""
    with SST2_PLACE.open(root) as files:
        splits = {split: _sentences(files[SST2_FILES[split]], root) for split in ("train", "validation")}
        test = files[SST2_FILES["test"]]
        first = next(read_rows(test.local, ("sentence",)), None)
        if first is None or "label" in first.fields:
            splits["test"] = _sentences(test, root)
        else:
            log("  test.tsv has no labels, as GLUE gives it out: dev.tsv is the test split, train gives validation")
            splits["test"] = splits.pop("validation")
    yield TextSet(SENTIMENTS, splits)


@contextlib.contextmanager
def open_mnli(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads train, and the matched dev file as the test split; logs the number of records left out."""
    with MNLI_PLACE.open(root) as files:
        splits = {split: _pairs(files[name], root, split, log) for split, name in MNLI_FILES.items()}
    yield TextSet(MNLI_CLASSES, splits, pairs=True)


def _is_review(path: PurePosixPath) -> bool:
    return REVIEW.fullmatch(str(path)) is not None


def _reviews(files: Iterable[OriginalFile], root: Path) -> Iterator[Review]:
    for path, local in files:
        match = REVIEW.fullmatch(str(path))
        assert match is not None  # only reviews are listed
        split, name, number, stars = match[1], match[2], int(match[3]), int(match[4])
        where = f"{option_text('data.root', root)}: {path}"
        if name not in STARS:
            raise UserError(f"{where} is not in the folder of a class; the folders are {', '.join(STARS)}")
        if stars not in STARS[name]:
            raise UserError(f"{where} has {stars} stars, not of {name}; copy the original again")
        try:
            content = local.read_bytes()
        except OSError as error:  # a link that leads nowhere, a folder with the name of a review
            raise UserError(f"{where} cannot be read ({error.strerror}); copy the original again") from error
        yield split, list(STARS).index(name), number, checked(decoded(content, where=where), where=where)


def _sentences(file: OriginalFile, root: Path) -> list[Labelled]:
    sentences = []
    for row in read_rows(file.local, ("sentence", "label"), where=f"{root}: {file.path}"):
        text = checked(row.fields["sentence"], where=row.where)
        if (label := row.fields["label"]) not in ("0", "1"):
            raise UserError(f"{row.where} has label {label!r}; a label must be 0 (negative) or 1 (positive)")
        sentences.append(Labelled(text, int(label)))
    if not sentences:
        raise UserError(f"{root}: {file.path} holds no sentences; copy the original again")
    return sentences


def _pairs(file: OriginalFile, root: Path, split: str, log: Log) -> list[Labelled]:
    pairs, dropped = [], Counter()
    for row in read_rows(file.local, MNLI_COLUMNS, where=f"{root}: {file.path}"):
        premise, hypothesis, label = (row.fields[column] for column in MNLI_COLUMNS)
        if label == UNDECIDED:
            dropped["have no gold label ('-')"] += 1
        elif not (isinstance(premise, str) and isinstance(hypothesis, str)):
            raise UserError(f"{row.where}: sentence1 and sentence2 must be texts; mend the line")
        elif is_empty(premise) or is_empty(hypothesis):
            dropped["have an empty sentence"] += 1
        elif label not in MNLI_CLASSES:
            raise UserError(f"{row.where} has gold_label {label!r}; it must be one of {', '.join(MNLI_CLASSES)}")
        else:
            pairs.append(Labelled(premise, MNLI_CLASSES.index(label), hypothesis))
    for reason, count in dropped.items():
        log(f"  {split}: leaving out {count} record(s) that {reason}")
    if not pairs:
        raise UserError(f"{root}: {file.path} holds no labelled records; copy the original again")
    return pairs


IMDB = Source(fingerprint_imdb, open_imdb, IMDB_PLACE.wanted)
SST2 = Source(SST2_PLACE.fingerprint, open_sst2, SST2_PLACE.wanted)
MNLI = Source(MNLI_PLACE.fingerprint, open_mnli, MNLI_PLACE.wanted)
