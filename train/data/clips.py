"""Clips of grey square frames, which sources of video hand over; which split each belongs to."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..config.errors import UserError
from .files import Log
from .pictures import check_depth
from .splits import KNOWN, SPLITS, looks_like, tenth

FRAME_SIZE = 160  # side of a frame, in pixels
NUM_FRAMES = 20  # frames of a sequence
LAYOUT = (
    "ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png and if there is one ROOT/validation/CLIP/001.png, or one folder a "
    "clip without splits"
)


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
    first, found = 0, {}
    for split in SPLITS:
        clips = (Clip(number, *clip) for number, clip in enumerate(splits[split], start=first))
        found[split] = ClipSet(len(splits[split]), clips)
        first += len(splits[split])
    return found


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
    """What puts paths in natural order, 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


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
