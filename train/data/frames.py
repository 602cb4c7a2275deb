"""Clips from frames: a folder tree or a tar archive, with folders of splits as published or as one folder a clip."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from ..config.errors import UserError
from .clips import LAYOUT, NUM_FRAMES, Splits, natural, numbered, split_clips, standard_frame, stated_split
from .files import Log, OriginalFile
from .pictures import decode_in_order, fingerprint_images, open_image_files
from .prepare import Source
from .splits import SPLITS

Folders = dict[PurePosixPath, list[OriginalFile]]
HERE = PurePosixPath(".")
MASKS = re.compile(r"(?:.*[_ -])?(?:gt|masks?|ground_?truth)", re.IGNORECASE)


@contextlib.contextmanager
def frame_clips(root: Path, log: Log) -> Iterator[Splits]:
    """Opens the clips below a root; they can be read while the context lasts."""
    with open_image_files(root, what="frames") as files:
        folders = clip_folders(files, root=root, log=log)
        for name, frames in folders.items():
            if len(frames) < NUM_FRAMES:
                raise UserError(
                    f"data.root={root}: clip '{name}' has {len(frames)} frames, fewer than the {NUM_FRAMES} of a "
                    "sequence; give it more frames or take it away"
                )
        folders = _cut(folders, root)
        names = split_clips(list(folders), root=root, log=log)
        yield numbered({split: [(str(name), _read(folders[name], root)) for name in names[split]] for split in SPLITS})


def clip_folders(files: list[OriginalFile], *, root: Path, log: Log = print) -> Folders:
    """Groups frames by the folder that holds them; folders and frames in natural order (2 before 10).

    Folders of anomaly masks, which UCSD names with ``_gt``, are no clips, and neither are folders inside of a clip.
    """
    folders: Folders = defaultdict(list)
    for file in files:
        folders[file.path.parent].append(file)
    if HERE in folders and len(folders) > 1:
        raise UserError(
            f"data.root={root} holds frames beside folders of frames, '{folders[HERE][0].path}' for one; give each "
            "clip a folder"
        )
    passed_over = [folder for folder in folders if _is_no_clip(folder, folders)]
    if passed_over:
        count, one = len(passed_over), passed_over[0]
        log(f"  {count} folder(s) hold masks or lie in a clip and are passed over, '{one}' for one")
    if len(passed_over) == len(folders):
        raise UserError(f"data.root={root} holds no clips but masks; the layout is {LAYOUT}")
    return {
        folder: sorted(folders[folder], key=lambda file: natural(file.path))
        for folder in sorted(folders.keys() - passed_over, key=natural)
    }


def _is_no_clip(folder: PurePosixPath, folders: Folders) -> bool:
    return any(MASKS.fullmatch(part) for part in folder.parts) or any(above in folders for above in folder.parents)


def _cut(folders: Folders, root: Path) -> Folders:
    """Cuts the only clip, or the only one to train on, where validation or test would have to come from it too."""
    stated = {name: stated_split(name, root=root) for name in folders}
    splits = list(stated.values())
    if splits == [None]:
        return _in_parts(folders, next(iter(folders)), root, num_splits=len(SPLITS))
    if splits.count("train") == 1 and "test" in splits and "validation" not in splits:
        return _in_parts(folders, next(name for name in stated if stated[name] == "train"), root, num_splits=2)
    return folders


def _in_parts(folders: Folders, name: PurePosixPath, root: Path, *, num_splits: int) -> Folders:
    """The clips, one of them as consecutive clips of 20 frames; what follows the last of these is dropped."""
    frames = folders[name]
    if len(frames) < num_splits * NUM_FRAMES:
        raise UserError(
            f"data.root={root}: clip '{name}' serves {num_splits} splits, as there is no other for them, and has "
            f"{len(frames)} frames; give {num_splits * NUM_FRAMES}, or more clips"
        )
    starts = range(0, len(frames) - NUM_FRAMES + 1, NUM_FRAMES)
    parts = {name / f"frames {at} to {at + NUM_FRAMES - 1}": frames[at : at + NUM_FRAMES] for at in starts}
    return parts | {other: files for other, files in folders.items() if other != name}


def _read(files: list[OriginalFile], root: Path) -> Iterator[np.ndarray]:
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


fingerprint_frames = functools.partial(fingerprint_images, what="frames", layout=LAYOUT)
SOURCE = Source(fingerprint_frames, frame_clips, "the folder or tar archive that holds the frames")
