"""Frames where they lie: the image files of a folder tree, or of a tar archive, read in place, never extracted."""

import contextlib
import functools
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TypeVar

from train.data.archives import archive_members, open_archive
from train.data.fingerprint import fingerprint_files
from train.errors import UserError

__all__ = ["FrameFile", "fingerprint_frames", "open_frame_files"]

T = TypeVar("T")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")


class FrameFile(NamedTuple):
    """One image file: its path below the root, its place in the order that reads fastest, and how to open it."""

    path: PurePosixPath
    place: int
    open: Callable[[], IO[bytes]]


def fingerprint_frames(root: Path) -> str:
    """Fingerprints a folder's image files, or an archive.

    Raises:
      UserError: if the root is missing, empty or holds no images.
    """
    if not root.exists():
        raise UserError(
            f"data.root={root} does not exist; give the folder or tar archive that holds the frames, as in "
            "ROOT/Train/Train001/001.png, ROOT/Test/Test001/001.png (for UCSD Ped2, the folder its download unpacks to)"
        )
    if root.is_dir():
        return fingerprint_files(_image_paths(root), root=root)
    return fingerprint_files([root], root=root.parent)


@contextlib.contextmanager
def open_frame_files(root: Path) -> Iterator[list[FrameFile]]:
    """Lists the image files of a folder or a tar archive, in no order; they can be opened while the context lasts.

    Raises:
      UserError: if the root is missing, empty, holds no images, or is an archive that is damaged or unsafe.
    """
    if root.is_dir():
        paths = _image_paths(root)
        yield [FrameFile(_below(root, path), 0, functools.partial(path.open, "rb")) for path in paths]
        return
    with open_archive(root) as archive:
        yield _frame_members(archive, root)


def _image_paths(root: Path) -> list[Path]:
    paths = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    if not paths:
        raise UserError(f"data.root={root} is empty; give the folder or tar archive that holds the frames")
    return _some_frames([path for path in paths if _is_image(_below(root, path))], root)


def _below(root: Path, path: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(root).as_posix())


def _is_image(path: PurePosixPath) -> bool:
    """Whether a name is an image's; hidden files and the shadow files of macOS archives are not."""
    hidden = any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden


def _some_frames(frames: list[T], root: Path) -> list[T]:
    if not frames:
        raise UserError(f"data.root={root} holds no frames; give one with {', '.join(IMAGE_SUFFIXES)} files")
    return frames


def _frame_members(archive: tarfile.TarFile, root: Path) -> list[FrameFile]:
    members = {PurePosixPath(member.name): member for member in archive_members(archive, root)}
    frames = {path: member for path, member in members.items() if _is_image(path)}
    for path, member in frames.items():
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"data.root={root}: member {member.name!r} points outside the archive; make it anew")
        if not member.isreg():
            raise UserError(f"data.root={root}: member {member.name!r} is not a plain file; make the archive anew")
    return _some_frames(
        [FrameFile(path, member.offset, _opener(archive, member)) for path, member in frames.items()], root
    )


def _opener(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def open_member() -> IO[bytes]:
        opened = archive.extractfile(member)
        if opened is None:
            raise OSError("not a plain file")
        return opened

    return open_member
