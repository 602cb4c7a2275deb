"""Data sets prepared once: TFDS builders written as array_record, whole or not at all, and read without TensorFlow."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from google.protobuf.message import DecodeError
from tensorflow_datasets.core.constants import INCOMPLETE_PREFIX
from tensorflow_datasets.proto import tf_example_pb2

from train.errors import StorageError, UserError
from train.home import expanded
from train.storage import refusal

__all__ = ["ELSEWHERE", "LocalBuilder", "LocalInfo", "Records", "damaged", "prepare_once", "prepared_root"]

# The way out where prepared data cannot be written.
ELSEWHERE = "name another place with data.prepared or UNROLL_PREPARED"
TOGETHER = 1024  # records fetched in one call, which takes a third of the time of one call each


class LocalInfo(tfds.core.DatasetInfo):
    """A `DatasetInfo` that never looks for copies elsewhere (TFDS leaves a temporary folder behind at each look)."""

    def initialize_from_bucket(self) -> None:
        """Does nothing."""


class LocalBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # pyright: ignore
    """A builder over files at hand: `LocalInfo` describes it, and TFDS says nothing of downloads."""

    @property
    def facts(self) -> tfds.core.MetadataDict:
        """What is known of the data as a whole; filled while they are prepared, kept beside them as JSON."""
        assert isinstance(self.info.metadata, tfds.core.MetadataDict)
        return self.info.metadata

    def _log_download_bytes(self) -> None:
        pass

    def _log_download_done(self) -> None:
        pass


def prepared_root(prepared: str | None) -> Path:
    """Returns the folder that prepared data live in: the given one, $UNROLL_PREPARED, or ~/.cache/unroll_jax.

    Raises:
      UserError: if it is in the home folder of nobody.
    """
    return expanded(prepared or os.environ.get("UNROLL_PREPARED") or "~/.cache/unroll_jax", "data.prepared")


def prepare_once(builder: LocalBuilder) -> None:
    """Writes a builder's data as array_record, unless they are there.

    TFDS writes beside the final folder and renames at the end, so a killed preparation leaves nothing that could be
    read. Of two processes that prepare the same data at once, the second waits and finds the work done.

    Raises:
      UserError: if the folder cannot be written.
    """
    folder = Path(builder.data_dir)  # ends in the builder's name and version
    tfds.disable_progress_bar()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / ".lock"):
            _sweep(folder.parent)
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # array_record quotes the system in a RuntimeError
        words = error.strerror if isinstance(error, OSError) else refusal(error)
        if words is None:
            raise
        raise StorageError(f"cannot write prepared data to {folder.parent} ({words}); {ELSEWHERE}") from error


class Records:
    """The records of one split by number, each a mapping from feature name to its bytes or integers as stored.

    TFDS's own decoding takes 25 microseconds a record, several times what reading it takes, so records are parsed
    here; `DeserializeMethod.DESERIALIZE_NO_DECODE`, which would do it, needs TensorFlow.
    """

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str) -> None:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        self._source = builder.as_data_source(split, deserialize_method=raw)  # pyright: ignore (a decorator hides it)
        self._folder = Path(builder.data_dir)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Sequence[int], *features: str) -> list[tuple[Any, ...]]:
        """Returns the named features of each of the records, as stored: bytes, or one integer."""
        parse = tf_example_pb2.Example.FromString  # pyright: ignore (protobuf makes its classes when imported)
        rows = []
        try:
            for start in range(0, len(indices), TOGETHER):
                for record in self._source.__getitems__(list(indices[start : start + TOGETHER])):
                    found = parse(record).features.feature
                    rows.append(tuple(_stored(found[name]) for name in features))
        except (RuntimeError, OSError, DecodeError) as error:
            raise damaged(self._folder, error) from error
        return rows

    def bytes_of(self, feature: str, indices: Sequence[int]) -> list[bytes]:
        """Returns a feature stored as bytes, for each of the records."""
        return [value for (value,) in self.read(indices, feature)]

    def integers_of(self, feature: str, indices: Sequence[int]) -> list[int]:
        """Returns a feature stored as one integer, for each of the records."""
        return [value for (value,) in self.read(indices, feature)]


def damaged(folder: Path, error: Exception) -> UserError:
    """Returns the error that tells how to mend a prepared folder."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"the prepared data in {folder} are damaged ({reason}); delete that folder and run again")


def _stored(feature: Any) -> bytes | int:
    stored = feature.bytes_list.value or feature.int64_list.value
    return stored[0]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a lock that the system takes back from a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep(folder: Path) -> None:
    """Deletes what killed preparations left; the lock is held, so none is under way."""
    for leftover in folder.glob(f"{INCOMPLETE_PREFIX}*"):
        shutil.rmtree(leftover)
