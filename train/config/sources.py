"""The source of the files at a root, by their names."""

import contextlib
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

# By source: names of its files, folders or archive.
SIGNS = {
    "cifar10": r"data_batch_1\.bin|cifar-10-.*",
    "cityscapes": r"leftImg8bit.*|gtFine.*",
    "imdb": r"aclImdb.*|imdb\.vocab",
    "sst2": r"SST-2.*",
    "mnli": r"multinli_1\.0.*",
}
LEVELS = 3  # of folders that are looked through for names
# of an archive, or, for RuntimeError, of a home folder that nobody has
UNREADABLE = (
    *(OSError, EOFError, ValueError, RuntimeError),
    *(tarfile.TarError, zipfile.BadZipFile),
)


def sources_of(kind: type) -> tuple[str, ...]:
    """The names of the data of a class of options."""
    return get_args(get_type_hints(kind)["source"])


def source_at(root: str, sources: Sequence[str], own: str) -> str:
    """Returns the one of the sources whose files are at a root, by their names; of
    others ``own``. A root that cannot be read is an error when it is prepared."""
    names = {Path(root).name}
    with contextlib.suppress(*UNREADABLE):
        names.update(_names_below(Path(root).expanduser()))
    for source in sources:
        sign = SIGNS.get(source)
        if sign is not None and any(re.fullmatch(sign, name) for name in names):
            return source
    return own


def _names_below(root: Path) -> Iterator[str]:
    """Yields names of folders and files near a root, or in an archive."""
    if root.is_dir():
        for folder, inside, files in os.walk(root):
            yield from (*inside, *files)
            if len(Path(folder).relative_to(root).parts) + 1 >= LEVELS:
                inside.clear()
        return
    paths: list[str] = []
    if zipfile.is_zipfile(root):
        with zipfile.ZipFile(root) as archive:
            paths = archive.namelist()
    elif root.is_file() and tarfile.is_tarfile(root):
        with tarfile.open(root) as archive:
            paths = archive.getnames()
    for path in paths:
        yield from path.split("/")
