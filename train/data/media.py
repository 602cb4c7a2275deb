"""Files by their contents: pictures found among others and decoded in place,
upright."""

import contextlib
import struct
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps

from ..config.errors import UserError
from ..system.reading import open_regular
from .files import KNOWN, Log, OriginalFile, is_visible, original_files

# a folder of only such files is neither a class nor a clip
NOTES = (".txt", ".md", ".csv", ".json")
# A file with another name is a picture if it begins as one.
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff"),
    *(".bmp", ".webp", ".ppm", ".pgm", ".jp2"),
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


@contextlib.contextmanager
def open_media(
    root: Path, log: Log, *, is_video: Callable[[Path], bool] = lambda _: False
) -> Iterator[Media]:
    """Finds the pictures and videos in a folder or an archive; they can be read while
    the context lasts. The suffix decides, or else the contents. The log has the number
    of files that are neither.
    """
    with original_files(root, is_visible) as (files, empty):
        media = Media([], [], [], empty)
        for file in files:
            if is_picture(file.local):
                media.pictures.append(file)
            elif is_video(file.local):
                media.videos.append(file)
            else:
                media.others.append(file)
        others = f"{len(media.others)} file(s) of other kinds"
        if not (media.pictures or media.videos):
            raise UserError(
                f"holds no pictures or videos that can be read, but {others}; give a"
                " folder or archive of them"
            )
        if media.others:
            log(f"  passing over {others}, as '{media.others[0].path}'")
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


def check_none_vanishes(media: Media, units: Collection[PurePosixPath]) -> None:
    """Checks that every class or clip has a file that is read, given those that have
    one. A folder beside them is one too, unless it holds only notes; one that is named
    after a split is a split.
    """
    beside = {unit.parent for unit in units}
    holding = {above for unit in units for above in unit.parents}
    unread = [*media.empty]
    unread += [
        file.path.parent
        for file in media.others
        if file.path.suffix.lower() not in NOTES
    ]
    for path in unread:
        for folder in (path, *path.parents):
            is_first = folder.parent in holding and folder not in holding
            is_wanted = folder.parent in beside or folder.name.lower() in KNOWN
            if is_first and is_wanted and folder not in units:
                raise UserError(
                    f"'{folder}' has no file that can be read; give it one, or remove"
                    " the folder"
                )


def check_one_data_set(tops: Iterable[PurePosixPath]) -> None:
    """Checks that the layout begins in one folder only below the root."""
    names = sorted({str(top) for top in tops})
    if len(names) > 1:
        raise UserError(
            f"holds several data sets ({', '.join(names)}); give one of them"
        )


def decode_in_order(
    files: Iterable[OriginalFile],
    convert: Callable[[Image.Image], T],
    *,
    what: str = "image",
    size: tuple[int, int] | None = None,
    mend: str = "bring all to one",
) -> Iterator[T]:
    """Decodes files of one size (width, height), or the first one's, in order;
    errors, of ``convert`` too, name it."""
    for file in files:
        try:
            with open_picture(file.local) as picture:
                size = size or picture.size
                if picture.size != size:
                    raise ValueError(f"its size is {picture.size}, not {size}; {mend}")
                converted = convert(picture)
        except IMAGE_ERRORS as error:
            raise UserError(
                f"{what} '{file.path}' cannot be read as an image ({error}); replace it"
            ) from error
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
            pages = getattr(picture, "n_frames", 1)
            if pages > 1 and picture.format not in ("JPEG", "MPO"):
                raise ValueError(f"it holds {pages} pictures; save each by itself")
            picture.load()
            # damaged EXIF is ignored, as by viewers
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ImageOps.exif_transpose(picture, in_place=True)
            yield picture
