"""Clips from video files (AVI, MP4, ...): stretches of one file, or a folder with a file a clip."""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from train.data.clip_splits import natural, split_clips
from train.data.clips import FRAME_SIZE, NUM_FRAMES, SPLITS, Clip, ClipSet, Splits, split_sizes
from train.data.decoding import grey_frames
from train.data.fingerprint import fingerprint_files
from train.data.folders import files_below
from train.errors import UserError

__all__ = ["fingerprint_video", "video_clips"]

FRAMES_BETWEEN_LINES = 1000  # of progress
SUFFIXES = (".avi", ".mp4", ".m4v", ".mkv", ".mov", ".mpg", ".mpeg", ".webm", ".wmv", ".ts")
Log = Callable[[str], None]


def fingerprint_video(root: Path) -> str:
    """Fingerprints a video file, or those of a folder.

    Raises:
      UserError: if there is none at the root.
    """
    if not root.exists():
        raise UserError(
            f"data.root={root} does not exist; give a video file, or use data.source=frames for a folder of frames"
        )
    return fingerprint_files(_videos(root), root=root if root.is_dir() else root.parent)


@contextlib.contextmanager
def video_clips(root: Path, log: Log) -> Iterator[Splits]:
    """Opens a video as clips of 20 frames in time order, split 80/10/10; what follows the last whole clip is dropped.

    The frames that decode count, whatever the header of a whole file claims. They are decoded once, into a temporary
    file that goes with the context. Of a folder with several videos each is a clip, decoded when it is read, and
    folders of splits count as they do for frames.

    Raises:
      UserError: if a file is no video, stops decoding or is truncated, or there are too few clips or frames.
    """
    videos = _videos(root)
    if len(videos) > 1:
        yield _of_folder(videos, root, log)
        return
    with tempfile.TemporaryFile() as spool:
        sizes = _split_sizes(_decode_into(spool, videos[0], log), videos[0])
        first, splits = 0, {}
        for split in SPLITS:
            numbers = range(first, first + sizes[split])
            splits[split] = ClipSet(sizes[split], _read_clips(spool, videos[0].name, numbers))
            first += sizes[split]
        yield splits


def _videos(root: Path) -> list[Path]:
    """The video file, or those below a folder."""
    if not root.is_dir():
        return [root]
    found = [path for path in files_below(root) if not path.name.startswith(".")]
    if videos := [path for path in found if path.suffix.lower() in SUFFIXES]:
        return videos
    raise UserError(
        f"data.root={root} is a folder without videos ({', '.join(SUFFIXES)}); give a video file, or use "
        "data.source=frames for a folder of frames"
    )


def _of_folder(videos: list[Path], root: Path, log: Log) -> Splits:
    paths = sorted((PurePosixPath(video.relative_to(root).as_posix()) for video in videos), key=natural)
    names = split_clips(paths, root=root, log=log)
    numbers = {name: number for number, name in enumerate(name for split in SPLITS for name in names[split])}

    def clips(split: str) -> Iterator[Clip]:
        for name in names[split]:
            yield Clip(numbers[name], str(name), _whole_clip(root / name, f"data.root={root}: video '{name}'", log))

    return {split: ClipSet(len(names[split]), clips(split)) for split in SPLITS}


def _whole_clip(path: Path, where: str, log: Log) -> Iterator[np.ndarray]:
    count = 0
    for frame in grey_frames(path, where=where, log=log):
        count += 1
        yield frame
    if count < NUM_FRAMES:
        raise UserError(
            f"{where} has {count} frames, fewer than the {NUM_FRAMES} of a sequence; give a longer one or take it away"
        )


def _decode_into(spool: IO[bytes], path: Path, log: Log) -> int:
    """Writes every frame, and returns how many there are."""
    count = 0
    for count, frame in enumerate(grey_frames(path, where=f"data.root={path}", log=log), start=1):
        spool.write(frame.tobytes())
        if count % FRAMES_BETWEEN_LINES == 0:
            log(f"  {count} frames decoded")
    return count


def _split_sizes(num_frames: int, root: Path) -> dict[str, int]:
    if num_frames < NUM_FRAMES * len(SPLITS):
        raise UserError(
            f"data.root={root} has {num_frames} frames; a sequence needs {NUM_FRAMES} and the splits at least "
            f"{NUM_FRAMES * len(SPLITS)}: give a longer video"
        )
    return split_sizes(num_frames // NUM_FRAMES)


def _read_clips(spool: IO[bytes], name: str, numbers: range) -> Iterator[Clip]:
    shape = (NUM_FRAMES, FRAME_SIZE, FRAME_SIZE)
    for number in numbers:
        start = number * NUM_FRAMES
        spool.seek(number * math.prod(shape))
        frames = np.frombuffer(spool.read(math.prod(shape)), np.uint8).reshape(shape)
        yield Clip(number, f"{name}, frames {start} to {start + NUM_FRAMES - 1}", frames)
