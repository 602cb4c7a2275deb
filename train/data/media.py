"""Files by their contents: pictures found among others and decoded in place,
upright."""

import contextlib
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..system.reading import open_regular
from .files import (
    KNOWN,
    Log,
    OriginalFile,
    files_below,
    fingerprint_files,
    is_visible,
    original_files,
    root_error,
)

# a folder of only such files is neither a class nor a clip
NOTES = (".txt", ".md", ".csv", ".json")
# A file with another name is a picture if it begins as one.
IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".tif",
    ".tiff",
    ".bmp",
    ".webp",
    ".ppm",
    ".pgm",
    ".jp2",
)
# Formats of Pillow that have a mark at their start, and start no other program.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "JPEG2000")
# of more pixels than Pillow trusts
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, *BOMBS)

T = TypeVar("T")


class Media(NamedTuple):
    """Files by their contents, in no order: pictures, videos where they are wanted,
    and the rest."""

    pictures: list[OriginalFile]
    videos: list[OriginalFile]
    others: list[OriginalFile]  # which are passed over
    empty: list[PurePosixPath]  # folders


def fingerprint_media(root: Path) -> str:
    """Fingerprints the visible files of a folder, or of a root that is a file the
    file."""
    if not root.is_dir():
        return fingerprint_files([root], root=root)
    return fingerprint_files(
        [file.local for file in files_below(root, is_visible)[0]], root=root
    )


@contextlib.contextmanager
def open_media(
    root: Path, log: Log, *, is_video: Callable[[Path], bool] | None = None
) -> Iterator[Media]:
    """Finds the pictures and videos in a folder or an archive; they can be read while
    the context lasts. The suffix decides, or else the contents. The log has the number
    of files that are neither, by suffix.
    """
    with original_files(root, is_visible) as (files, empty):
        media = Media([], [], [], empty)
        for file in files:
            if is_picture(file.local):
                media.pictures.append(file)
            elif is_video is not None and is_video(file.local):
                media.videos.append(file)
            else:
                media.others.append(file)
        what = "picture or video" if is_video else "picture"
        if not (media.pictures or media.videos):
            but = f" but {by_suffix(media.others)}" if media.others else ""
            raise root_error(
                root,
                f"holds no {what} that can be read{but}; give a folder or archive of"
                " them",
            )
        if media.others:
            log(
                f"  passing over {len(media.others)} file(s) that are no {what}:"
                f" {by_suffix(media.others)}"
            )
        yield media


def is_picture(file: Path) -> bool:
    """Returns whether a file is named as a picture or, under any other name, begins
    as one."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        return True
    try:
        with open_regular(file, where=str(file)) as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(content, formats=FORMATS) as picture:
                # a GIF that moves is a video
                return picture.format != "GIF" or getattr(picture, "n_frames", 1) == 1
    except IMAGE_ERRORS as error:
        return isinstance(error, BOMBS)


def by_suffix(files: Sequence[OriginalFile]) -> str:
    """Returns the number of files of each suffix, for messages."""
    counts = Counter(file.path.suffix.lower() for file in files)
    return ", ".join(
        f"{count} {suffix or 'without a suffix'}"
        for suffix, count in sorted(counts.items())
    )


def check_none_vanishes(
    media: Media, units: Collection[PurePosixPath], root: Path
) -> None:
    """Checks that every class or clip has a file that is read, given those that have
    one. A folder beside them is one too, unless it holds only notes; one that is named
    after a split is a split.
    """
    unread: dict[PurePosixPath, list[OriginalFile]] = {
        folder: [] for folder in media.empty
    }
    for file in media.others:
        unread.setdefault(file.path.parent, []).append(file)
    holding = {above for unit in units for above in (unit, *unit.parents)}
    beside = {unit.parent for unit in units}
    for folder, files in unread.items():
        way = (*reversed(folder.parents), folder)
        first = next((each for each in way if each not in holding), None)
        notes = files and all(file.path.suffix.lower() in NOTES for file in files)
        if first is None or first.parent in units or notes:
            continue
        if first.parent in beside or first.name.lower() in KNOWN:
            but = f" but {by_suffix(files)}" if files else ""
            raise root_error(
                root,
                f": '{first}' has no file that can be read{but}; give it one, or remove"
                " the folder",
            )


def check_one_data_set(tops: Iterable[str], root: Path) -> None:
    """Checks that the layout begins in one folder only below the root."""
    names = sorted({*tops})
    if len(names) > 1:
        raise root_error(
            root, f"holds several data sets ({', '.join(names)}); give one of them"
        )


def decode_in_order(
    files: Iterable[OriginalFile],
    convert: Callable[[Image.Image], T],
    *,
    root: Path,
    what: str,
    size: tuple[int, int] | None = None,
) -> Iterator[T]:
    """Decodes files of one size (width, height), or the first one's, in order;
    errors, of ``convert`` too, name it."""
    for file in files:
        try:
            with open_picture(file.local) as picture:
                size = size or picture.size
                if picture.size != size:
                    wrong, right = (
                        f"{width}x{height}" for width, height in (picture.size, size)
                    )
                    raise ValueError(
                        f"it is {wrong}, others are {right}; bring all to one size"
                    )
                converted = convert(picture)
        except IMAGE_ERRORS as error:
            reason = (
                "not an image of a known kind"
                if isinstance(error, UnidentifiedImageError)
                else error
            )
            words = (
                f": {what} '{file.path}' cannot be read as an image ({reason});"
                " replace it"
            )
            raise root_error(root, words) from error
        yield converted


def check_depth(picture: Image.Image) -> None:
    """Checks that pixels have at most 8 bits."""
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {picture.mode})")


def brought_to(picture: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns a picture as uint8 of a shape (height, width, channels): grey for one
    channel, else in colour."""
    check_depth(picture)
    height, width, channels = shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(shape)


@contextlib.contextmanager
def open_picture(file: Path) -> Iterator[Image.Image]:
    """Opens one picture, turned upright as its EXIF orientation says."""
    with open_regular(file, where=str(file)) as content, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(content, formats=FORMATS) as picture:
            # Pages of a TIFF, frames of an animated PNG; other pictures in a camera's
            # JPEG (MPO) are views of one.
            if (
                picture.format not in ("JPEG", "MPO")
                and (pages := getattr(picture, "n_frames", 1)) > 1
            ):
                raise ValueError(f"it holds {pages} pictures; save each by itself")
            picture.load()
            # damaged EXIF is ignored, as by viewers
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ImageOps.exif_transpose(picture, in_place=True)
            yield picture
