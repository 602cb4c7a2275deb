"""Clips of grey square frames: the split of each clip, and its frames, in folders and in video files."""

import contextlib
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from ..config.errors import UserError, require_extra
from ..system.files import writing
from ..system.reading import check_regular
from .files import KNOWN, SPLITS, TEMPORARY, Log, OriginalFile, check_no_split, looks_like, root_error, tenth
from .media import check_depth, decode_in_order

FRAME_SIZE = 160  # side of a frame, in pixels
NUM_FRAMES = 20  # frames of a sequence
# A file with another name is a video if it begins as one.
VIDEO_SUFFIXES = (".avi", ".mp4", ".m4v", ".mkv", ".mov", ".mpg", ".mpeg", ".webm", ".wmv", ".ts", ".flv", ".3gp")
# The formats of FFmpeg that are read: none that lists other files, and none that makes frames of text.
CONTAINERS = "avi,mov,mp4,matroska,webm,asf,flv,gif,mpeg,mpegts,mpegvideo,ogg,rm,mxf,ivf,dv,m4v,h264,hevc,yuv4mpegpipe"
# By the signs of the matrix (a, b, c, d) that brings the pixel (x, y) to (ax + cy, bx + dy), x to the right, y down.
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
LAYOUT = "ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png (and ROOT/validation), or ROOT/CLIP/001.png without splits"

Folders = dict[PurePosixPath, list[OriginalFile]]
HERE = PurePosixPath(".")
MASKS = re.compile(r"(?:.*[_ -])?(?:gt|masks?|ground_?truth)", re.IGNORECASE)


class Clip(NamedTuple):
    """A name, and consecutive frames (160, 160) uint8, read in their turn."""

    name: str
    frames: Iterable[np.ndarray]


Splits = Mapping[str, Sequence[Clip]]


def standard_frame(picture: Image.Image) -> np.ndarray:
    """Returns a picture of any size and colours as grey levels, uint8 (160, 160)."""
    check_depth(picture)
    grey = picture.convert("L")
    if grey.size != (FRAME_SIZE, FRAME_SIZE):
        grey = grey.resize((FRAME_SIZE, FRAME_SIZE), Image.Resampling.BILINEAR)
    return np.asarray(grey)


def split_clips(names: Sequence[PurePosixPath], *, root: Path, log: Log = print) -> dict[str, list[PurePosixPath]]:
    """Assigns clips to splits by their folders; validation defaults to the last tenth of train, all to 80/10/10."""
    stated = {name: stated_split(name, root=root) for name in names}
    unstated = [name for name in names if stated[name] is None]
    alike = len(unstated) == len(names) and len({looks_like(name) for name in names}) == 1  # which divides no clips
    for name in () if alike else unstated:
        check_no_split(name, root, LAYOUT)
    if len(unstated) == len(names):
        if len(names) < len(SPLITS):
            raise root_error(root, f"holds {len(names)} clip(s); give at least 3, one for each of {', '.join(SPLITS)}")
        held_out = tenth(len(names))
        parts = names[: -2 * held_out], names[-2 * held_out : -held_out], names[-held_out:]
        return dict(zip(SPLITS, map(list, parts), strict=True))
    if unstated:
        log(f"  passing over {len(unstated)} clip(s) outside of the splits, as '{unstated[0]}'")
    return _as_stated({split: [name for name in names if stated[name] == split] for split in SPLITS}, root)


def stated_split(clip: PurePosixPath, *, root: Path) -> str | None:
    """Returns the split named by the folders above a clip, or else by the clip; None for neither."""
    above = {KNOWN[part.lower()] for part in clip.parent.parts if part.lower() in KNOWN}
    if len(above) > 1:
        raise root_error(root, f": clip '{clip}' lies in folders of {' and '.join(sorted(above))}; keep one")
    return above.pop() if above else KNOWN.get(clip.stem.lower())


def natural(path: PurePosixPath) -> list[str | int]:
    """Returns a key that sorts paths in natural order, 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def clip_folders(files: list[OriginalFile], *, root: Path, log: Log = print) -> Folders:
    """Groups frames by their folder; folders and frames in natural order (2 before 10). Folders of anomaly masks, which
    UCSD names with ``_gt``, and folders inside of a clip are passed over."""
    folders: Folders = defaultdict(list)
    for file in files:
        folders[file.path.parent].append(file)
    if HERE in folders and len(folders) > 1:
        raise root_error(root, f"holds frames and folders of frames, as '{folders[HERE][0].path}'; give each a folder")
    passed_over = [one for one in folders if holds_masks(one) or any(above in folders for above in one.parents)]
    if passed_over:
        log(f"  passing over {len(passed_over)} folder(s) of masks or inside of a clip, as '{passed_over[0]}'")
    if len(passed_over) == len(folders):
        raise root_error(root, f"holds no clips but masks; the layout is {LAYOUT}")
    return {
        folder: sorted(folders[folder], key=lambda file: natural(file.path))
        for folder in sorted(folders.keys() - passed_over, key=natural)
    }


def clip_to_cut(names: Sequence[PurePosixPath], *, root: Path) -> tuple[PurePosixPath, int] | None:
    """Returns the clip that must be cut in time because other splits need parts of it, and their number; or None. That
    is the only clip of all, or the only one of train without a validation split."""
    stated = {name: stated_split(name, root=root) for name in names}
    splits = list(stated.values())
    if splits == [None]:
        return names[0], len(SPLITS)
    if splits.count("train") == 1 and "test" in splits and "validation" not in splits:
        return next(name for name in names if stated[name] == "train"), 2
    return None


def stretches(name: PurePosixPath, count: int, *, num_splits: int, root: Path) -> dict[PurePosixPath, int]:
    """Returns a clip of ``count`` frames as clips of 20, by name with their first frames; the remainder is dropped."""
    if count < num_splits * NUM_FRAMES:
        least = num_splits * NUM_FRAMES
        raise root_error(root, f": clip '{name}' has {count} frames for {num_splits} splits; give {least}, or clips")
    starts = range(0, count - NUM_FRAMES + 1, NUM_FRAMES)
    return {name / f"frames {start} to {start + NUM_FRAMES - 1}": start for start in starts}


def read_frames(files: list[OriginalFile], root: Path) -> Iterator[np.ndarray]:
    """Reads a clip's frames, which have one size, from the first to the last."""
    return decode_in_order(files, standard_frame, root=root, what="frame")


def is_video(file: Path) -> bool:
    """Returns whether a file is named as a video or, under any other name, has frames in a format that is read."""
    if file.suffix.lower() in VIDEO_SUFFIXES:
        return True
    try:
        with _opened(file) as container:
            return bool(container.streams.video)
    except (ImportError, _UndecodableError):
        return False


def video_frames(path: Path, *, where: str, log: Log, least: int = 1) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160), as far as it goes; errors name it by ``where``. The log has
    damaged frames and an early end. Frames of two sizes are an error, and fewer than ``least`` at the end."""
    require_extra("video")
    check_regular(path, where=where)
    claimed, count, damaged, first = 0, 0, 0, ""
    try:
        with _opened(path) as container:
            if not container.streams.video:
                raise UserError(f"{where} has no video stream; give an AVI or MP4 file")
            claimed = container.streams.video[0].frames
            for frame in container.decode(video=0):
                count += 1
                size = f"{frame.width}x{frame.height}"
                first = first or size
                if size != first:
                    raise UserError(f"{where} changes from {first} to {size} at frame {count}; give frames of one size")
                damaged += bool(frame.is_corrupt)
                yield standard_frame(upright(frame, where))
    except _UndecodableError as error:
        done = f"after {count} of {claimed or 'unknown'} frames"
        raise UserError(f"{where} cannot be read as a video {done} ({error}); give a whole AVI or MP4 file") from error
    if count < least:
        raise UserError(f"{where} has {count} frames, fewer than the {least} needed; give a longer one or remove it")
    if claimed not in (0, count):
        log(f"  {path.name}: using the {count} frames that decode, of {claimed} in the header")
    if damaged:
        log(f"  {path.name}: {damaged} of {count} frames are damaged and used as they decode")


def upright(frame: Any, where: str) -> Image.Image:
    """Returns a frame turned as players turn it, by the matrix that phones write."""
    data = frame.side_data.get("DISPLAYMATRIX")
    matrix = (1, 0, 0, 0, 1) if data is None else np.frombuffer(bytes(data), np.int32)[:5]
    a, b, c, d = (int(np.sign(matrix[place])) for place in (0, 1, 3, 4))
    signs = (a, b, c, d)
    if signs not in TURNS:
        raise UserError(f"{where} is turned by a part of a right angle; save its frames upright")
    turn, picture = TURNS[signs], frame.to_image()
    return picture if turn is None else picture.transpose(turn)


def spool_frames(spool: IO[bytes], frames: Iterable[np.ndarray]) -> int:
    """Writes frames to a temporary file, and returns their number."""
    with writing(f"{tempfile.gettempdir()}, where decoded frames are kept", TEMPORARY):
        count = sum(spool.write(frame.tobytes()) for frame in frames) // FRAME_SIZE**2
        spool.flush()
    return count


def spooled_clip(spool: IO[bytes], start: int) -> Iterator[np.ndarray]:
    """Yields 20 frames that `spool_frames` wrote, from one on."""
    shape = (NUM_FRAMES, FRAME_SIZE, FRAME_SIZE)
    spool.seek(start * FRAME_SIZE**2)
    yield from np.frombuffer(spool.read(math.prod(shape)), np.uint8).reshape(shape)


def holds_masks(path: PurePosixPath) -> bool:
    """Returns whether a path names masks of anomalies."""
    return any(MASKS.fullmatch(part) for part in (*path.parent.parts, path.stem))


class _UndecodableError(Exception):
    """A file that FFmpeg cannot read, and its reason."""


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    import av  # here: only video files need it
    import av.error

    try:
        with av.open(str(file), options={"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}) as container:
            yield container
    except (av.error.FFmpegError, OSError) as error:
        raise _UndecodableError(getattr(error, "strerror", None) or error) from error


def _as_stated(stated: dict[str, list[PurePosixPath]], root: Path) -> dict[str, list[PurePosixPath]]:
    train, validation, test = (stated[split] for split in SPLITS)
    least = 1 if validation else 2
    if len(train) < least or not test:
        given = f"{len(train)} Train and {len(test)} Test clip(s)"
        raise root_error(root, f"holds {given}; give at least {least} and 1, or folders of clips without splits")
    if validation:
        return stated
    num_train = len(train) - tenth(len(train))
    return {"train": train[:num_train], "validation": train[num_train:], "test": test}
