"""IMDB reviews as published: aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, in a folder or a tar archive."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from train.data.archives import archive_members, open_archive, read_member
from train.data.download import Download
from train.data.fingerprint import fingerprint_files
from train.data.folders import require_listable
from train.data.source import Log
from train.data.text.originals import Labelled, TextSet, checked, decoded
from train.errors import UserError

__all__ = ["CLASSES", "DOWNLOAD", "ROOT", "fingerprint_imdb", "open_imdb"]

CLASSES = ("negative", "positive")
# The size and checksum are those that TFDS lists, but does not count among those it knows.
DOWNLOAD = Download(
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "imdb",
    (84_125_825, "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe", "aclImdb_v1.tar.gz"),
)
ROOT = "the folder aclImdb of the reviews as published, or a tar archive of it such as aclImdb_v1.tar.gz"
SPLITS = ("train", "test")
FOLDERS = (".", "aclImdb", "imdb/aclImdb")
# Folder of each class, and the stars its reviews give; reviews of 5 and 6 stars were left out.
STARS = {"neg": range(1, 5), "pos": range(7, 11)}
UNUSED = "unsup"  # reviews without a label, beside the two classes
ARCHIVES = ("*.tar.gz", "*.tgz", "*.tar")
REVIEW = re.compile(r"(?:.*/)?aclImdb/(train|test)/([^/.][^/]*)/(\d+)_(\d+)\.txt")

Contents = Iterator[tuple[str, Callable[[], bytes]]]  # path of a file, and how to read it


class Review(NamedTuple):
    """A review by the keys it is put in order with."""

    split: str
    label: int
    number: int
    text: str


def fingerprint_imdb(root: Path) -> str:
    """Fingerprints the reviews of the unpacked folder, or the archive.

    Raises:
      UserError: if there is neither, or more than one archive.
    """
    found = _find(root)
    if found.is_file():
        return fingerprint_files([found], root=found.parent)
    folders = [found / split / name for split in SPLITS for name in STARS]
    return fingerprint_files([file for folder in folders for file in folder.glob("*.txt")], root=found)


@contextlib.contextmanager
def open_imdb(root: Path, log: Log) -> Iterator[TextSet]:
    """Reads both splits, negative reviews first, each class by number.

    Raises:
      UserError: for reviews that are missing, empty, not UTF-8, in a folder of no class or with stars of another class,
        and for an archive that is damaged; it names the culprit.
    """
    del log  # what is wrong with the files is an error
    found = _find(root)
    reviews = sorted(_reviews(_unpacked(found) if found.is_dir() else _packed(found), root))
    present = {(review.split, review.label) for review in reviews}
    for split in SPLITS:
        for label, name in enumerate(STARS):
            if (split, label) not in present:
                raise UserError(f"data.root={root} holds no reviews aclImdb/{split}/{name}/ID_STARS.txt; copy it again")
    yield TextSet(
        CLASSES, {split: [Labelled(r.text, r.label) for r in reviews if r.split == split] for split in SPLITS}
    )


def _find(root: Path) -> Path:
    """The folder of both splits, or the archive."""
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {ROOT}")
    if root.is_file():
        return root
    for folder in (root / place for place in FOLDERS):
        classes = [folder / split / name for split in SPLITS for name in STARS]
        if any(path.is_dir() for path in classes):
            for path in filter(Path.is_dir, classes):
                require_listable(path)
            return folder
    require_listable(root)
    for folder in (root, root / "imdb"):
        archives = sorted({file for pattern in ARCHIVES for file in folder.glob(pattern)})
        if len(archives) > 1:
            names = ", ".join(archive.name for archive in archives)
            raise UserError(f"data.root={folder} holds {len(archives)} archives ({names}); name the one to be read")
        if archives:
            return archives[0]
    raise UserError(f"data.root={root} holds neither aclImdb/train/neg/0_3.txt and so on nor an archive; give {ROOT}")


def _unpacked(folder: Path) -> Contents:
    for file in folder.glob("*/*/*.txt"):
        yield f"aclImdb/{file.relative_to(folder).as_posix()}", file.read_bytes


def _packed(path: Path) -> Contents:
    with open_archive(path) as archive:
        for member in archive_members(archive, path):
            yield member.name, functools.partial(read_member, archive, member, path)


def _reviews(contents: Contents, root: Path) -> Iterator[Review]:
    for path, read in contents:
        if not (found := REVIEW.fullmatch(path)) or found[2] == UNUSED:
            continue
        split, name, number, stars = found[1], found[2], int(found[3]), int(found[4])
        where = f"data.root={root}: {path}"
        if name not in STARS:
            raise UserError(f"{where} lies in no class; the folders are {', '.join(STARS)}")
        if stars not in STARS[name]:
            raise UserError(f"{where} has {stars} stars, which are not those of {name}; copy the original again")
        try:
            content = read()
        except OSError as error:  # a link that leads nowhere, a folder with the name of a review
            raise UserError(f"{where} cannot be read ({error.strerror}); copy the original again") from error
        text = checked(decoded(content, where=where), where=where)
        yield Review(split, list(STARS).index(name), number, text)
