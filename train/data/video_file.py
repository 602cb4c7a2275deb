"""Clips from video files (AVI, MP4, ...): stretches of one file, or a folder with a file a clip."""

import contextlib
import functools
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np

from ..config.errors import UserError, needs_extra
from ..system.files import writing
from .clips import FRAME_SIZE, NUM_FRAMES, Splits, natural, numbered, split_clips, split_sizes, standard_frame
from .files import TEMPORARY, Log, files_below, fingerprint_files, may_be_tar
from .prepare import Source
from .splits import SPLITS

with needs_extra("video"):
    import av
    from av.container import InputContainer
    from av.error import FFmpegError

FRAMES_BETWEEN_LINES = 1000  # of progress
SUFFIXES = (".avi", ".mp4", ".m4v", ".mkv", ".mov", ".mpg", ".mpeg", ".webm", ".wmv", ".ts")
SHAPE = (NUM_FRAMES, FRAME_SIZE, FRAME_SIZE)  # of a clip
# Of a container that claims a duration and no number of frames: sound may last longer than pictures.
LEAST_SHARE, SLACK = 0.95, 1.0  # seconds
RIFF_HEADER = 8  # bytes: its name, and the length of what follows


class Claim(NamedTuple):
    """The numbers of frames and seconds that a container claims, 0 where it claims none."""

    frames: int
    seconds: float


def fingerprint_video(root: Path) -> str:
    """Fingerprints a video file, or those of a folder."""
    if not root.exists():
        raise UserError(
            f"data.root={root} does not exist; give a video file, or use data.source=frames for a folder of frames"
        )
    return fingerprint_files(_videos(root), root=root)


@contextlib.contextmanager
def video_clips(root: Path, log: Log) -> Iterator[Splits]:
    """Opens a video as clips of 20 frames in time order, split 80/10/10; what follows the last whole clip is dropped.

    The frames that decode count, whatever the header of a whole file claims. They are decoded once, into a temporary
    file that goes with the context. Of a folder with several videos each is a clip, decoded when it is read, and
    folders of splits count as they do for frames.
    """
    videos = _videos(root)
    if len(videos) > 1:
        paths = sorted((PurePosixPath(video.relative_to(root).as_posix()) for video in videos), key=natural)
        names = split_clips(paths, root=root, log=log)
        clips = {name: whole_video(root / name, f"data.root={root}: video '{name}'", log) for name in paths}
        yield numbered({split: [(str(name), clips[name]) for name in names[split]] for split in SPLITS})
        return
    with tempfile.TemporaryFile() as spool:
        count = decode_into(spool, grey_frames(videos[0], where=f"data.root={videos[0]}", log=log), log)
        if count < NUM_FRAMES * len(SPLITS):
            raise UserError(
                f"data.root={videos[0]} has {count} frames; a sequence needs {NUM_FRAMES} and the splits at least "
                f"{NUM_FRAMES * len(SPLITS)}: give a longer video"
            )
        starts = iter(range(0, count, NUM_FRAMES))
        sizes = split_sizes(count // NUM_FRAMES)
        parts = {split: [next(starts) for _ in range(sizes[split])] for split in SPLITS}
        name = f"{videos[0].name}, frames"
        yield numbered(
            {
                split: [
                    (f"{name} {start} to {start + NUM_FRAMES - 1}", part_of(spool, start)) for start in parts[split]
                ]
                for split in SPLITS
            }
        )


def grey_frames(path: Path, *, where: str, log: Log) -> Iterator[np.ndarray]:
    """Decodes a video into grey frames, uint8 (160, 160), as far as it can be; a truncated one is an error.

    Errors call it ``where``. The log takes a line where the header claims more frames than a whole file has, and where
    frames are damaged.
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


def whole_video(path: Path, where: str, log: Log) -> Iterator[np.ndarray]:
    """The frames of a video that is a clip by itself; one that is too short is refused when its end is reached."""
    count = 0
    for frame in grey_frames(path, where=where, log=log):
        count += 1
        yield frame
    if count < NUM_FRAMES:
        raise UserError(
            f"{where} has {count} frames, fewer than the {NUM_FRAMES} of a sequence; give a longer one or take it away"
        )


def decode_into(spool: IO[bytes], frames: Iterable[np.ndarray], log: Log) -> int:
    """Writes every frame to a temporary file, and returns how many there are."""
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
    """The 20 frames from one on, of those that `decode_into` wrote."""
    spool.seek(start * FRAME_SIZE**2)
    yield from np.frombuffer(spool.read(math.prod(SHAPE)), np.uint8).reshape(SHAPE)


def _videos(root: Path) -> list[Path]:
    """The video file, or those below a folder."""
    if not root.is_dir():
        if root.is_file() and root.suffix.lower() not in SUFFIXES and may_be_tar(root):
            raise UserError(f"data.root={root} is a tar archive, not a video; use data.source=video, which reads both")
        return [root]
    files = [path for path in files_below(root) if not path.name.startswith(".")]
    if videos := [path for path in files if path.suffix.lower() in SUFFIXES]:
        return videos
    raise UserError(
        f"data.root={root} is a folder without videos ({', '.join(SUFFIXES)}); give a video file of "
        "any suffix, or use data.source=frames for a folder of frames"
    )


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
    """Describes how much of a truncated file could be read; None for a whole one.

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
    """Returns whether the last chunk of an AVI file reaches beyond its end; None for a file of another kind."""
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            header = file.read(RIFF_HEADER)
            if header[:4] != b"RIFF":
                return False if place else None
            place += RIFF_HEADER + int.from_bytes(header[4:], "little")
    return place > size


SOURCE = Source(fingerprint_video, video_clips, "the video file (AVI, MP4), or a folder of them")
