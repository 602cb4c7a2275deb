"""Clips of grey square frames: the split of each clip, and its frames, in folders
and in video files."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from ..config.errors import UserError, option_text, require_extra
from ..system.files import check_regular
from .files import (
    KNOWN,
    SPLITS,
    Log,
    OriginalFile,
    check_no_split,
    check_one_name,
    likely_splits,
    tenth,
)
from .pictures import Media, brought_to, check_none_vanishes

FRAME_SIZE = 160  # side of a frame, in pixels
NUM_FRAMES = 20  # frames of a sequence
# A file with another name is a video if it begins as one.
VIDEO_SUFFIXES = (
    *(".avi", ".mp4", ".m4v", ".mkv", ".mov", ".mpg"),
    *(".mpeg", ".webm", ".wmv", ".ts", ".flv", ".3gp"),
)
# The formats of FFmpeg that are read: none that lists other files, and none that makes
# frames of text.
CONTAINERS = (
    "avi,mov,mp4,matroska,webm,asf,flv,gif,mpeg,mpegts,mpegvideo,ogg,rm,mxf,ivf,dv,m4v"
    ",h264,hevc,yuv4mpegpipe"
)
OPTIONS = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
LAYOUT = (
    "the layout is ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png (and"
    " ROOT/validation), or ROOT/CLIP/001.png without splits"
)

# the frames of each folder, or the video
Files = dict[PurePosixPath, list[OriginalFile]]
MASKS = re.compile(r"(?:.*[_ -])?(?:gt|masks?|ground_?truth)", re.IGNORECASE)


T = TypeVar("T")


class Clip(NamedTuple):
    """A name, and consecutive frames (160, 160) uint8, read in their turn."""

    name: str
    frames: Iterable[np.ndarray]


Splits = Mapping[str, Sequence[Clip]]


def standard_frame(picture: Image.Image) -> np.ndarray:
    """Returns a picture of any size and colours as grey levels, uint8 (160, 160)."""
    return brought_to(picture, (FRAME_SIZE, FRAME_SIZE, 1))[..., 0]


def find_clips(media: Media, *, log: Log) -> Files:
    """Returns the clips of media, folders of frames and videos, in natural order (2
    before 10). Masks of anomalies, which UCSD names with ``_gt``, and what lies inside
    of a clip of frames are passed over.
    """
    files: Files = defaultdict(list)
    for file in media.pictures:
        files[file.path.parent].append(file)
    folders = set(files)
    for file in media.videos:
        files[file.path].append(file)
    here = PurePosixPath()
    if here in folders and len(files) > 1:
        raise UserError(
            "holds frames beside folders of frames or videos, as"
            f" '{files[here][0].path}'; give each a folder"
        )
    clips: Files = {}
    for name in sorted(files, key=_natural):
        if folders.isdisjoint(name.parents) and not _is_mask(name):
            clips[name] = sorted(files[name], key=lambda file: _natural(file.path))
    if not clips:
        raise UserError(f"holds no clips but masks; {LAYOUT}")
    passed_over = len(files) - len(clips)
    if passed_over:
        log(f"  passing over {passed_over} clip(s) of masks or inside of a clip")
    others = [file for file in media.others if not _is_mask(file.path)]
    empty = [folder for folder in media.empty if not _is_mask(folder)]
    check_none_vanishes(media._replace(others=others, empty=empty), clips)
    return clips


def split_clips(
    names: Sequence[PurePosixPath], *, log: Log = print
) -> dict[str, list[PurePosixPath]]:
    """Assigns clips to the splits that their folders or names state. Without validation
    the last tenth of train is taken. Clips of one folder that state none are split
    80/10/10. Others that look like splits are an error.
    """
    above: dict[str, str] = {}
    clips: dict[str | None, list[PurePosixPath]] = defaultdict(list)
    for name in names:
        over = _above(name)
        above |= over
        clips[_stated_split(name, over)].append(name)
    if clips.keys() == {None} or (len(clips) == 1 and not above):
        # names that all state one split divide nothing
        return _undivided(names)
    check_one_name(above)
    unstated = clips[None]
    check_no_split(map(str, unstated), LAYOUT)
    if unstated:
        log(
            f"  passing over {len(unstated)} clip(s) outside of the splits, as"
            f" '{unstated[0]}'"
        )
    train, validation, test = (clips[split] for split in SPLITS)
    if not validation:
        train, validation = train[: -tenth(len(train))], train[-tenth(len(train)) :]
    if not (train and test):
        raise UserError(
            f"holds {len(clips['train'])} Train and {len(test)} Test clip(s); give at"
            " least 2 and 1, or folders of clips without splits"
        )
    return {"train": train, "validation": validation, "test": test}


def cut_in_time(root: Path, log: Log) -> Splits:
    """Returns a video file as clips of 20 frames, split 80/10/10, to be read in order.
    The remainder is dropped. It is decoded twice: how many frames decode is known at
    the end only.
    """
    count = sum(1 for _ in video_frames(root, where=str(root), log=log))
    least = len(SPLITS) * NUM_FRAMES
    if count < least:
        raise UserError(f"has {count} frames, fewer than the {least} needed")
    frames = video_frames(root, where=str(root), log=lambda _: None)
    clips = []
    for start in range(0, count - NUM_FRAMES + 1, NUM_FRAMES):
        name = f"frames {start} to {start + NUM_FRAMES - 1}"
        clips.append(Clip(name, islice(frames, NUM_FRAMES)))
    return _dealt(clips)


def is_video(file: Path) -> bool:
    """Returns whether a file is named as a video or, under any other name, has
    frames in a format that is read."""
    if file.suffix.lower() in VIDEO_SUFFIXES:
        return True
    try:
        import av  # here: only video files need it

        with av.open(str(file), options=OPTIONS) as container:
            return bool(container.streams.video)
    except (ImportError, ValueError, OSError):  # of which FFmpeg's errors are
        return False


def video_frames(path: Path, *, where: str, log: Log) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160), as far as it goes. Errors
    name it by ``where``. The log has damaged frames and an early end. Frames of two
    sizes are an error, and no frame.
    """
    require_extra("video")
    import av
    import av.error

    check_regular(path, where=where)
    claimed = count = damaged = 0
    size = None
    try:
        with av.open(str(path), options=OPTIONS) as container:
            claimed = container.streams.video[0].frames
            for frame in container.decode(video=0):
                count += 1
                damaged += frame.is_corrupt
                size = size or (frame.width, frame.height)
                if size != (frame.width, frame.height):
                    raise ValueError(f"frame {count} is not of the size {size}")
                yield standard_frame(upright(frame))
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
        raise UserError(
            f"{where} cannot be read as a video after {count} of"
            f" {claimed or 'unknown'} frames ({error}); give a whole AVI or MP4 file"
        ) from error
    if not count:
        raise UserError(f"{where} has no frame; give a whole video file")
    if damaged or claimed not in (0, count):
        log(
            f"  {path.name}: using the {count} frames that decode, of {claimed} in the"
            f" header; {damaged} are damaged and used as they decode"
        )


def upright(frame: Any) -> Image.Image:
    """Returns a frame turned as players turn it, by the matrix that phones write:
    (a, b, c, d) brings the pixel (x, y) to (ax + cy, bx + dy), x to the right, y down.
    """
    picture = frame.to_image()
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return picture
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5]
    if bool(a) == bool(b):
        raise ValueError("it is turned by a part of a right angle")
    if b:
        picture = picture.transpose(Image.Transpose.TRANSPOSE)
        a, d = c, b
    if a < 0:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if d < 0:
        picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return picture


def _undivided(names: Sequence[PurePosixPath]) -> dict[str, list[PurePosixPath]]:
    """Deals clips of one folder that state no split."""
    for name in names:
        if name.parent != names[0].parent:
            raise UserError(f"names no splits in '{names[0]}' and '{name}'; {LAYOUT}")
    if len({frozenset(likely_splits(name.name)) for name in names}) > 1:
        check_no_split((name.name for name in names), LAYOUT)
    if len(names) < len(SPLITS):
        raise UserError(
            f"holds {len(names)} clip(s); give at least 3, one for each of"
            f" {', '.join(SPLITS)}, or name one video file itself by"
            f" {option_text('data.root')}, which is cut in time"
        )
    return _dealt(names)


def _dealt(clips: Sequence[T]) -> dict[str, list[T]]:
    """Splits clips 80/10/10, in their order."""
    held_out = tenth(len(clips))
    return {
        "train": [*clips[: -2 * held_out]],
        "validation": [*clips[-2 * held_out : -held_out]],
        "test": [*clips[-held_out:]],
    }


def _stated_split(clip: PurePosixPath, above: Mapping[str, str]) -> str | None:
    """Returns the split named by the folders above a clip, or else by the clip, as
    Test001 is, or None for neither."""
    splits = sorted({*above.values()})
    if len(splits) > 1:
        raise UserError(
            f"clip '{clip}' lies in folders of {' and '.join(splits)}; keep one"
        )
    if splits:
        return splits[0]
    return KNOWN.get(re.sub(r"[\W\d_]*$", "", clip.stem).lower())


def _above(clip: PurePosixPath) -> dict[str, str]:
    """Returns the splits of the folders above a clip that are named after one."""
    parts = clip.parent.parts
    return {part: KNOWN[part.lower()] for part in parts if part.lower() in KNOWN}


def _natural(path: PurePosixPath) -> tuple[list[str | int], str]:
    """Orders numbers by value; 1 and 01, of one value, by name."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if part.isdecimal() else part for part in parts], str(path)


def _is_mask(path: PurePosixPath) -> bool:
    return any(MASKS.fullmatch(part) for part in (*path.parent.parts, path.stem))
