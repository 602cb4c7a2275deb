"""Frames of video files (AVI, MP4, ...): decoded in grey, and checked against the claims of the container."""

import functools
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ..config.errors import UserError, require_extra
from ..system.files import writing
from .clips import FRAME_SIZE, NUM_FRAMES, standard_frame
from .files import TEMPORARY, Log

FRAMES_BETWEEN_LINES = 1000  # of progress
SUFFIXES = (".avi", ".mp4", ".m4v", ".mkv", ".mov", ".mpg", ".mpeg", ".webm", ".wmv", ".ts")
SHAPE = (NUM_FRAMES, FRAME_SIZE, FRAME_SIZE)  # of a clip
# Tolerance of a claimed duration: sound may last longer than pictures.
LEAST_SHARE, SLACK = 0.95, 1.0  # seconds
RIFF_HEADER = 8  # bytes: its name, and the length of its contents


class Claim(NamedTuple):
    """The numbers of frames and seconds that a container claims; 0 for no claim."""

    frames: int
    seconds: float


def grey_frames(path: Path, *, where: str, log: Log) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160); a truncated file is an error, which names it by ``where``.

    The log takes a line if a complete file has fewer frames than its header claims, and if frames are damaged.
    """
    av = _av()
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
        except (av.error.FFmpegError, OSError) as error:
            raise UserError(
                f"{where} cannot be decoded after {count} of {claim.frames or 'unknown'} frames "
                f"({error.strerror or error}); give a whole video file"
            ) from error
    if shortfall := _shortfall(path, claim, count, seconds):
        raise UserError(f"{where} is truncated: {shortfall}; copy it again")
    if claim.frames not in (0, count):
        log(f"  {path.name}: using the {count} frames that decode, of {claim.frames} in the header")
    if damaged:
        log(f"  {path.name}: {damaged} of {count} frames are damaged and used as they decode")


def whole_video(path: Path, where: str, log: Log) -> Iterator[np.ndarray]:
    """Yields the frames of a video that is one clip; a short video is an error at its end."""
    count = 0
    for frame in grey_frames(path, where=where, log=log):
        count += 1
        yield frame
    if count < NUM_FRAMES:
        raise UserError(
            f"{where} has {count} frames, fewer than the {NUM_FRAMES} of a sequence; give a longer one or remove it"
        )


def decode_into(spool: IO[bytes], frames: Iterable[np.ndarray], log: Log) -> int:
    """Writes frames to a temporary file, and returns their number."""
    count, to_disk = 0, functools.partial(writing, f"{tempfile.gettempdir()}, where decoded frames are kept", TEMPORARY)
    for count, frame in enumerate(frames, start=1):
        with to_disk():
            spool.write(frame.tobytes())
        if count % FRAMES_BETWEEN_LINES == 0:
            log(f"  {count} frames decoded")
    with to_disk():
        spool.flush()
    return count


def part_of(spool: IO[bytes], start: int) -> Iterator[np.ndarray]:
    """Yields 20 frames that `decode_into` wrote, from one on."""
    spool.seek(start * FRAME_SIZE**2)
    yield from np.frombuffer(spool.read(math.prod(SHAPE)), np.uint8).reshape(SHAPE)


def _av() -> Any:
    require_extra("video")
    import av  # here: only video files need it
    import av.error

    return av


def _open(path: Path, where: str) -> Any:
    av = _av()
    try:
        container = av.open(str(path))
    except (av.error.FFmpegError, OSError) as error:
        raise UserError(
            f"{where} cannot be read as a video ({error.strerror or error}); give a whole AVI or MP4 file"
        ) from error
    if not container.streams.video:
        container.close()
        raise UserError(f"{where} has no video stream; give an AVI or MP4 file")
    return container


def _claimed_seconds(container: Any) -> float:
    stream = container.streams.video[0]
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / _av().time_base


def _end(frame: Any, stream: Any) -> float:
    """Returns the seconds from the start of the stream to the end of a frame; 0 if unknown."""
    if frame.pts is None or not stream.time_base:
        return 0.0
    length = 1.0 / stream.average_rate if stream.average_rate else 0.0
    return float((frame.pts - (stream.start_time or 0)) * stream.time_base + length)


def _shortfall(path: Path, claim: Claim, count: int, seconds: float) -> str | None:
    """Describes the readable part of a truncated file; None for a complete one.

    AVI files are judged by their chunks: some complete ones claim twice their frames. Others are judged by the claimed
    frames, if the last decoded one is not at the end, or else by the claimed time.
    """
    riff = _cut_riff(path)
    missing = claim.frames > count and (seconds < claim.seconds - 1e-3 or not claim.seconds)
    if riff or (riff is None and missing):
        return f"{count} frames could be read" + (f" of the {claim.frames} that it claims" if claim.frames else "")
    if riff is None and not claim.frames and 0.0 < seconds < LEAST_SHARE * claim.seconds - SLACK:
        return f"{count} frames could be read, {seconds:.1f} s of the {claim.seconds:.1f} s that it claims"
    return None


def _cut_riff(path: Path) -> bool | None:
    """Returns whether the last chunk of an AVI file exceeds the file; None for other formats."""
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            header = file.read(RIFF_HEADER)
            if header[:4] != b"RIFF":
                return False if place else None
            place += RIFF_HEADER + int.from_bytes(header[4:], "little")
    return place > size
