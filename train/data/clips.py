"""Clips of grey square frames: the split of each, and those that lie as frames in folders or an archive."""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..config.errors import UserError
from .files import Log, OriginalFile, may_be_tar
from .pictures import check_depth, decode_in_order, fingerprint_images, open_image_files
from .prepare import Source
from .splits import KNOWN, SPLITS, looks_like, tenth

FRAME_SIZE = 160  # side of a frame, in pixels
NUM_FRAMES = 20  # frames of a sequence
LAYOUT = (
    "ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png and if there is one ROOT/validation/CLIP/001.png, or one folder a "
    "clip without splits"
)


Folders = dict[PurePosixPath, list[OriginalFile]]
HERE = PurePosixPath(".")
MASKS = re.compile(r"(?:.*[_ -])?(?:gt|masks?|ground_?truth)", re.IGNORECASE)


class Clip(NamedTuple):
    """Consecutive frames: a number that no other clip of the data set has, a name, and frames (160, 160) uint8."""

    number: int
    name: str
    frames: Iterable[np.ndarray]


class ClipSet(NamedTuple):
    """The clips of one split, read one after the other, and how many there are."""

    num_clips: int
    clips: Iterator[Clip]


Splits = Mapping[str, ClipSet]


def standard_frame(picture: Image.Image) -> np.ndarray:
    """Returns a picture as grey levels, uint8 (160, 160), whatever its colours, sides and aspect."""
    check_depth(picture)
    grey = picture.convert("L")
    if grey.size != (FRAME_SIZE, FRAME_SIZE):
        grey = grey.resize((FRAME_SIZE, FRAME_SIZE), Image.Resampling.BILINEAR)
    return np.asarray(grey)


def numbered(splits: Mapping[str, Sequence[tuple[str, Iterable[np.ndarray]]]]) -> Splits:
    """Numbers the clips, each a name and its frames, through the splits."""
    first, clip_sets = 0, {}
    for split in SPLITS:
        clips = (Clip(number, *clip) for number, clip in enumerate(splits[split], start=first))
        clip_sets[split] = ClipSet(len(splits[split]), clips)
        first += len(splits[split])
    return clip_sets


def split_sizes(count: int) -> dict[str, int]:
    """Returns how many of ``count`` things in order fall to each split: 80, 10 and 10 in a hundred, none empty."""
    if count < len(SPLITS):
        raise ValueError(f"{count} cannot be split in three")
    held_out = tenth(count)
    return {"train": count - 2 * held_out, "validation": held_out, "test": held_out}


def split_clips(names: Sequence[PurePosixPath], *, root: Path, log: Log = print) -> dict[str, list[PurePosixPath]]:
    """Deals clips to the splits: as folders say, without a validation folder the last tenth of train; or 80/10/10.

    Folders that look like splits and are not known are refused: what they hold back would be trained on.
    """
    stated = {name: stated_split(name, root=root) for name in names}
    unstated = [name for name in names if stated[name] is None]
    if len(unstated) == len(names):
        _refuse_look_alikes(names, root, unless_all_agree=True)
        return _dealt(list(names), root)
    _refuse_look_alikes(unstated, root, unless_all_agree=False)
    if unstated:
        log(f"  {len(unstated)} clip(s) lie in the folder of no split and are passed over, '{unstated[0]}' for one")
    return _as_stated({split: [name for name in names if stated[name] == split] for split in SPLITS}, root)


def stated_split(clip: PurePosixPath, *, root: Path) -> str | None:
    """The split that the folders above a clip say, or the clip's own name where these say nothing."""
    above = {KNOWN[part.lower()] for part in clip.parent.parts if part.lower() in KNOWN}
    if len(above) > 1:
        raise UserError(f"data.root={root}: clip '{clip}' lies in folders of {' and '.join(sorted(above))}; keep one")
    return above.pop() if above else KNOWN.get(clip.stem.lower())


def natural(path: PurePosixPath) -> list[str | int]:
    """Returns a key that sorts paths in natural order, 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


@contextlib.contextmanager
def frame_clips(root: Path, log: Log) -> Iterator[Splits]:
    """Opens the clips below a root; they can be read while the context lasts."""
    if root.is_file() and not may_be_tar(root):
        raise UserError(
            f"data.root={root} is neither a folder nor a whole tar archive of frames; if it is a video, use "
            "data.source=video; if it is an archive that was truncated, copy it again"
        )
    with open_image_files(root, what="frames") as files:
        folders = clip_folders(files, root=root, log=log)
        check_lengths(folders, root)
        if one := clip_to_cut(list(folders), root=root):
            name, num_splits = one
            frames = folders.pop(name)
            parts = stretches(name, len(frames), num_splits=num_splits, root=root)
            folders = {part: frames[start : start + NUM_FRAMES] for part, start in parts.items()} | folders
        names = split_clips(list(folders), root=root, log=log)
        clips = {name: read_frames(files, root) for name, files in folders.items()}
        yield numbered({split: [(str(name), clips[name]) for name in names[split]] for split in SPLITS})


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


def check_lengths(folders: Folders, root: Path) -> None:
    """Refuses a clip that is shorter than a sequence."""
    for name, frames in folders.items():
        if len(frames) < NUM_FRAMES:
            raise UserError(
                f"data.root={root}: clip '{name}' has {len(frames)} frames, fewer than the {NUM_FRAMES} of a "
                "sequence; give it more frames or take it away"
            )


def clip_to_cut(names: Sequence[PurePosixPath], *, root: Path) -> tuple[PurePosixPath, int] | None:
    """The only clip, or the only one to train on, and of how many splits it is; None where there are others for them.

    It has to be cut where validation or test would have to come from it too.
    """
    stated = {name: stated_split(name, root=root) for name in names}
    splits = list(stated.values())
    if splits == [None]:
        return names[0], len(SPLITS)
    if splits.count("train") == 1 and "test" in splits and "validation" not in splits:
        return next(name for name in names if stated[name] == "train"), 2
    return None


def stretches(name: PurePosixPath, count: int, *, num_splits: int, root: Path) -> dict[PurePosixPath, int]:
    """A clip of ``count`` frames as consecutive clips of 20: their names, and the first frame of each.

    What follows the last of these is dropped.
    """
    if count < num_splits * NUM_FRAMES:
        raise UserError(
            f"data.root={root}: clip '{name}' serves {num_splits} splits, as there is no other for them, and has "
            f"{count} frames; give {num_splits * NUM_FRAMES}, or more clips"
        )
    starts = range(0, count - NUM_FRAMES + 1, NUM_FRAMES)
    return {name / f"frames {start} to {start + NUM_FRAMES - 1}": start for start in starts}


def read_frames(files: list[OriginalFile], root: Path) -> Iterator[np.ndarray]:
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


def holds_masks(path: PurePosixPath) -> bool:
    """Returns whether a name on the way to a folder or file is one for masks of anomalies."""
    return any(MASKS.fullmatch(part) for part in (*path.parent.parts, path.stem))


def _dealt(names: list[PurePosixPath], root: Path) -> dict[str, list[PurePosixPath]]:
    if len(names) < len(SPLITS):
        raise UserError(
            f"data.root={root} holds {len(names)} clip(s); give at least 3, one for each of {', '.join(SPLITS)}"
        )
    sizes, rest = split_sizes(len(names)), iter(names)
    return {split: [next(rest) for _ in range(sizes[split])] for split in SPLITS}


def _as_stated(stated: dict[str, list[PurePosixPath]], root: Path) -> dict[str, list[PurePosixPath]]:
    train, validation, test = (stated[split] for split in SPLITS)
    least = 1 if validation else 2
    if len(train) < least or not test:
        raise UserError(
            f"data.root={root} holds {len(train)} Train and {len(test)} Test clip(s); give at least {least} and 1, "
            "or one folder a clip without Train and Test"
        )
    if validation:
        return stated
    num_train = len(train) - tenth(len(train))
    return {"train": train[:num_train], "validation": train[num_train:], "test": test}


def _refuse_look_alikes(names: Sequence[PurePosixPath], root: Path, *, unless_all_agree: bool) -> None:
    """Refuses names that may mean splits; where all clips agree, as in the folder of one split, they divide nothing."""
    looks = {name: looks_like(name) for name in names}
    if unless_all_agree and len(set(looks.values())) <= 1:
        return
    examples = {split: name for name, split in reversed(looks.items()) if split}
    if examples:
        shown = " and ".join(f"'{examples[split]}' like {split}" for split in SPLITS if split in examples)
        raise UserError(
            f"data.root={root}: folders look like splits, but not as any layout names them: {shown}; lay clips out as "
            f"{LAYOUT}, and rename folders that are no splits"
        )


def _is_no_clip(folder: PurePosixPath, folders: Folders) -> bool:
    return holds_masks(folder) or any(above in folders for above in folder.parents)


fingerprint_frames = functools.partial(fingerprint_images, what="frames", layout=LAYOUT)
FRAMES = Source(fingerprint_frames, frame_clips, "the folder or tar archive that holds the frames")
