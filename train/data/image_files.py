"""Image files where they lie: in a folder tree, or in a tar archive, read in place, never extracted."""

import contextlib
import functools
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from train.data.archives import archive_members, member_path, open_archive
from train.data.fingerprint import check_name, fingerprint_files
from train.data.folders import files_below
from train.errors import UserError

__all__ = ["ImageFile", "fingerprint_images", "open_image_files"]

T = TypeVar("T")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")


class ImageFile(NamedTuple):
    """One image file: its path below the root, its place in the order that reads fastest, and its contents.

    Places are all 0 where any order is as fast.
    """

    path: PurePosixPath
    place: int
    read: Callable[[], bytes]


def fingerprint_images(root: Path, *, what: str, layout: str) -> str:
    """Fingerprints a folder's image files, or an archive.

    Args:
      root: A folder or a tar archive.
      what: What the images are called, in the plural.
      layout: Where they must lie, in words; said when there is no such root.

    Raises:
      UserError: if the root is missing, empty or holds no images.
    """
    if not root.exists():
        raise UserError(
            f"data.root={root} does not exist; give the folder or tar archive that holds the {what}, as in {layout}"
        )
    if root.is_dir():
        return fingerprint_files(_image_paths(root, what), root=root)
    return fingerprint_files([root], root=root.parent)


@contextlib.contextmanager
def open_image_files(root: Path, *, what: str) -> Iterator[list[ImageFile]]:
    """Lists the image files of a folder or a tar archive, in no order; they can be read while the context lasts.

    Args:
      root: A folder or a tar archive.
      what: What the images are called, in the plural.

    Raises:
      UserError: if the root is missing, empty, holds no images, or is an archive that is damaged or unsafe.
    """
    if root.is_dir():
        yield [ImageFile(_below(root, path), 0, path.read_bytes) for path in _image_paths(root, what)]
        return
    with open_archive(root) as archive:
        yield _image_members(archive, root, what)


def _image_paths(root: Path, what: str) -> list[Path]:
    paths = files_below(root)
    if not paths:
        raise UserError(f"data.root={root} is empty; give the folder or tar archive that holds the {what}")
    return _some_images([path for path in paths if _is_image(_below(root, path))], root, what)


def _below(root: Path, path: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(root).as_posix())


def _is_image(path: PurePosixPath) -> bool:
    """Whether a name is an image's; hidden files and the shadow files of macOS archives are not."""
    hidden = any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden


def _some_images(images: list[T], root: Path, what: str) -> list[T]:
    if not images:
        raise UserError(f"data.root={root} holds no {what}; give one with {', '.join(IMAGE_SUFFIXES)} files")
    return images


def _image_members(archive: tarfile.TarFile, root: Path, what: str) -> list[ImageFile]:
    # The last of several members of one name counts, as it does when an archive is unpacked.
    members = {PurePosixPath(member.name): member for member in archive_members(archive, root)}
    images = {path: member for path, member in members.items() if _is_image(path)}
    for member in images.values():
        check_name(str(member_path(member, root)), root)
    # Going back in a compressed archive means decompressing it again from its start.
    compressed = not isinstance(archive.fileobj, io.BufferedReader)
    return _some_images(
        [
            ImageFile(path, member.offset if compressed else 0, functools.partial(_contents, archive, member))
            for path, member in images.items()
        ],
        root,
        what,
    )


def _contents(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = archive.extractfile(member)
    if opened is None:
        raise OSError("not a plain file")
    return opened.read()
