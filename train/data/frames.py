"""Clips from frames: a folder tree or a tar archive, laid out as UCSD Ped2 is or as one folder a clip."""

import contextlib
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from train.data.clips import NUM_FRAMES, SPLITS, Clip, ClipSet, Splits, split_sizes, standard_frame
from train.data.frame_files import FrameFile, open_frame_files
from train.errors import UserError

__all__ = ["clip_folders", "frame_clips", "split_clips"]

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
IMAGE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
Folders = dict[PurePosixPath, list[FrameFile]]


@contextlib.contextmanager
def frame_clips(root: Path, log: Callable[[str], None]) -> Iterator[Splits]:
    """Opens the clips below a root; they can be read while the context lasts.

    Raises:
      UserError: for a root, an archive, a clip or a frame that cannot be used; it names the culprit.
    """
    del log  # what is wrong with frames is an error
    with open_frame_files(root) as files:
        folders = clip_folders(files)
        _check_lengths(folders, root)
        names = split_clips(list(folders), root=root)
        numbers = {name: number for number, name in enumerate(name for split in SPLITS for name in names[split])}
        clips = {
            split: (Clip(numbers[name], str(name), _read_frames(folders[name], root)) for name in names[split])
            for split in SPLITS
        }
        yield {split: ClipSet(len(names[split]), clips[split]) for split in SPLITS}


def clip_folders(files: list[FrameFile]) -> Folders:
    """Groups frames by the folder that holds them; folders and frames in natural order (2 before 10).

    Where there are folders called Train or Test, only folders directly below them are clips, and those whose name
    ends in ``_gt`` are not: UCSD keeps its anomaly masks there.
    """
    folders: Folders = defaultdict(list)
    for file in files:
        folders[file.path.parent].append(file)
    if any(_stated_split(folder) for folder in folders):
        folders = {folder: files for folder, files in folders.items() if _stated_split(folder)}
    return {
        folder: sorted(folders[folder], key=lambda file: _natural(file.path))
        for folder in sorted(folders, key=_natural)
    }


def split_clips(names: list[PurePosixPath], *, root: Path) -> dict[str, list[PurePosixPath]]:
    """Deals clips to the splits: as Train and Test folders say, the last tenth of Train to validation; or 80/10/10."""
    stated = {split: [name for name in names if _stated_split(name) == split] for split in ("train", "test")}
    if stated["train"] or stated["test"]:
        return _split_stated(stated["train"], stated["test"], root)
    if len(names) < len(SPLITS):
        raise UserError(
            f"data.root={root} holds {len(names)} clip(s); give at least 3, one for each of {', '.join(SPLITS)}"
        )
    sizes = split_sizes(len(names))
    held_out = sizes["train"] + sizes["validation"]
    return {"train": names[: sizes["train"]], "validation": names[sizes["train"] : held_out], "test": names[held_out:]}


def _split_stated(train: list[PurePosixPath], test: list[PurePosixPath], root: Path) -> dict[str, list[PurePosixPath]]:
    if len(train) < 2 or not test:
        raise UserError(
            f"data.root={root} holds {len(train)} Train and {len(test)} Test clip(s); give at least 2 and 1, "
            "or one folder a clip without Train and Test"
        )
    num_train = len(train) - max(1, round(len(train) / 10))
    return {"train": train[:num_train], "validation": train[num_train:], "test": test}


def _stated_split(folder: PurePosixPath) -> str | None:
    split = folder.parent.name.lower()
    return split if split in ("train", "test") and not folder.name.endswith("_gt") else None


def _natural(path: PurePosixPath) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _check_lengths(folders: Folders, root: Path) -> None:
    for name, files in folders.items():
        if len(files) < NUM_FRAMES:
            raise UserError(
                f"data.root={root}: clip '{name}' has {len(files)} frames, fewer than the {NUM_FRAMES} of a sequence; "
                "give it more frames or take it away"
            )


def _read_frames(files: list[FrameFile], root: Path) -> Iterator[np.ndarray]:
    """Reads a clip's frames from the first to the last, and checks that they have one size."""
    sizes: dict[tuple[int, int], PurePosixPath] = {}
    for file, (frame, size) in _read_in_order(files, root):
        sizes.setdefault(size, file.path)
        if len(sizes) > 1:
            (one, first), (other, second) = sizes.items()
            raise UserError(
                f"data.root={root}: frames of one clip differ in size: '{first}' is {one[0]}x{one[1]}, "
                f"'{second}' is {other[0]}x{other[1]}; bring them to one size"
            )
        yield frame


def _read_in_order(
    files: list[FrameFile], root: Path
) -> Iterator[tuple[FrameFile, tuple[np.ndarray, tuple[int, int]]]]:
    by_place = sorted(files, key=lambda file: file.place)
    if by_place == files:
        yield from ((file, _read_frame(file, root)) for file in files)
        return
    # Going back in a compressed archive means decompressing it again from its start: read forward, then put in order.
    frames = {file.path: _read_frame(file, root) for file in by_place}
    yield from ((file, frames[file.path]) for file in files)


def _read_frame(file: FrameFile, root: Path) -> tuple[np.ndarray, tuple[int, int]]:
    try:
        with file.open() as opened, Image.open(opened, formats=FORMATS) as picture:
            return standard_frame(picture), picture.size
    except IMAGE_ERRORS as error:
        reason = "not an image of a known kind" if isinstance(error, UnidentifiedImageError) else error
        raise UserError(
            f"data.root={root}: frame '{file.path}' cannot be read as an image ({reason}); replace it or take it away"
        ) from error
