"""CIFAR-10 in its binary version: six files of small labelled images, in a folder or an archive."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from ..config.errors import UserError
from .files import Download, Log, fingerprint_files, open_tar
from .pictures import LabelledImages, PictureSet
from .prepare import Source

# CIFAR-10: six files of 10,000 records, a class and 32 x 32 x 3 pixels, channels first.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DOWNLOAD = Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar10")
PARTS = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
FILES = (*PARTS["train"], *PARTS["test"])
ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
WANTED = (
    f"give {ARCHIVE} or the folder it unpacks to, from {DOWNLOAD.url}; "
    "for images in folders named after their classes, use data.source=image_folder"
)
RECORDS = 10_000  # of a file
SHAPE = (32, 32, 3)
RECORD_BYTES = 1 + 32 * 32 * 3
# The Python version holds pickles, which can run any code when they are read.
PYTHON_VERSION = ("cifar-10-python.tar.gz", "cifar-10-batches-py", "data_batch_1", "batches.meta")


def fingerprint_cifar10(root: Path) -> str:
    """Fingerprints the six files, or the archive that holds them."""
    source = _find(root)
    files = [path for name in FILES if (path := source / name).exists()] if source.is_dir() else [source]
    return fingerprint_files(files, root=source)


@contextlib.contextmanager
def open_cifar10(root: Path, _: Log) -> Iterator[PictureSet[LabelledImages]]:
    """Reads all images into memory, 184 MB."""
    source = _find(root)
    contents = _unpacked(source) if source.is_dir() else _packed(source)
    records = {name: _records(contents[name], where=f"data.root={root}: {name}") for name in FILES}
    splits = {split: _images([records[name] for name in names]) for split, names in PARTS.items()}
    yield PictureSet(CLASSES, SHAPE, splits)


def _find(root: Path) -> Path:
    """Returns the folder of the six files, or the archive."""
    names = [file.name for file in root.iterdir()] if root.is_dir() else []
    _refuse_python_version(root, [root.name, *sorted(names)])
    if root.is_file():
        return root
    for folder in (root, root / FOLDER):
        if (folder / FILES[0]).exists():
            return folder
    if (root / ARCHIVE).is_file():
        return root / ARCHIVE
    what = f"holds no {FILES[0]}" if root.exists() else "does not exist"
    raise UserError(f"data.root={root} {what}; {WANTED}")


def _refuse_python_version(root: Path, names: Iterable[str]) -> None:
    if ARCHIVE in names or FILES[0] in names:
        return
    for name in names:
        if name in PYTHON_VERSION:
            raise UserError(
                f"data.root={root} is the Python version of CIFAR-10 ({name}), pickles that can run any code when "
                f"read; give the binary version instead: {ARCHIVE}, from {DOWNLOAD.url}"
            )


def _unpacked(folder: Path) -> dict[str, bytes]:
    contents = {}
    for name in FILES:
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(
                f"data.root={folder}: {name} cannot be read ({error.strerror or error}); unpack {ARCHIVE} again"
            ) from error
    return contents


def _packed(path: Path) -> dict[str, bytes]:
    names = []

    def wanted(inside: PurePosixPath) -> bool:
        names.append(inside.name)
        return inside.name in FILES

    with open_tar(path, wanted) as files:
        contents = {file.path.name: file.read() for file in files}
    _refuse_python_version(path, names)
    if missing := [name for name in FILES if name not in contents]:
        raise UserError(f"data.root={path} holds no {missing[0]}; {WANTED}")
    return contents


def _records(content: bytes, *, where: str) -> np.ndarray:
    if len(content) != RECORDS * RECORD_BYTES:
        raise UserError(
            f"{where} has {len(content):,} bytes instead of {RECORDS * RECORD_BYTES:,}, {RECORDS:,} images; "
            f"if it was truncated, copy it again; it comes with {DOWNLOAD.url}"
        )
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD_BYTES)
    beyond = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if len(beyond):
        raise UserError(
            f"{where} gives image {beyond[0]} the class {records[beyond[0], 0]}; classes run from 0 to "
            f"{len(CLASSES) - 1}: copy the file again"
        )
    return records


def _images(files: list[np.ndarray]) -> LabelledImages:
    def read(numbers: np.ndarray) -> Iterator[np.ndarray]:
        for number in numbers:
            pixels = files[number // RECORDS][number % RECORDS, 1:]
            yield pixels.reshape(SHAPE[2], *SHAPE[:2]).transpose(1, 2, 0)

    return LabelledImages(np.concatenate([records[:, 0] for records in files]).astype(np.int64), read)


CIFAR10 = Source(fingerprint_cifar10, open_cifar10, "cifar-10-binary.tar.gz or its folder", DOWNLOAD)
