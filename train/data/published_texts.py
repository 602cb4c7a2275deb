"""Published texts, in a folder or an archive: IMDB, SST-2 of GLUE, and MultiNLI."""

import contextlib
import functools
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..config.errors import UserError, option_text
from .files import Download, Log, fingerprint_files, open_tar, require_listable, root_error
from .prepare import Source
from .rows import Labelled, RowFile, TextSet, checked, decoded, is_empty, read_rows, row_file

SENTIMENTS = ("negative", "positive")

# IMDB: aclImdb/{train,test}/{neg,pos}/ID_STARS.txt.
# TFDS lists this size and checksum, but does not find them by the address.
IMDB_DOWNLOAD = Download(
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "imdb",
    (84_125_825, "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe", "aclImdb_v1.tar.gz"),
)
IMDB_WANTED = "the folder aclImdb of the reviews as published, or a tar archive of it such as aclImdb_v1.tar.gz"
IMDB_SPLITS = ("train", "test")
IMDB_FOLDERS = (".", "aclImdb", "imdb/aclImdb")
IMDB_ARCHIVES = ("aclImdb*.tar.gz", "imdb/aclImdb*.tar.gz")
# Folder of each class, and the stars its reviews give; reviews of 5 and 6 stars were left out.
STARS = {"neg": range(1, 5), "pos": range(7, 11)}
# Reviews in unsup have no label.
REVIEW = re.compile(r"(?:.*/)?aclImdb/(train|test)/(?!unsup/)([^/.][^/]*)/(\d+)_(\d+)\.txt")

Review = tuple[str, int, int, str]  # split, label, number, text: the keys they are put in order with

SST2_DOWNLOAD = Download("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", "sst2")
SST2_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
MNLI_CLASSES = ("entailment", "neutral", "contradiction")
MNLI_DOWNLOAD = Download("https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip", "mnli")
# The test labels are not published: the matched dev file is the test split.
MNLI_FILES = {"train": "multinli_1.0_train.jsonl", "test": "multinli_1.0_dev_matched.jsonl"}
MNLI_COLUMNS = ("sentence1", "sentence2", "gold_label")
UNDECIDED = "-"  # the gold label of MultiNLI where the annotators did not agree


class Place(NamedTuple):
    """The place of published files: their names, their possible folders (the first with any counts), and in words.

    In a zip archive they lie anywhere.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...]
    wanted: str


SST2_PLACE = Place(
    tuple(SST2_FILES.values()),
    (".", "SST-2", "glue/SST-2"),
    "the folder of SST-2's train.tsv, dev.tsv and test.tsv, or SST-2.zip, both as GLUE has them",
)
MNLI_PLACE = Place(
    tuple(MNLI_FILES.values()),
    (".", "multinli_1.0", "mnli"),
    f"the folder of {' and '.join(MNLI_FILES.values())}, or multinli_1.0.zip, which holds both",
)


def fingerprint_imdb(root: Path) -> str:
    """Fingerprints the reviews of the unpacked folder, or the archive."""
    source = _find_reviews(root)
    folders = [source / split / name for split in IMDB_SPLITS for name in STARS]
    reviews = [file for folder in folders for file in folder.glob("*.txt")]
    return fingerprint_files([source] if source.is_file() else reviews, root=source)


@contextlib.contextmanager
def open_imdb(root: Path, _: Log) -> Iterator[TextSet]:
    """Reads both splits, negative reviews first, each class by number."""
    source = _find_reviews(root)
    if source.is_dir():
        names = ((file, PurePosixPath("aclImdb", file.relative_to(source))) for file in source.glob("*/*/*.txt"))
        reviews = sorted(_reviews(((name, file.read_bytes) for file, name in names), root))
    else:
        with open_tar(source, lambda path: REVIEW.fullmatch(str(path)) is not None) as files:
            reviews = sorted(_reviews(((file.path, file.read) for file in files), root))
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
    with _open_rows(root, SST2_PLACE) as files:
        splits = {split: _sentences(files[SST2_FILES[split]]) for split in ("train", "validation")}
        test = files[SST2_FILES["test"]]
        first = next(read_rows(test, ("sentence",)), None)
        if first is None or "label" in first.fields:
            splits["test"] = _sentences(test)
        else:
            log("  test.tsv has no labels, as GLUE gives it out: dev.tsv is the test split, train gives validation")
            splits["test"] = splits.pop("validation")
    yield TextSet(SENTIMENTS, splits)


@contextlib.contextmanager
def open_mnli(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads train, and the matched dev file as the test split; logs the number of records left out."""
    with _open_rows(root, MNLI_PLACE) as files:
        splits = {split: _pairs(files[name], split, log) for split, name in MNLI_FILES.items()}
    yield TextSet(MNLI_CLASSES, splits, pairs=True)


def fingerprint_rows(root: Path, *, place: Place) -> str:
    """Fingerprints those of the files that are there, or the zip archive that holds them."""
    source = _folder(root, place) or root
    files = [path for name in place.names if (path := source / name).exists()]
    return fingerprint_files([source] if source.is_file() else files, root=source)


def _find_reviews(root: Path) -> Path:
    """Returns the folder of both splits, or the archive."""
    if root.is_file():
        return root
    require_listable(root)
    for folder in (root / place for place in IMDB_FOLDERS):
        classes = [folder / split / name for split in IMDB_SPLITS for name in STARS]
        if present := [path for path in classes if path.is_dir()]:
            for path in present:
                require_listable(path)
            return folder
    for archive in (path for pattern in IMDB_ARCHIVES for path in sorted(root.glob(pattern))):
        if archive.is_file():
            return archive
    raise root_error(root, f"holds neither aclImdb/train/neg/0_3.txt and so on nor an archive; give {IMDB_WANTED}")


def _reviews(files: Iterable[tuple[PurePosixPath, Callable[[], bytes]]], root: Path) -> Iterator[Review]:
    for path, read in files:
        if not (match := REVIEW.fullmatch(str(path))):
            continue
        split, name, number, stars = match[1], match[2], int(match[3]), int(match[4])
        where = f"{option_text('data.root', root)}: {path}"
        if name not in STARS:
            raise UserError(f"{where} is not in the folder of a class; the folders are {', '.join(STARS)}")
        if stars not in STARS[name]:
            raise UserError(f"{where} has {stars} stars, not of {name}; copy the original again")
        try:
            content = read()
        except OSError as error:  # a link that leads nowhere, a folder with the name of a review
            raise UserError(f"{where} cannot be read ({error.strerror}); copy the original again") from error
        yield split, list(STARS).index(name), number, checked(decoded(content, where=where), where=where)


@contextlib.contextmanager
def _open_rows(root: Path, place: Place) -> Iterator[dict[str, RowFile]]:
    """Finds the files, each by its name; they can be read while the context lasts."""
    folder = _folder(root, place)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            row_files = {name: row_file(folder / name) for name in place.names if (folder / name).exists()}
        else:
            archive = stack.enter_context(_open_zip(root, place))
            row_files = {name: file for name in place.names if (file := _packed(archive, name, root))}
        for name in place.names:
            if name not in row_files:
                raise root_error(folder or root, f"holds no {name}; give {place.wanted}")
        yield row_files


def _folder(root: Path, place: Place) -> Path | None:
    """The folder that holds the files; None where the root is a file."""
    if root.is_file():
        return None
    for folder in (root / name for name in place.folders):
        if any((folder / name).exists() for name in place.names):
            return folder
    raise root_error(root, f"holds no {place.names[0]}; give {place.wanted}")


def _open_zip(root: Path, place: Place) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(root)
    except (zipfile.BadZipFile, OSError) as error:
        raise root_error(
            root,
            f"is neither a folder nor a whole zip archive ({error}); if it was truncated, copy it again; give "
            f"{place.wanted}",
        ) from error


def _packed(archive: zipfile.ZipFile, name: str, root: Path) -> RowFile | None:
    members = [member for member in archive.namelist() if PurePosixPath(member).name == name]
    if not members:
        return None
    member = min(members, key=lambda path: path.count("/"))
    return RowFile(f"{root}: {member}", PurePosixPath(name).suffix, lambda: archive.open(member))


def _sentences(file: RowFile) -> list[Labelled]:
    sentences = []
    for row in read_rows(file, ("sentence", "label")):
        text = checked(row.fields["sentence"], where=row.where)
        if (label := row.fields["label"]) not in ("0", "1"):
            raise UserError(f"{row.where} has label {label!r}; a label must be 0 (negative) or 1 (positive)")
        sentences.append(Labelled(text, int(label)))
    if not sentences:
        raise UserError(f"{file.where} holds no sentences; copy the original again")
    return sentences


def _pairs(file: RowFile, split: str, log: Log) -> list[Labelled]:
    pairs, dropped = [], Counter()
    for row in read_rows(file, MNLI_COLUMNS):
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
        raise UserError(f"{file.where} holds no labelled records; copy the original again")
    return pairs


IMDB = Source(fingerprint_imdb, open_imdb, IMDB_WANTED, IMDB_DOWNLOAD)
SST2 = Source(functools.partial(fingerprint_rows, place=SST2_PLACE), open_sst2, SST2_PLACE.wanted, SST2_DOWNLOAD)
MNLI = Source(functools.partial(fingerprint_rows, place=MNLI_PLACE), open_mnli, MNLI_PLACE.wanted, MNLI_DOWNLOAD)
