"""Where video may come from: the table of sources, and the choice of one."""

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Literal

from train.data import photos
from train.data.clips import FRAME_SIZE, NUM_FRAMES, SPLITS, Clip, ClipSet, Splits
from train.data.frames import fingerprint_frames, frame_clips
from train.data.source import Log, Source, resolve_source
from train.data.video_file import fingerprint_video, video_clips

__all__ = ["SOURCES", "DataConfig", "resolve"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which data to train and test on, and where they are kept once prepared."""

    source: Literal["photos", "frames", "file"] = "photos"
    """photos: clips filmed over two photographs, no files needed. frames: a folder tree or tar archive of frames, in
    folders of splits as published (UCSD, Avenue, ShanghaiTech), one folder a clip, or one clip. file: one video file
    (AVI, MP4), or a folder with one a clip."""
    root: str | None = None
    """Where the original frames or videos are; photos need none."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""


def resolve(config: DataConfig) -> tuple[Source[Splits], Path]:
    """Returns the source that a config names, and its root; an empty path for a source that takes none.

    Raises:
      UserError: if there is no such source, or the root is missing or superfluous.
    """
    source, root = resolve_source(SOURCES, config)
    return source, root or Path()


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


SOURCES: dict[str, Source[Splits]] = {
    "photos": Source("", _fingerprint_photos, _open_photos),
    "frames": Source("the folder or tar archive that holds the frames", fingerprint_frames, frame_clips),
    "file": Source("the video file (AVI, MP4), or a folder of them", fingerprint_video, video_clips),
}
