"""Video as the papers use it: a sequence is one 16 x 16 patch position through 20 frames of a grey 160 x 160 clip."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow_datasets as tfds

from ..config.data import DataConfig
from ..config.errors import UserError
from . import footage, generated, video_file
from .clips import FRAME_SIZE, FRAMES, NUM_FRAMES, ClipSet, Splits
from .files import Log
from .pictures import CHANNELS, IMAGE_SUFFIXES, moments, picture_of, pixels_of
from .prepare import Kind, Originals, Record, Source, origin, prepare_from, telling
from .reader import Dataset, Records, open_prepared
from .splits import SPLITS

SOURCES: dict[str, Source[Splits]] = {
    "photos": generated.PHOTOS,
    "video": footage.SOURCE,
    "frames": FRAMES,
    "file": video_file.SOURCE,
}
VIDEO = Kind("video", "1.1.0")
PATCH_SIZE = 16  # side of a patch, in pixels
SHOWN = 3  # clips of a split that the log names


class VideoSpec(NamedTuple):
    """Properties of video that a model needs.

    Attributes:
      pixel_std: standard deviation of the clean train pixels, in [0, 1].
      num_tokens: frames of a sequence.
      token_dim: pixels of a patch.
      frame_side: height and width of a frame, in pixels.
    """

    pixel_std: float
    num_tokens: int = NUM_FRAMES
    token_dim: int = PATCH_SIZE**2
    frame_side: int = FRAME_SIZE

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return self._asdict()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
        return cls(**values)


class VideoData(Dataset[np.ndarray]):
    """Prepared video: uint8 (batch, 20, 256) sequences, and the standard deviation of clean train pixels, in [0, 1].

    All positions of a window of 20 frames follow each other, in the order of `patch_sequences`.
    """

    num_tokens = NUM_FRAMES
    token_dim = PATCH_SIZE**2
    frame_side = FRAME_SIZE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pixel_std: float = self.facts["pixel_std"]
        self.spec = VideoSpec(self.pixel_std)

    def num_sequences(self, split: str) -> int:
        """Returns how many sequences a split has."""
        return self.num_examples(split)

    def clips(self, split: str) -> np.ndarray:
        """Returns the clip that each sequence of a split comes from, int (num_sequences,); no splits share a clip."""
        records = self._split(split)
        return np.array([clip for (clip,) in records.read(range(len(records)), "clip")])

    def _read(self, records: Records, numbers: list[int]) -> np.ndarray:
        pixels = b"".join(sequence for (sequence,) in records.read(numbers, "sequence"))
        return np.frombuffer(pixels, np.uint8).reshape(-1, NUM_FRAMES, PATCH_SIZE**2)


def load(config: DataConfig, *, log: Log = print) -> VideoData:
    """Opens the data that a config names, preparing them on first use."""
    return open_prepared(prepare(config, log=log), VideoData)


def prepare(config: DataConfig, *, log: Log = print) -> Path:
    """Prepares the data that a config names, unless that is done, and returns the folder that holds them."""
    return prepare_from(SOURCES, config, VIDEO, _sequences, log=log)


def windows(frames: Iterable[np.ndarray], *, length: int = NUM_FRAMES) -> Iterator[np.ndarray]:
    """Cuts frames into consecutive windows (length, 160, 160) without overlap; an incomplete last one is dropped."""
    frames = iter(frames)
    while len(window := list(islice(frames, length))) == length:
        yield np.stack(window)


def patch_sequences(window: np.ndarray, *, side: int = PATCH_SIZE) -> np.ndarray:
    """Returns one sequence for each patch position: (frames, height, width) to (positions, frames, side^2).

    Positions run row by row over the frame, pixels row by row over the patch.
    """
    frames, height, width = window.shape
    rows, columns = height // side, width // side
    patches = window.reshape(frames, rows, side, columns, side)
    return patches.transpose(1, 3, 0, 2, 4).reshape(rows * columns, frames, side**2)


def frames_from(sequences: np.ndarray, size: tuple[int, int], *, side: int = PATCH_SIZE) -> np.ndarray:
    """The frames (frames, height, width) that `patch_sequences` cut, from (positions, frames, side^2)."""
    rows, columns, frames = size[0] // side, size[1] // side, sequences.shape[1]
    patches = sequences.reshape(rows, columns, frames, side, side)
    return patches.transpose(2, 0, 3, 1, 4).reshape(frames, rows * side, columns * side)


def frames_of(source: Path | str | np.ndarray) -> tuple[np.ndarray, bool]:
    """The grey frames, uint8 (frames, 160, 160), of a picture or a video that is at hand; and whether it is a picture.

    It is a file, or an array uint8 (height, width), (frames, height, width) or these with channels behind.
    """
    shape = (FRAME_SIZE, FRAME_SIZE, 1)
    if isinstance(source, Path | str):
        path = Path(source)
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return picture_of(path, shape)[None, ..., 0], True
        if not path.is_file():
            raise UserError(f"{path} is no file; give a picture, a video, or an array of frames")
        if frames := list(video_file.grey_frames(path, where=str(path), log=print)):
            return np.stack(frames), False
        raise UserError(f"{path} holds no frame; give a whole video file")
    pixels = pixels_of(source)
    if pixels.ndim not in (2, 3, 4):
        raise UserError(f"a video must be uint8 (frames, height, width) or one of colours, got shape {pixels.shape}")
    still = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in CHANNELS)
    return np.stack([picture_of(frame, shape)[..., 0] for frame in (pixels[None] if still else pixels)]), still


def some_of(names: Sequence[str]) -> str:
    """A few of the names: all of up to three, else the first two and the last."""
    return "; ".join(names if len(names) <= SHOWN else (*names[: SHOWN - 1], "...", names[-1]))


def _sequences(splits: Splits, config: DataConfig, log: Log) -> Originals:
    # Stored as bytes: TFDS would widen uint8 to 64-bit integers.
    sequence = tfds.features.Tensor(shape=(NUM_FRAMES, PATCH_SIZE**2), dtype=np.uint8, encoding="bytes")
    features = {"sequence": sequence, "clip": np.int32, "first_frame": np.int32, "position": np.int32}
    facts: Record = {}
    return Originals(
        features, {split: _records(splits[split], split, facts, origin(config), log) for split in SPLITS}, facts
    )


def _records(clip_set: ClipSet, split: str, facts: Record, where: str, log: Log) -> Iterator[Record]:
    histogram, count, names = np.zeros(256, np.int64), 0, []
    for clip in telling(clip_set.clips, clip_set.num_clips, f"  {split}: {{}} clips", log):
        names.append(clip.name)
        for index, window in enumerate(windows(clip.frames)):
            histogram += np.bincount(window.ravel(), minlength=256)
            place = {"clip": clip.number, "first_frame": index * NUM_FRAMES}
            for position, sequence in enumerate(patch_sequences(window)):
                yield {"sequence": sequence, **place, "position": position}
                count += 1
    log(f"  {split}: {count} sequences, clips: {len(names)} ({some_of(names)})")
    if np.count_nonzero(histogram) < 2:
        raise UserError(
            f"{where}: all frames of {split} are of one grey level ({np.argmax(histogram)}); there is "
            "nothing to learn or to judge: give other clips"
        )
    if split == "train":
        facts["pixel_std"] = float(moments(histogram)[1])
