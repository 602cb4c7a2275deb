"""Video as in the papers: a sequence is one 16 x 16 patch position through 20 frames of
a grey 160 x 160 clip. Samples of it, with noise and disturbances."""

import contextlib
import itertools
import math
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8
from scipy import ndimage

from ...config.errors import UserError
from ...core.evaluate import NOISE_SEED
from ...data import generated
from ...data.clips import (
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
from ...data.files import ARCHIVE_ERRORS, Log, OriginalFile, fingerprint_below
from ...data.pictures import (
    CHANNELS,
    decode_in_order,
    is_picture,
    moments,
    open_media,
    picture_of,
    stored,
)
from ...data.prepared import (
    Dataset,
    Kind,
    Originals,
    Record,
    Records,
    Source,
    in_order,
    joined,
    open_prepared,
    prepare_from,
    read_ahead,
    shuffled,
)
from ..common import keyed, to_bytes, to_unit
from .options import BLUR, SALT_AND_PEPPER, DataConfig, Disturbance

ADDRESS = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
WANTED = (
    "a video file (AVI, MP4), or a folder or archive of frames or videos; UCSD Ped2 is"
    f" at {ADDRESS}"
)
VIDEO = Kind("video", "1.2.0")
PATCH_SIZE = 16  # side of a patch, in pixels
Batch = UInt8[np.ndarray, "batch tokens pixels"]
# sequences, in an evaluation: no gradient is kept, so more fit than in training
BATCH_SIZE = 250


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
        """Reads what `to_json` wrote. Unknown fields are a TypeError."""
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
    """Cuts frames into consecutive windows (20, 160, 160) without overlap. An
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
    """Returns whether a file is an archive. One that is damaged is one too."""
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


class Sequences:
    """Samples of a model: a patch position through the frames of a window, whose tokens
    are frames. A window has ``length`` frames of ``positions`` patches, each of
    ``side`` x ``side`` pixels.
    """

    def __init__(self, data: Any, spec: VideoSpec):
        self.data, self.length, self.side = (
            data,
            spec.num_tokens,
            math.isqrt(spec.token_dim),
        )
        self.positions = (spec.frame_side // self.side) ** 2

    def count(self, split: str) -> int:
        """Returns the number of samples of a split."""
        return self.data.num_examples(split)

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any
    ) -> Iterator[Batch]:
        """Yields shuffled batches without end, see
        `train.data.prepared.Dataset.batches`."""
        return self.data.batches(
            split, batch_size=batch_size, seed=seed, start_step=start_step, rows=rows
        )

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in order."""
        return self.data.examples(split, batch_size=batch_size)

    def of_windows(self, sequences: Any) -> Any:
        """Returns samples from sequences of whole windows (windows x positions,
        frames, pixels)."""
        return sequences

    def to_windows(self, samples: Any) -> Any:
        """Returns samples of whole windows as sequences."""
        return samples


class Frames(Sequences):
    """The patches of one frame: tokens are positions. Every frame of a batch is read
    with its whole window."""

    def count(self, split: str) -> int:
        """Returns the number of frames."""
        return self._windows(split) * self.length

    def batches(
        self, split: str, *, batch_size: int, seed: int, start_step: int, rows: Any
    ) -> Iterator[Batch]:
        """Frames in random order."""

        def read(numbers: Any) -> Batch:
            windows, frames = np.divmod(np.asarray(numbers), self.length)
            return self._read(split, windows)[np.arange(len(windows)), :, frames]

        batches = shuffled(
            self.count(split), read, batch_size=batch_size, seed=seed, rows=rows
        )
        return read_ahead(batches, start_step)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Frames in order, of whole windows."""

        def read(windows: Any) -> Batch:
            return self.of_windows(
                np.concatenate(self._read(split, np.asarray(windows)))
            )

        return read_ahead(
            in_order(
                self._windows(split), read, batch_size=max(batch_size // self.length, 1)
            )
        )

    def of_windows(self, sequences: Array | np.ndarray) -> Any:
        """Frame by frame: (windows x frames, positions, pixels)."""
        return self._swapped(sequences, self.positions)

    def to_windows(self, samples: Array | np.ndarray) -> Any:
        """Position by position."""
        return self._swapped(samples, self.length)

    def _swapped(self, samples: Any, first: int) -> Any:
        second, pixels = samples.shape[1:]
        return (
            samples.reshape(-1, first, second, pixels)
            .swapaxes(1, 2)
            .reshape(-1, first, pixels)
        )

    def _windows(self, split: str) -> int:
        return self.data.num_examples(split) // self.positions

    def _read(
        self, split: str, windows: np.ndarray
    ) -> UInt8[np.ndarray, "windows positions frames pixels"]:
        numbers = windows[:, None] * self.positions + np.arange(self.positions)
        return self.data.read(split, numbers.ravel()).reshape(
            *numbers.shape, self.length, -1
        )


def cleaned_frames(
    frames: UInt8[np.ndarray, "frames height width"],
    samples: Sequences,
    clean: Callable[[np.ndarray, int], Any],
) -> UInt8[np.ndarray, "frames height width"]:
    """Frames as a model cleans them, window by window. The last frame is repeated to
    fill the last window. ``clean`` maps samples of a window and the number of its first
    frame to pixels in [0, 1].
    """
    length, side = samples.length, samples.side
    padded, windows = (
        np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % length, axis=0)]),
        [],
    )
    for place in range(0, len(padded), length):
        window = samples.of_windows(
            patch_sequences(padded[place : place + length], side=side)
        )
        patches = to_bytes(
            samples.to_windows(np.asarray(clean(window, place), np.float32))
        )
        windows.append(
            frames_from(patches, (frames.shape[1], frames.shape[2]), side=side)
        )
    return np.concatenate(windows)[: len(frames)]


def keyed_batches(data: Any, split: str) -> Iterator[tuple[Batch, jax.Array]]:
    """Yields the batches of a split in order, each with the key of its noise.
    ``data`` may be samples."""
    return keyed(data.examples(split, batch_size=BATCH_SIZE))


def disturbed_windows(
    data: Any, split: str, spec: VideoSpec, disturbance: Disturbance, variance: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the sequences of several whole windows of a split, noisy and clean, in [0,
    1]. Frames are disturbed as in a camera: blur, across patches, then its noise, then
    the rest. A lost frame repeats the last that arrived.
    """
    side, size = math.isqrt(spec.token_dim), (spec.frame_side, spec.frame_side)
    positions, number = (spec.frame_side // side) ** 2, itertools.count()
    for batch in data.examples(
        split, batch_size=max(BATCH_SIZE // positions, 1) * positions
    ):
        clean = np.asarray(jax.jit(to_unit)(batch))
        windows = np.split(clean, len(clean) // positions)
        frames = [
            disturbed(
                frames_from(one, size, side=side), disturbance, variance, next(number)
            )
            for one in windows
        ]
        yield np.concatenate([patch_sequences(one, side=side) for one in frames]), clean


def disturbed(
    frames: Float[np.ndarray, "frames height width"],
    disturbance: Disturbance,
    variance: float,
    number: int,
) -> np.ndarray:
    """Disturbs the frames of a window by the draws of its number. Pixels become 0 or 1
    equally often. Beyond its edges a blurred frame is mirrored. Lost frames before the
    first that arrives are 0.
    """
    (kind, strength), key = (
        disturbance,
        jax.random.fold_in(jax.random.key(NOISE_SEED), number),
    )
    of_noise, of_loss = jax.random.split(key)
    noise = math.sqrt(variance) * np.asarray(jax.random.normal(of_noise, frames.shape))
    if kind == BLUR:
        return ndimage.gaussian_filter(frames, (0.0, strength, strength)) + noise
    noisy = frames + noise
    # draws of float32 never reach 1, so a share of 1 replaces everything
    if kind == SALT_AND_PEPPER:
        drawn = np.asarray(jax.random.uniform(of_loss, frames.shape))
        return np.where(drawn < strength, np.float32(drawn >= 0.5 * strength), noisy)
    places = np.arange(len(frames))
    arrived = np.asarray(jax.random.uniform(of_loss, places.shape)) >= strength
    last = np.maximum.accumulate(np.where(arrived, places, -1))
    return np.where((last >= 0)[:, None, None], noisy[last], np.float32(0.0))
