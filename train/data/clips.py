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
from ..system.reading import check_regular
from .files import (
    KNOWN,
    SPLITS,
    Log,
    OriginalFile,
    check_no_split,
    check_one_name,
    likely_splits,
    root_error,
    tenth,
)
from .media import Media, brought_to, check_none_vanishes

FRAME_SIZE = 160  # side of a frame, in pixels
NUM_FRAMES = 20  # frames of a sequence
# A file with another name is a video if it begins as one.
VIDEO_SUFFIXES = (
    ".avi",
    ".mp4",
    ".m4v",
    ".mkv",
    ".mov",
    ".mpg",
    ".mpeg",
    ".webm",
    ".wmv",
    ".ts",
    ".flv",
    ".3gp",
)
# The formats of FFmpeg that are read: none that lists other files, and none that makes
# frames of text.
CONTAINERS = (
    "avi,mov,mp4,matroska,webm,asf,flv,gif,mpeg,mpegts,mpegvideo,ogg,rm,mxf,ivf,dv,m4v"
    ",h264,hevc,yuv4mpegpipe"
)
OPTIONS = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
# By the signs of the matrix (a, b, c, d) that brings the pixel (x, y) to (ax + cy, bx +
# dy), x to the right, y down.
TURNS = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,  # Pillow turns to the left
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}
LAYOUT = (
    "ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png (and ROOT/validation), or"
    " ROOT/CLIP/001.png without splits"
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


def find_clips(media: Media, *, root: Path, log: Log) -> Files:
    """Returns the clips of media, folders of frames and videos, in natural order (2
    before 10). Masks of anomalies, which UCSD names with ``_gt``, and what lies inside
    of a clip of frames are passed over.
    """
    files: Files = defaultdict(list)
    for file in media.pictures:
        files[file.path.parent].append(file)
    folders = set(files)
    if (here := PurePosixPath(".")) in folders and len(folders) + len(media.videos) > 1:
        mixed = (
            f"frames and folders of frames{' or videos' if media.videos else ''}, as"
            f" '{files[here][0].path}'"
        )
        raise root_error(root, f"holds {mixed}; give each a folder")
    files |= {file.path: [file] for file in media.videos}
    passed_over = [
        name for name in files if _is_mask(name) or not folders.isdisjoint(name.parents)
    ]
    if passed_over:
        log(
            f"  passing over {len(passed_over)} clip(s) of masks or inside of a clip,"
            f" as '{passed_over[0]}'"
        )
    clips = {
        name: sorted(files[name], key=lambda file: _natural(file.path))
        for name in sorted(files.keys() - passed_over, key=_natural)
    }
    if not clips:
        raise root_error(root, f"holds no clips but masks; the layout is {LAYOUT}")
    others = [file for file in media.others if not _is_mask(file.path)]
    empty = [folder for folder in media.empty if not _is_mask(folder)]
    check_none_vanishes(media._replace(others=others, empty=empty), clips, root)
    for name, frames in clips.items():
        if name in folders and len(frames) < NUM_FRAMES:
            raise root_error(
                root,
                f": clip '{name}' has {len(frames)} frames; give it {NUM_FRAMES}, or"
                " remove it",
            )
    return clips


def split_clips(
    names: Sequence[PurePosixPath], *, root: Path, log: Log = print
) -> dict[str, list[PurePosixPath]]:
    """Assigns clips to the splits that their folders or names state. Without validation
    the last tenth of train is taken; clips of one folder that state none are split
    80/10/10. Others that look like splits are an error.
    """
    stated = {name: _stated_split(name, root=root) for name in names}
    if len({*stated.values()}) == 1 and not any(map(_above, names)):
        stated = dict.fromkeys(names)  # names that all state one split divide nothing
    unstated = [name for name in names if stated[name] is None]
    none_stated = len(unstated) == len(names)
    if none_stated:
        if others := [name for name in names if name.parent != names[0].parent]:
            raise root_error(
                root,
                f"names no splits in '{names[0]}' and '{others[0]}'; the layout is"
                f" {LAYOUT}",
            )
        if len(names) < len(SPLITS):
            one = (
                f"name one video file itself by {option_text('data.root')}, which is"
                " cut in time"
            )
            least = f"give at least 3, one for each of {', '.join(SPLITS)}"
            raise root_error(root, f"holds {len(names)} clip(s); {least}, or {one}")
    else:
        check_one_name(
            {part: split for name in names for part, split in _above(name)[:1]}, root
        )
    shown = [name.name if none_stated else str(name) for name in unstated]
    if not none_stated or len({likely_splits(name) for name in shown}) > 1:
        check_no_split(shown, root, f"the layout is {LAYOUT}")
    if none_stated:
        return _dealt(names)
    if unstated:
        log(
            f"  passing over {len(unstated)} clip(s) outside of the splits, as"
            f" '{unstated[0]}'"
        )
    train, validation, test = (
        [name for name in names if stated[name] == split] for split in SPLITS
    )
    least = 1 if validation else 2
    if len(train) < least or not test:
        given = f"{len(train)} Train and {len(test)} Test clip(s)"
        raise root_error(
            root,
            f"holds {given}; give at least {least} and 1, or folders of clips without"
            " splits",
        )
    num_train = len(train) - (0 if validation else tenth(len(train)))
    return {
        "train": train[:num_train],
        "validation": validation or train[num_train:],
        "test": test,
    }


def cut_in_time(root: Path, log: Log) -> Splits:
    """Returns a video file as clips of 20 frames, split 80/10/10, to be read in order;
    the remainder is dropped. It is decoded twice: how many frames decode is known at
    the end only.
    """
    where = option_text("data.root", root)
    count = sum(1 for _ in video_frames(root, where=where, log=log))
    if count < (least := len(SPLITS) * NUM_FRAMES):
        raise root_error(
            root,
            f"has {count} frames for {len(SPLITS)} splits; give {least}, or folders of"
            " clips",
        )

    frames = video_frames(root, where=where, log=lambda _: None)
    return _dealt(
        [
            Clip(
                f"frames {start} to {start + NUM_FRAMES - 1}",
                islice(frames, NUM_FRAMES),
            )
            for start in range(0, count - NUM_FRAMES + 1, NUM_FRAMES)
        ]
    )


def is_video(file: Path) -> bool:
    """Returns whether a file is named as a video or, under any other name, has
    frames in a format that is read."""
    if file.suffix.lower() in VIDEO_SUFFIXES:
        return True
    try:
        import av  # here: only video files need it
        import av.error
    except ImportError:
        return False
    try:
        with av.open(str(file), options=OPTIONS) as container:
            return bool(container.streams.video)
    except (av.error.FFmpegError, OSError):
        return False


def video_frames(
    path: Path, *, where: str, log: Log, least: int = 1
) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160), as far as it goes; errors
    name it by ``where``. The log has damaged frames and an early end. Frames of two
    sizes are an error, and fewer than ``least`` at the end.
    """
    require_extra("video")
    import av
    import av.error

    check_regular(path, where=where)
    claimed, count, damaged, first = 0, 0, 0, ""
    try:
        with av.open(str(path), options=OPTIONS) as container:
            if not container.streams.video:
                raise UserError(f"{where} has no video stream; give an AVI or MP4 file")
            claimed = container.streams.video[0].frames
            for frame in container.decode(video=0):
                count += 1
                size = f"{frame.width}x{frame.height}"
                first = first or size
                if size != first:
                    raise UserError(
                        f"{where} changes from {first} to {size} at frame {count}; give"
                        " frames of one size"
                    )
                damaged += bool(frame.is_corrupt)
                yield standard_frame(upright(frame, where))
    except (av.error.FFmpegError, OSError) as error:
        done = f"after {count} of {claimed or 'unknown'} frames"
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{where} cannot be read as a video {done} ({reason}); give a whole AVI or"
            " MP4 file"
        ) from error
    if count < least:
        raise UserError(
            f"{where} has {count} frames, fewer than the {least} needed; give a longer"
            " one or remove it"
        )
    if claimed not in (0, count):
        log(
            f"  {path.name}: using the {count} frames that decode, of {claimed} in the"
            " header"
        )
    if damaged:
        log(
            f"  {path.name}: {damaged} of {count} frames are damaged and used as they"
            " decode"
        )


def upright(frame: Any, where: str) -> Image.Image:
    """Returns a frame turned as players turn it, by the matrix that phones write."""
    data = frame.side_data.get("DISPLAYMATRIX")
    matrix = (
        (1, 0, 0, 0, 1) if data is None else np.frombuffer(bytes(data), np.int32)[:5]
    )
    a, b, c, d = (int(np.sign(matrix[place])) for place in (0, 1, 3, 4))
    signs = (a, b, c, d)
    if signs not in TURNS:
        raise UserError(
            f"{where} is turned by a part of a right angle; save its frames upright"
        )
    turn, picture = TURNS[signs], frame.to_image()
    return picture if turn is None else picture.transpose(turn)


def _dealt(clips: Sequence[T]) -> dict[str, list[T]]:
    """Splits clips 80/10/10, in their order."""
    held_out = tenth(len(clips))
    parts = clips[: -2 * held_out], clips[-2 * held_out : -held_out], clips[-held_out:]
    return dict(zip(SPLITS, map(list, parts), strict=True))


def _stated_split(clip: PurePosixPath, *, root: Path) -> str | None:
    """Returns the split named by the folders above a clip, or else by the clip, as
    Test001 is; None for neither."""
    above = {split for _, split in _above(clip)}
    if len(above) > 1:
        raise root_error(
            root,
            f": clip '{clip}' lies in folders of {' and '.join(sorted(above))};"
            " keep one",
        )
    if above:
        return above.pop()
    return KNOWN.get(re.sub(r"[\W\d_]*$", "", clip.stem).lower())


def _above(clip: PurePosixPath) -> list[tuple[str, str]]:
    """Returns the folders above a clip that are named after splits, and the splits."""
    parts = clip.parent.parts
    return [(part, KNOWN[part.lower()]) for part in parts if part.lower() in KNOWN]


def _natural(path: PurePosixPath) -> tuple[list[str | int], str]:
    """Orders numbers by value; 1 and 01, of one value, by name."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if part.isdecimal() else part for part in parts], str(path)


def _is_mask(path: PurePosixPath) -> bool:
    return any(MASKS.fullmatch(part) for part in (*path.parent.parts, path.stem))
