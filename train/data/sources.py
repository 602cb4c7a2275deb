"""Where video may come from: the table of sources, and the choice of one."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from train.data import photos
from train.data.clips import FRAME_SIZE, NUM_FRAMES, SPLITS, Clip, ClipSet, Splits
from train.data.frame_files import fingerprint_frames
from train.data.frames import frame_clips
from train.data.video_file import fingerprint_video, video_clips
from train.errors import UserError

__all__ = ["SOURCES", "DataConfig", "Source", "resolve"]

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which data to train and test on, and where they are kept once prepared."""

    source: Literal["photos", "frames", "file"] = "photos"
    """photos: clips filmed over two photographs, no files needed. frames: a folder tree or tar archive of frames, in
    the layout of UCSD Ped2 or one folder a clip. file: one video file (AVI, MP4)."""
    root: str | None = None
    """Where the original frames or the video file are; photos need none."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""


class Source(NamedTuple):
    """One source of clips.

    Attributes:
      root: What its root must be, in words; empty where it takes none.
      fingerprint: Maps the root to a short text that changes when the original files do.
      open: Opens the clips of every split, for as long as the context lasts; takes the root and a log.
    """

    root: str
    fingerprint: Callable[[Path], str]
    open: Callable[[Path, Log], AbstractContextManager[Splits]]


def resolve(config: DataConfig) -> tuple[Source, Path]:
    """Returns the source that a config names, and its root.

    Raises:
      UserError: if there is no such source, or the root is missing or superfluous.
    """
    source = SOURCES.get(config.source)
    if source is None:
        raise UserError(f"data.source={config.source} is unknown; choose one of {', '.join(SOURCES)}")
    if source.root and not config.root:
        raise UserError(f"data.source={config.source} needs data.root: {source.root}")
    if config.root and not source.root:
        raise UserError(f"data.source={config.source} takes no data.root, got {config.root}; leave it out")
    return source, Path(config.root or "").expanduser()


def _fingerprint_photos(_: Path) -> str:
    """The pictures come from scikit-learn, are resized by Pillow and filmed by `photos`."""
    versions = f"{metadata.version('scikit-learn')} {metadata.version('pillow')}"
    return hashlib.sha256(versions.encode() + Path(photos.__file__).read_bytes()).hexdigest()[:12]


@contextmanager
def _open_photos(_: Path, __: Log) -> Iterator[Splits]:
    """Numbers the clips through the splits."""
    first, splits = 0, {}
    for split in SPLITS:
        films = photos.photo_clips(split, num_frames=NUM_FRAMES, frame_size=FRAME_SIZE)
        clips = (Clip(number, f"photo clip {number}", film) for number, film in enumerate(films, start=first))
        splits[split] = ClipSet(photos.CLIPS[split], clips)
        first += photos.CLIPS[split]
    yield splits


SOURCES: dict[str, Source] = {
    "photos": Source("", _fingerprint_photos, _open_photos),
    "frames": Source("the folder or tar archive that holds the frames", fingerprint_frames, frame_clips),
    "file": Source("the video file (AVI, MP4)", fingerprint_video, video_clips),
}
