"""Clips from one video file (AVI, MP4, ...): consecutive stretches of it, the last ones held out."""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError

from train.data.clips import FRAME_SIZE, NUM_FRAMES, SPLITS, Clip, ClipSet, Splits, split_sizes, standard_frame
from train.data.fingerprint import fingerprint_files
from train.errors import UserError

__all__ = ["fingerprint_video", "video_clips"]

FRAMES_BETWEEN_LINES = 1000  # of progress


def fingerprint_video(root: Path) -> str:
    """Fingerprints a video file.

    Raises:
      UserError: if there is none at the root.
    """
    if not root.is_file():
        what = "is a folder" if root.is_dir() else "does not exist"
        raise UserError(f"data.root={root} {what}; give a video file, or use data.source=frames for a folder of frames")
    return fingerprint_files([root], root=root.parent)


@contextlib.contextmanager
def video_clips(root: Path, log: Callable[[str], None]) -> Iterator[Splits]:
    """Opens a video as clips of 20 frames in time order, split 80/10/10; what follows the last whole clip is dropped.

    The frames that decode count, whatever the header claims. They are decoded once, into a temporary file that goes
    with the context.

    Raises:
      UserError: if the file is no video, stops decoding, or holds fewer than three clips.
    """
    with tempfile.TemporaryFile() as spool:
        sizes = _split_sizes(_decode_into(spool, root, log), root)
        first, splits = 0, {}
        for split in SPLITS:
            splits[split] = ClipSet(sizes[split], _read_clips(spool, root.name, range(first, first + sizes[split])))
            first += sizes[split]
        yield splits


def _decode_into(spool: IO[bytes], root: Path, log: Callable[[str], None]) -> int:
    """Writes every frame, grey and square, and returns how many there are."""
    with _open(root) as container:
        claimed, count = container.streams.video[0].frames, 0  # the header claims 0 where it does not know
        for count, frame in enumerate(_decode(container, root), start=1):
            spool.write(standard_frame(frame.to_image()).tobytes())
            if count % FRAMES_BETWEEN_LINES == 0:
                log(f"  {count} frames decoded")
    if claimed not in (0, count):
        log(f"  {root.name}: the header claims {claimed} frames, {count} decode; using the {count}")
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


def _open(root: Path) -> InputContainer:
    try:
        container = av.open(str(root))
    except (FFmpegError, OSError) as error:
        raise UserError(
            f"data.root={root} is not a video that can be read ({error}); give an AVI or MP4 file"
        ) from error
    if not container.streams.video:
        container.close()
        raise UserError(f"data.root={root} holds no video stream; give an AVI or MP4 file")
    return container


def _decode(container: InputContainer, root: Path) -> Iterator[av.VideoFrame]:
    count = 0
    try:
        for frame in container.decode(video=0):
            yield frame
            count += 1
    except (FFmpegError, OSError) as error:
        raise UserError(
            f"data.root={root} cannot be decoded after {count} frames ({error}); give a whole video file"
        ) from error
