"""Video as the papers use it: a sequence is one 16 x 16 patch position through 20 frames of a grey 160 x 160 clip."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from train.data.clips import NUM_FRAMES, PATCH_SIZE, SPLITS, Splits, patch_sequences, some_of, windows
from train.data.dataset import Dataset, open_prepared, prepare_from
from train.data.pixels import moments
from train.data.prepared import LocalBuilder, LocalInfo, Records, prepare_once
from train.data.source import Log, fingerprint_source, origin, reading
from train.data.sources import DataConfig, resolve
from train.errors import UserError

__all__ = ["Video", "VideoData", "load", "prepare"]

SECONDS_BETWEEN_LINES = 5.0  # of progress, while a split is prepared


class Video(LocalBuilder, skip_registration=True):  # pyright: ignore
    """Patch sequences as TFDS records: uint8 (20, 256), with clip, first frame and patch position.

    Args:
      data_dir: Where TFDS keeps the prepared data.
      splits: The clips to prepare; None to read data that are prepared.
      origin: What errors call the originals.
      log: Takes lines of progress.
    """

    VERSION = tfds.core.Version("1.1.0")  # of the records: count up when other code makes other ones

    def __init__(self, *, data_dir: Path, splits: Splits | None = None, origin: str = "", log: Log = print) -> None:
        self._clip_sets, self._origin, self._log = splits or {}, origin, log
        super().__init__(data_dir=str(data_dir))

    def _info(self) -> tfds.core.DatasetInfo:
        # Stored as bytes: TFDS would widen uint8 to 64-bit integers.
        sequence = tfds.features.Tensor(shape=(NUM_FRAMES, PATCH_SIZE**2), dtype=np.uint8, encoding="bytes")
        features = {"sequence": sequence, "clip": np.int32, "first_frame": np.int32, "position": np.int32}
        return LocalInfo(
            builder=self,
            description="Patch positions of grey video followed through 20 frames.",
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,  # batches are shuffled when read
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # the original files are at hand
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        histogram = np.zeros(256, np.int64)
        key, names = 0, []
        for clip, first_frame, window in self._windows(split, names):
            histogram += np.bincount(window.ravel(), minlength=256)
            for position, sequence in enumerate(patch_sequences(window)):
                yield key, {"sequence": sequence, "clip": clip, "first_frame": first_frame, "position": position}
                key += 1
        self._log(f"  {split}: {key} sequences, clips: {len(names)} ({some_of(names)})")
        if np.count_nonzero(histogram) < 2:
            raise UserError(
                f"{self._origin}: all frames of {split} are of one grey level ({np.argmax(histogram)}); there is "
                "nothing to learn or to judge: give other clips"
            )
        if split == "train":
            self.facts["pixel_std"] = float(moments(histogram)[1])

    def _windows(self, split: str, names: list[str]) -> Iterator[tuple[int, int, np.ndarray]]:
        num_clips, clips = self._clip_sets[split]
        spoken = time.monotonic()
        for count, clip in enumerate(clips):
            if time.monotonic() - spoken > SECONDS_BETWEEN_LINES:
                self._log(f"  {split}: {count} of {num_clips} clips")
                spoken = time.monotonic()
            names.append(clip.name)
            for index, window in enumerate(windows(clip.frames)):
                yield clip.number, index * NUM_FRAMES, window


class VideoData(Dataset[np.ndarray]):
    """Prepared video, read in batches of uint8 (batch, 20, 256) sequences.

    Attributes:
      pixel_std: Standard deviation of the clean train pixels, in [0, 1].
    """

    num_tokens = NUM_FRAMES
    token_dim = PATCH_SIZE**2

    def __init__(self, builder: LocalBuilder) -> None:
        self.pixel_std: float = builder.facts["pixel_std"]
        super().__init__(builder, _read_sequences)

    def num_sequences(self, split: str) -> int:
        """Returns how many sequences a split has."""
        return self.num_examples(split)

    def clips(self, split: str) -> np.ndarray:
        """Returns the clip that each sequence of a split comes from, int (num_sequences,); no splits share a clip."""
        records = self._split(split)
        return np.array(records.integers_of("clip", range(len(records))))


def load(config: DataConfig, *, log: Log = print) -> VideoData:
    """Opens the data that a config names, preparing them on first use.

    Raises:
      UserError: if the original files cannot be used, or the prepared data are damaged.
    """
    return open_prepared(prepare(config, log=log), lambda data_dir: VideoData(Video(data_dir=data_dir)))


def prepare(config: DataConfig, *, log: Log = print) -> Path:
    """Prepares the data that a config names, unless that is done, and returns the folder that holds them.

    Raises:
      UserError: if the original files cannot be used, or the folder cannot be written.
    """
    source, root = resolve(config)

    def write(data_dir: Path) -> None:
        with source.open(root, log) as splits:
            prepare_once(Video(data_dir=data_dir, splits=splits, origin=origin(config), log=log))

    with reading(config):
        key = f"{config.source}-{fingerprint_source(source, root)}"
        return prepare_from(Video, key, config.prepared, prepare=write, log=log)


def _read_sequences(records: Records, numbers: list[int]) -> np.ndarray:
    pixels = b"".join(records.bytes_of("sequence", numbers))
    return np.frombuffer(pixels, np.uint8).reshape(-1, NUM_FRAMES, PATCH_SIZE**2)
