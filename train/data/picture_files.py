"""Image files decoded, in any order, with one error for each that cannot be."""

import io
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from train.data.image_files import ImageFile
from train.errors import UserError

__all__ = ["decode_in_order", "levels", "stored_numbers"]

T = TypeVar("T")
FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)  # of more pixels than Pillow trusts
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, *BOMBS)
GREY_MODES = ("1", "L", "LA")
NUMBER_MODES = ("L", "P")


def decode_in_order(
    files: Sequence[ImageFile], convert: Callable[[ImageFile, Image.Image], T], *, root: Path, what: str
) -> Iterator[T]:
    """Decodes files in the order given, reading an archive forward.

    Args:
      files: The files.
      convert: Maps a file and its picture to a value; a ValueError says why the picture cannot be used.
      root: The folder or archive that holds the files.
      what: What one of the images is called.

    Raises:
      UserError: naming the file that cannot be read.
    """
    contents: dict[PurePosixPath, bytes] = {}
    places = [file.place for file in files]
    if places != sorted(places):
        # Going back in a compressed archive means decompressing it again: read forward, keep, then put in order.
        for file in sorted(files, key=lambda file: file.place):
            contents[file.path] = _named(file.read, file, root, what)
    for file in files:
        kept = contents.pop(file.path, None)
        yield _named(lambda file=file, kept=kept: _decode(file, kept, convert), file, root, what)


def levels(picture: Image.Image) -> np.ndarray:
    """A picture's grey levels, uint8 (height, width, 1), or its red, green and blue, (height, width, 3).

    Palettes are resolved, and transparency is dropped.

    Raises:
      ValueError: if the pixels have more than 8 bits.
    """
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {picture.mode})")
    if picture.mode in GREY_MODES:
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))


def stored_numbers(picture: Image.Image) -> np.ndarray:
    """The number of each pixel as stored, uint8 (height, width): a palette's entries are not looked up.

    Raises:
      ValueError: if the picture holds colours, or numbers of more than 8 bits.
    """
    if picture.mode not in NUMBER_MODES:
        raise ValueError(f"it must hold one number of 8 bits a pixel, but its mode is {picture.mode}")
    return np.asarray(picture)


def _decode(file: ImageFile, content: bytes | None, convert: Callable[[ImageFile, Image.Image], T]) -> T:
    content = file.read() if content is None else content
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            # Pages of a TIFF and pictures of an animated PNG; what a camera's JPEG (MPO) has besides are views of one.
            if picture.format not in ("JPEG", "MPO") and (pages := getattr(picture, "n_frames", 1)) > 1:
                raise ValueError(
                    f"it holds {pages} pictures, of which only the first would be read; save each by itself"
                )
            return convert(file, picture)


def _named(read: Callable[[], T], file: ImageFile, root: Path, what: str) -> T:
    try:
        return read()
    except IMAGE_ERRORS as error:
        reason = "not an image of a known kind" if isinstance(error, UnidentifiedImageError) else error
        raise UserError(
            f"data.root={root}: {what} '{file.path}' cannot be read as an image ({reason}); replace it or take it away"
        ) from error
