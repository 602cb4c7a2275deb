"""Prepared records on the disk: one file for each feature of a split, read as
memory-mapped arrays; every record has a checksum."""

import array
import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config.errors import UserError
from ..system.files import read_object, write_json

FACTS = "facts.json"
TEXT = np.dtype(object)  # of a feature of texts, not all of them empty
AGAIN = "delete that folder and run again"

Record = Mapping[str, Any]
Values = dict[str, Any]  # of several records: an array or a list of texts a feature


class Originals(NamedTuple):
    """Originals to prepare: the dtype of each feature, with its shape, the records of
    the splits, and facts, complete once the records are read."""

    features: Mapping[str, np.dtype]
    splits: Mapping[str, Iterable[Record]]
    facts: dict[str, Any]


class Records:
    """The records of one split by number."""

    def __init__(
        self, folder: Path, split: str, features: Mapping[str, np.dtype]
    ) -> None:
        self._where = folder
        self._checksums = np.load(folder / f"{split}.checksums.npy")
        self._columns = {
            name: _column(folder / f"{split}.{name}", dtype, len(self))
            for name, dtype in features.items()
        }

    def __len__(self) -> int:
        return len(self._checksums)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Values:
        """Returns the features of the records of these numbers."""
        values = {name: column(numbers) for name, column in self._columns.items()}
        for record, expected in zip(
            zip(*values.values(), strict=True), self._checksums[numbers], strict=True
        ):
            if _checksum(record) != expected:
                raise damaged(self._where, "a record has another checksum")
        return {
            name: [text.decode() for text in each] if isinstance(each, list) else each
            for name, each in values.items()
        }


def write_records(folder: Path, originals: Originals) -> None:
    """Writes records one by one into a new folder; the facts come last."""
    folder.mkdir()
    for split, records in originals.splits.items():
        _write_split(folder, split, originals.features, records)
    features = {
        name: [dtype.base.str, dtype.shape]
        for name, dtype in originals.features.items()
    }
    write_json(folder / FACTS, {"features": features, "facts": originals.facts})


def open_records(
    folder: Path, splits: Iterable[str]
) -> tuple[dict[str, Records], dict[str, Any]]:
    """Opens the records of all splits, and returns them with the facts."""
    where = folder / FACTS
    stored = read_object(where, missing=f"{folder} has no {FACTS}; {AGAIN}", mend=AGAIN)
    features = {
        name: np.dtype((kind, tuple(shape)))
        for name, (kind, shape) in stored["features"].items()
    }
    records = {split: Records(folder, split, features) for split in splits}
    return records, stored["facts"]


def damaged(folder: Path, error: Exception | str) -> UserError:
    """Returns the error for prepared data that cannot be read."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"the prepared data in {folder} are damaged ({reason}); {AGAIN}")


def _write_split(
    folder: Path,
    split: str,
    features: Mapping[str, np.dtype],
    records: Iterable[Record],
) -> None:
    checksums = array.array("I")
    texts = [name for name, dtype in features.items() if dtype == TEXT]
    ends = {name: array.array("q", [0]) for name in texts}
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / f"{split}.{name}").open("wb"))
            for name in features
        }
        for record in records:
            encoded = {
                name: _encode(record[name], dtype) for name, dtype in features.items()
            }
            for name, content in encoded.items():
                files[name].write(content)
            for name in texts:
                ends[name].append(ends[name][-1] + len(encoded[name]))
            checksums.append(_checksum(encoded.values()))
    np.save(folder / f"{split}.checksums.npy", checksums)
    for name in texts:
        np.save(folder / f"{split}.{name}.ends.npy", ends[name])


def _encode(value: Any, dtype: np.dtype) -> bytes:
    return value.encode() if dtype == TEXT else np.asarray(value, dtype.base).tobytes()


def _checksum(values: Iterable[Any]) -> int:
    return functools.reduce(lambda before, each: zlib.crc32(each, before), values, 0)


def _column(
    path: Path, dtype: np.dtype, count: int
) -> Callable[[Sequence[int] | np.ndarray], Sequence[Any]]:
    """Returns a function of numbers of records: their arrays, or their texts."""
    if dtype != TEXT:
        return np.memmap(path, dtype.base, "r", shape=(count, *dtype.shape)).__getitem__
    ends = np.load(path.with_name(f"{path.name}.ends.npy"))
    content = np.memmap(path, np.uint8, "r", shape=(int(ends[-1]),))
    return lambda numbers: [
        content[ends[number] : ends[number + 1]].tobytes() for number in numbers
    ]
