"""IMDB reviews as published: aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, in a folder or a tar archive."""

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from train.data.archives import archive_members, open_archive, read_member
from train.data.text.labelled import Labelled, checked, decoded
from train.errors import UserError

__all__ = ["CLASSES", "imdb_files", "read_imdb"]

CLASSES = ("negative", "positive")
SPLITS = ("train", "test")
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


def imdb_files(root: Path) -> list[Path]:
    """The archive below a root, or the reviews of the unpacked folder.

    Raises:
      UserError: if there is neither, or more than one archive.
    """
    folder = root / "imdb"
    if (folder / "aclImdb").is_dir():
        return [
            file for split in SPLITS for name in STARS for file in (folder / "aclImdb" / split / name).glob("*.txt")
        ]
    archives = sorted({file for pattern in ARCHIVES for file in folder.glob(pattern)})
    if not archives:
        raise UserError(
            f"{folder} holds neither aclImdb nor a tar archive of it; data.root must hold the reviews as published: "
            "imdb/aclImdb/train/neg/0_3.txt and so on, or an archive imdb/aclImdb_v1.tar.gz with the same inside"
        )
    if len(archives) > 1:
        names = ", ".join(archive.name for archive in archives)
        raise UserError(f"{folder} holds {len(archives)} archives ({names}); keep the one to be read")
    return archives


def read_imdb(root: Path) -> dict[str, list[Labelled]]:
    """Reads both splits, negative reviews first, each class by number.

    Raises:
      UserError: for reviews that are missing, empty, not UTF-8, in a folder of no class or with stars of another class,
        and for an archive that is damaged; it names the culprit.
    """
    folder = root / "imdb" / "aclImdb"
    contents = _unpacked(folder) if folder.is_dir() else _packed(*imdb_files(root))
    reviews = sorted(_reviews(contents, root / "imdb"))
    present = {(review.split, review.label) for review in reviews}
    for split in SPLITS:
        for label, name in enumerate(STARS):
            if (split, label) not in present:
                raise UserError(f"{root / 'imdb'} holds no reviews aclImdb/{split}/{name}/ID_STARS.txt; copy it again")
    return {split: [Labelled(r.text, r.label) for r in reviews if r.split == split] for split in SPLITS}


def _unpacked(folder: Path) -> Contents:
    for file in folder.glob("*/*/*.txt"):
        yield f"aclImdb/{file.relative_to(folder).as_posix()}", file.read_bytes


def _packed(path: Path) -> Contents:
    with open_archive(path) as archive:
        for member in archive_members(archive, path):
            yield member.name, functools.partial(read_member, archive, member, path)


def _reviews(contents: Contents, folder: Path) -> Iterator[Review]:
    for path, read in contents:
        if not (found := REVIEW.fullmatch(path)) or found[2] == UNUSED:
            continue
        split, name, number, stars = found[1], found[2], int(found[3]), int(found[4])
        where = f"{folder}: {path}"
        if name not in STARS:
            raise UserError(f"{where} lies in no class; the folders are {', '.join(STARS)}")
        if stars not in STARS[name]:
            raise UserError(f"{where} has {stars} stars, which are not those of {name}; copy the original again")
        text, label = checked(decoded(read(), where=where), list(STARS).index(name), where=where)
        yield Review(split, label, number, text)
