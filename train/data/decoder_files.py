"""Tensors of a decoder in safetensors files, one or many, each read by slices."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError

from ..config.errors import UserError, one_line
from .pretrained_files import INDEX, open_safetensors, read_json

Index = tuple[slice, ...]
DTYPES = {"F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64}
ONE_FILE = "model.safetensors"


class TensorFiles(Protocol):
    """Tensors by the names that `transformers` gives them, (out, in) where they are matrices."""

    where: str
    names: frozenset[str]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        ...

    def dtype(self, name: str) -> np.dtype | None:
        """The dtype that a tensor is read in; None where it is no floating one."""
        ...

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor, and no more of the file than that needs."""
        ...


class SafetensorsFiles:
    """Open safetensors files, by the names of their tensors."""

    def __init__(self, where: str, tensors: dict[str, Any]) -> None:
        self.where, self.names, self._tensors = where, frozenset(tensors), tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._tensors[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> np.dtype | None:
        """The dtype of this tensor: one file may hold several."""
        kind = DTYPES.get(str(self._tensors[name].get_slice(name).get_dtype()))
        return None if kind is None else np.dtype(kind)

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor."""
        try:
            return np.asarray(self._tensors[name].get_slice(name)[index])
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.where}: {name} cannot be read ({one_line(error)}); copy it again") from error


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[SafetensorsFiles]:
    """Opens all safetensors files of a folder: model.safetensors, or those of its index."""
    index = folder / INDEX
    if (folder / ONE_FILE).is_file():
        places, where = None, str(folder / ONE_FILE)
    elif index.is_file():
        places, where = _weight_map(index), str(index)
    else:
        raise UserError(f"{folder} holds neither {ONE_FILE} nor {INDEX}; save the weights as safetensors there")
    with contextlib.ExitStack() as stack:
        opened = {
            file: stack.enter_context(open_safetensors(folder / file))
            for file in ([ONE_FILE] if places is None else sorted(set(places.values())))
        }
        if places is None:
            places = dict.fromkeys(opened[ONE_FILE].keys(), ONE_FILE)
        present = {file: set(tensors.keys()) for file, tensors in opened.items()}
        if lost := [name for name, file in places.items() if name not in present[file]]:
            raise UserError(
                f"{where} names {lost[0]}{_others(lost)}, which {places[lost[0]]} does not hold; copy both again"
            )
        yield SafetensorsFiles(where, {name: opened[file] for name, file in places.items()})


def bytes_of(shape: tuple[int, ...], dtype: Any) -> int:
    """Returns the number of bytes of an array."""
    return math.prod(shape) * np.dtype(dtype).itemsize


def _weight_map(index: Path) -> dict[str, str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{index} has no weight_map of tensors to files; copy it again")
    files = sorted(set(places.values()))
    if outside := [file for file in files if Path(file).name != file]:
        raise UserError(f"{index} names {outside[0]!r}, which is no file of its folder; copy it again")
    if missing := [file for file in files if not (index.parent / file).is_file()]:
        raise UserError(
            f"{index.parent} lacks {', '.join(missing)}, of the {len(files)} files that {index.name} names; copy them"
        )
    return places


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
