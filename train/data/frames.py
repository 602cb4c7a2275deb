"""Clips from frames: a folder tree or a tar archive, laid out as UCSD Ped2 is or as one folder a clip."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from train.data.clips import NUM_FRAMES, SPLITS, Clip, ClipSet, Splits, split_sizes, standard_frame
from train.data.image_files import ImageFile, fingerprint_images, open_image_files
from train.data.picture_files import decode_in_order
from train.errors import UserError

__all__ = ["clip_folders", "fingerprint_frames", "frame_clips", "split_clips"]

Folders = dict[PurePosixPath, list[ImageFile]]
LAYOUT = "ROOT/Train/Train001/001.png, ROOT/Test/Test001/001.png (for UCSD Ped2, the folder its download unpacks to)"


def fingerprint_frames(root: Path) -> str:
    """Fingerprints a folder's frames, or an archive.

    Raises:
      UserError: if the root is missing, empty or holds no frames.
    """
    return fingerprint_images(root, what="frames", layout=LAYOUT)


@contextlib.contextmanager
def frame_clips(root: Path, log: Callable[[str], None]) -> Iterator[Splits]:
    """Opens the clips below a root; they can be read while the context lasts.

    Raises:
      UserError: for a root, an archive, a clip or a frame that cannot be used; it names the culprit.
    """
    del log  # what is wrong with frames is an error
    with open_image_files(root, what="frames") as files:
        folders = clip_folders(files)
        _check_lengths(folders, root)
        names = split_clips(list(folders), root=root)
        numbers = {name: number for number, name in enumerate(name for split in SPLITS for name in names[split])}
        clips = {
            split: (Clip(numbers[name], str(name), _read_frames(folders[name], root)) for name in names[split])
            for split in SPLITS
        }
        yield {split: ClipSet(len(names[split]), clips[split]) for split in SPLITS}


def clip_folders(files: list[ImageFile]) -> Folders:
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


def _read_frames(files: list[ImageFile], root: Path) -> Iterator[np.ndarray]:
    """Reads a clip's frames from the first to the last, and checks that they have one size."""
    sizes: dict[tuple[int, int], PurePosixPath] = {}
    frames = decode_in_order(files, lambda _, picture: (standard_frame(picture), picture.size), root=root, what="frame")
    for file, (frame, size) in zip(files, frames, strict=True):
        sizes.setdefault(size, file.path)
        if len(sizes) > 1:
            (one, first), (other, second) = sizes.items()
            raise UserError(
                f"data.root={root}: frames of one clip differ in size: '{first}' is {one[0]}x{one[1]}, "
                f"'{second}' is {other[0]}x{other[1]}; bring them to one size"
            )
        yield frame
