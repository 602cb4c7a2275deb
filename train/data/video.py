"""Video as in the papers: a sequence is one 16 x 16 patch position through 20 frames
of a grey 160 x 160 clip."""

import contextlib
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

import numpy as np

from ..config.data import DataConfig
from ..config.errors import UserError
from . import generated
from .clips import (
    FRAME_SIZE,
    NUM_FRAMES,
    Clip,
    Splits,
    cut_in_time,
    find_clips,
    is_video,
    split_clips,
    standard_frame,
    video_frames,
)
from .files import ARCHIVE_ERRORS, Log, OriginalFile, fingerprint_below
from .media import decode_in_order, is_picture, open_media
from .pictures import CHANNELS, moments, picture_of, stored
from .prepare import Kind, Originals, Record, Source, prepare_from
from .reader import Dataset, Records, joined, open_prepared

ADDRESS = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
WANTED = (
    "a video file (AVI, MP4), or a folder or archive of frames or videos; UCSD Ped2 is"
    f" at {ADDRESS}"
)
VIDEO = Kind("video", "1.2.0")
PATCH_SIZE = 16  # side of a patch, in pixels


class VideoSpec(NamedTuple):
    """Properties of video that a model needs."""

    pixel_std: float  # standard deviation of the clean train pixels, in [0, 1]
    num_tokens: int = NUM_FRAMES  # frames of a sequence
    token_dim: int = PATCH_SIZE**2  # pixels of a patch
    frame_side: int = FRAME_SIZE  # height and width of a frame, in pixels

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return self._asdict()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
        return cls(**values)


class VideoData(Dataset[np.ndarray]):
    """Prepared video: uint8 (batch, 20, 256) sequences, and the standard deviation of
    clean train pixels, in [0, 1]. All positions of a window of 20 frames are
    consecutive, in the order of `patch_sequences`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pixel_std: float = self.facts["pixel_std"]
        self.spec = VideoSpec(self.pixel_std)

    def _read(self, records: Records, numbers: np.ndarray) -> np.ndarray:
        (sequences,) = records.read(numbers, "sequence")
        return joined(sequences, NUM_FRAMES, PATCH_SIZE**2)


def load(config: DataConfig, *, log: Log = print) -> VideoData:
    """Opens the data of a configuration, preparing them on first use."""
    return open_prepared(prepare(config, log=log), VideoData)


def prepare(config: DataConfig, *, log: Log = print) -> Path:
    """Prepares the data of a configuration unless they are there, and returns their
    folder."""
    return prepare_from(SOURCES, config, VIDEO, _sequences, log=log)


def windows(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Cuts frames into consecutive windows (20, 160, 160) without overlap; an
    incomplete last one is dropped."""
    frames = iter(frames)
    while len(window := list(islice(frames, NUM_FRAMES))) == NUM_FRAMES:
        yield np.stack(window)


def patch_sequences(window: np.ndarray, *, side: int = PATCH_SIZE) -> np.ndarray:
    """Returns one sequence for each patch position: (frames, height, width) to
    (positions, frames, side^2). Positions run row by row over the frame, pixels row by
    row over the patch.
    """
    frames, height, width = window.shape
    rows, columns = height // side, width // side
    patches = window.reshape(frames, rows, side, columns, side)
    return patches.transpose(1, 3, 0, 2, 4).reshape(rows * columns, frames, side**2)


def frames_from(
    sequences: np.ndarray, size: tuple[int, int], *, side: int = PATCH_SIZE
) -> np.ndarray:
    """Returns the frames (frames, height, width) of `patch_sequences`, from
    (positions, frames, side^2)."""
    rows, columns, frames = size[0] // side, size[1] // side, sequences.shape[1]
    patches = sequences.reshape(rows, columns, frames, side, side)
    return patches.transpose(2, 0, 3, 1, 4).reshape(frames, rows * side, columns * side)


def frames_of(source: Path | str | np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the grey frames, uint8 (frames, 160, 160), of a picture or a video, and
    whether it is a picture. The source is a file, or an array uint8 (height, width) or
    (frames, height, width), optionally with channels last.
    """
    shape = (FRAME_SIZE, FRAME_SIZE, 1)
    if isinstance(source, Path | str):
        path = Path(source)
        if is_picture(path):
            return picture_of(path, shape)[None, ..., 0], True
        return np.stack([*video_frames(path, where=str(path), log=print)]), False
    pixels = np.asarray(source)
    still = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in CHANNELS)
    frames = pixels[None] if still else pixels
    return np.stack([picture_of(frame, shape)[..., 0] for frame in frames]), still


@contextlib.contextmanager
def open_footage(root: Path, log: Log) -> Iterator[Splits]:
    """Opens the clips below a root: every folder of frames, every video, in turn.
    Folders name the splits. A root that is a video is cut in time.
    """
    if root.is_file() and not _is_archive(root):
        yield cut_in_time(root, log)
        return
    with open_media(root, log, is_video=is_video) as media:
        clips = find_clips(media, log=log)
        splits: dict[str, list[Clip]] = {}
        for split, names in split_clips(list(clips), log=log).items():
            splits[split] = [
                Clip(str(name), _frames(name, clips[name], log)) for name in names
            ]
        yield splits


def _is_archive(root: Path) -> bool:
    """Returns whether a file is an archive; one that is damaged is one too."""
    with contextlib.suppress(*ARCHIVE_ERRORS):
        return tarfile.is_tarfile(root) or zipfile.is_zipfile(root)
    return True


def _frames(
    name: PurePosixPath, files: list[OriginalFile], log: Log
) -> Iterator[np.ndarray]:
    """Returns the frames of a folder of them, or of a video, grey and square."""
    if files[0].path != name:
        return decode_in_order(files, standard_frame, what="frame")
    where = f"video '{name}'"
    return video_frames(files[0].local, where=where, log=log)


def _sequences(splits: Splits, config: DataConfig, log: Log) -> Originals:
    del config  # the records depend on the files only
    facts: Record = {}
    records = {}
    for split, clips in splits.items():
        log(f"  {split} is of {len(clips)} clips, {clips[0].name} to {clips[-1].name}")
        records[split] = _records(clips, split, facts)
    return Originals({"sequence": stored((NUM_FRAMES, PATCH_SIZE**2))}, records, facts)


def _records(clips: Sequence[Clip], split: str, facts: Record) -> Iterator[Record]:
    histogram = np.zeros(256, np.int64)
    for clip in clips:
        before = histogram.sum()
        for window in windows(clip.frames):
            histogram += np.bincount(window.ravel(), minlength=256)
            for sequence in patch_sequences(window):
                yield {"sequence": sequence}
        if histogram.sum() == before:
            raise UserError(
                f"clip '{clip.name}' has fewer than {NUM_FRAMES} frames; give it more,"
                " or remove it"
            )
    if np.count_nonzero(histogram) < 2:
        raise UserError(f"all frames of {split} have one grey level; give others")
    if split == "train":
        facts["pixel_std"] = float(moments(histogram)[1])


SOURCES: dict[str, Source[Splits]] = {
    "photos": generated.PHOTOS,
    "video": Source(fingerprint_below, open_footage, WANTED),
}
