"""Frames of one video file, as far as it can be decoded; a file that was truncated is an error."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError

from train.data.clips import standard_frame
from train.errors import UserError

__all__ = ["grey_frames"]

# Of a container that claims a duration and no number of frames: sound may last longer than pictures.
LEAST_SHARE, SLACK = 0.95, 1.0  # seconds
RIFF_HEADER = 8  # bytes: its name, and the length of what follows


class Claim(NamedTuple):
    """What a container says of its pictures: frames and seconds, 0 where it does not say."""

    frames: int
    seconds: float


def grey_frames(path: Path, *, where: str, log: Callable[[str], None]) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160).

    Args:
      path: The file.
      where: What errors call it.
      log: Takes a line where the header claims more frames than a whole file has, and where frames are damaged.

    Raises:
      UserError: if the file is no video, stops decoding, or is truncated.
    """
    with _open(path, where) as container:
        stream = container.streams.video[0]
        claim = Claim(stream.frames, _claimed_seconds(container))
        count = damaged = 0
        seconds = 0.0
        try:
            for frame in container.decode(video=0):
                count += 1
                damaged += bool(frame.is_corrupt)
                seconds = max(seconds, _end(frame, stream))
                yield standard_frame(frame.to_image())
        except (FFmpegError, OSError) as error:
            of_claimed = f" of the {claim.frames} that it claims" if claim.frames else ""
            why = error.strerror or error
            raise UserError(
                f"{where} cannot be decoded after {count} frames{of_claimed} ({why}); give a whole video file"
            ) from error
    if shortfall := _shortfall(path, claim, count, seconds):
        raise UserError(f"{where} is truncated: {shortfall}; copy it again")
    if claim.frames not in (0, count):
        log(f"  {path.name}: the header claims {claim.frames} frames, {count} decode; using the {count}")
    if damaged:
        log(f"  {path.name}: {damaged} of {count} frames are damaged, and used as they decode")


def _open(path: Path, where: str) -> InputContainer:
    try:
        container = av.open(str(path))
    except (FFmpegError, OSError) as error:
        raise UserError(
            f"{where} is not a video that can be read ({error.strerror or error}); give a whole AVI or MP4 file"
        ) from error
    if not container.streams.video:
        container.close()
        raise UserError(f"{where} holds no video stream; give an AVI or MP4 file")
    return container


def _claimed_seconds(container: InputContainer) -> float:
    stream = container.streams.video[0]
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base


def _end(frame: av.VideoFrame, stream: av.VideoStream) -> float:
    """Seconds from the start of the stream to the end of a frame; 0 where its time is not known."""
    if frame.pts is None or not stream.time_base:
        return 0.0
    length = 1.0 / stream.average_rate if stream.average_rate else 0.0
    return float((frame.pts - (stream.start_time or 0)) * stream.time_base + length)


def _shortfall(path: Path, claim: Claim, count: int, seconds: float) -> str | None:
    """How much of a truncated file could be read, in words; None for a whole one.

    Of an AVI file its chunks tell: headers of whole ones are known to claim twice their frames. Of others the frames
    that it claims, where the last that decodes is not the end; and where none are claimed, the time.
    """
    riff = _cut_riff(path)
    missing = claim.frames > count and (seconds < claim.seconds - 1e-3 or not claim.seconds)
    if riff or (riff is None and missing):
        return f"{count} frames could be read" + (f" of the {claim.frames} that it claims" if claim.frames else "")
    if riff is None and not claim.frames and 0.0 < seconds < LEAST_SHARE * claim.seconds - SLACK:
        return f"{count} frames could be read, {seconds:.1f} s of the {claim.seconds:.1f} s that it claims"
    return None


def _cut_riff(path: Path) -> bool | None:
    """Whether the last chunk of an AVI file reaches beyond its end; None for a file of another kind."""
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            header = file.read(RIFF_HEADER)
            if header[:4] != b"RIFF":
                return False if place else None
            place += RIFF_HEADER + int.from_bytes(header[4:], "little")
    return place > size
