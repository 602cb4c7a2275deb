"""Folders of pretrained weights in the layout of Hugging Face: local or on its hub,
read as JSON and safetensors."""

import base64
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from ...config.errors import UserError, one_line
from ...system.files import (
    check_regular,
    expanded,
    read_object,
    read_regular,
    strict_json,
)
from ..files import Log

FILES = ("config.json", "model.safetensors", "tokenizer.json")
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WEIGHTS = (ONE_FILE, INDEX)
SHARDS = "model-*.safetensors"
DTYPES = {"F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64}
SHOWN = 5  # tensors in one line
MOST_TOKENS = 1 << 24  # of a vocabulary. The largest of models has a million
# Characters that a normaliser or a decoder may put in the place of one: Unicode's
# compatibility forms have up to 18, of 33 bytes.
MOST_GROWTH = 256
# Files that are copied with a decoder.
COPIED = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt"),
)
TEMPLATE = "chat_template.jinja"

Index = tuple[slice, ...]


class Slot(NamedTuple):
    """A leaf of our parameters, and the tensors that make it."""

    path: tuple[str, ...]  # keys of the leaf
    # names of tensors. A row's tensors are concatenated, the rows are stacked
    rows: list[list[str]]
    shape: tuple[int, ...]  # of the leaf
    stacked: bool = False  # whether the leaf has an axis of layers

    @property
    def names(self) -> list[str]:
        """The names of all its tensors."""
        return [name for row in self.rows for name in row]

    @property
    def transposed(self) -> bool:
        """True if files have (out, in) and we have (in, out)."""
        return self.path[-1] == "kernel"

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of each tensor in the file."""
        shape = self.shape[1:] if self.stacked else self.shape
        first, *rest = shape[::-1] if self.transposed else shape
        return first // len(self.rows[0]), *rest


class SafetensorsFiles:
    """Open safetensors files, by the names of their tensors."""

    def __init__(self, where: str, tensors: dict[str, Any]) -> None:
        self.where = where
        self.names = frozenset(tensors)
        self._tensors = tensors

    def renamed(self, rename: Callable[[str], str]) -> "SafetensorsFiles":
        """Returns the same tensors by other names."""
        tensors = {rename(name): each for name, each in self._tensors.items()}
        return SafetensorsFiles(self.where, tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(self._tensors[name].get_shape())

    def dtype(self, name: str) -> np.dtype | None:
        """Returns the dtype of a tensor: one file may hold several."""
        kind = DTYPES.get(str(self._tensors[name].get_dtype()))
        return None if kind is None else np.dtype(kind)

    def read(self, name: str, index: Index) -> np.ndarray:
        """Reads a part of a tensor."""
        from safetensors import SafetensorError

        try:
            return np.asarray(self._tensors[name][index])
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{self.where}: cannot read {name} ({one_line(error)}); copy it again"
            ) from error


def find_folder(source: str, *, option: str = "pretrained", log: Log = print) -> Path:
    """Returns the folder of a model: a local one, or a repository of the hub, which
    is downloaded once."""
    folder = expanded(source, option)
    if source and folder.is_dir():  # an empty source is not the working directory
        return folder
    log(f"looking for {source} on the Hugging Face hub")
    # imported here: local folders do not need it
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=[*FILES, INDEX, SHARDS]))
    # of huggingface_hub, its HTTP client or the file system: no common base class
    except Exception as error:
        raise UserError(
            f"{option}={source} is not a folder, and the Hugging Face hub cannot"
            f" provide it ({one_line(error)}); without a network, copy"
            f" {', '.join(FILES)} into a folder and name that"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object from a file of a model's folder."""
    missing = f"{file.parent} has no {file.name}; copy it from the original"
    return read_object(file, missing=missing, mend="copy it again")


def read_tokenizer(folder: Path) -> Any:
    """Reads tokenizer.json of a folder as a ``tokenizers.Tokenizer``."""
    if not (file := folder / "tokenizer.json").exists():
        way_out = (
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
            " writes it"
        )
        raise UserError(f"{folder} has no {file.name}; {way_out}")
    content = read_regular(file, where=str(file), mend="copy it again")
    with usable_tokenizer(file):
        return make_tokenizer(content.decode())


def make_tokenizer(text: str) -> Any:
    """Makes a ``tokenizers.Tokenizer`` of its JSON; the error for numbers of tokens, or
    replacements of characters, that would fill memory is one line. The package makes a
    table as long as the largest number of a token, and pads and replaces to any length.
    """
    import tokenizers  # imported here: most runs need none

    values = strict_json(text)
    tables = (values.get("model"), values.get("padding"), values.get("added_tokens"))
    largest = _largest(tables)
    if largest >= MOST_TOKENS:
        raise ValueError(
            f"a token number or length is {largest}; it must be below {MOST_TOKENS:,}"
        )
    for name in ("normalizer", "decoder"):
        growth = _growth(values.get(name))
        if growth > MOST_GROWTH:
            raise ValueError(
                f"its {name} can make {growth:,} characters of one; it must make at"
                f" most {MOST_GROWTH}"
            )
    return tokenizers.Tokenizer.from_str(text)


def _largest(value: Any) -> int:
    """Returns the largest integer in a JSON value, or 0."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


def _growth(part: Any) -> int:
    """Returns the most characters that a normaliser or decoder puts in the place of
    one: those in a sequence multiply."""
    if isinstance(part, list):
        return math.prod(map(_growth, part))
    if not isinstance(part, dict):
        return 1
    if "precompiled_charsmap" in part:
        return _longest_of(part["precompiled_charsmap"])
    if "prepend" in part:
        return 1 + len(str(part["prepend"]))
    if "pattern" in part:
        # a regular expression may match nothing, before each character
        replaced = len(part["pattern"].get("String", ""))
        added = len(str(part.get("content", "")))
        return max(1, -(-added // replaced)) if replaced else 1 + added
    return _growth([*part.get("normalizers", []), *part.get("decoders", [])])


def _longest_of(charsmap: Any) -> int:
    """Returns the bytes of the longest replacement in a table of SentencePiece: the
    length of a tree, the tree, and texts that end in zeros."""
    table = base64.b64decode(charsmap or "")
    start = 4 + int.from_bytes(table[:4], "little")
    return max(map(len, table[start:].split(b"\0")), default=1) or 1


@contextlib.contextmanager
def usable_tokenizer(file: Path | str) -> Iterator[None]:
    """Reports an error of the package ``tokenizers`` in one line that names the
    file."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    # tokenizers has no error class, and a panic of Rust is not an Exception
    except BaseException as error:
        raise UserError(
            f"{file} cannot be used as a tokenizer ({one_line(error)}); copy it again"
        ) from error


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[SafetensorsFiles]:
    """Opens all safetensors files of a folder: model.safetensors, or the files in
    its index."""
    names = [ONE_FILE]
    if not (folder / ONE_FILE).is_file():
        names = _shards(folder)
    with contextlib.ExitStack() as stack:
        tensors: dict[str, Any] = {}
        for name in names:
            opened = stack.enter_context(open_safetensors(folder / name))
            for key in list(opened.keys()):
                tensors[key] = opened.get_slice(key)
        yield SafetensorsFiles(str(folder), tensors)


def open_safetensors(file: Path, *, mend: str = "copy it again") -> Any:
    """Opens a safetensors file, which must be a regular one."""
    # imported here: a configuration needs neither
    from safetensors import SafetensorError, safe_open

    check_regular(file, mend=mend)
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{file} cannot be read as safetensors ({one_line(error)}); {mend}"
        ) from error


def leaves_of(model: Any) -> dict[Any, Any]:
    """Returns the leaves of a model of tokens, as shapes, by their paths."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return traverse_util.flatten_dict(shapes["params"])


def check_layer_count(files: SafetensorsFiles, num_layers: int) -> None:
    """Checks that files hold at least one tensor per layer, before the names of all
    layers are made."""
    if num_layers > len(files.names):
        raise UserError(
            f"{files.where} has {len(files.names)} tensors in all, config.json"
            f" num_layers={num_layers}; copy both again"
        )


def check_slots(
    files: SafetensorsFiles, slots: Iterable[Slot], unknown: Iterable[str]
) -> None:
    """Checks that files hold floating tensors for slots, and no ``unknown`` ones, in
    one error."""
    problems: list[str] = []
    for slot in slots:
        for name in slot.names:
            if name not in files.names:
                problems.append(f"{name} is missing")
            elif files.shape(name) != slot.tensor_shape:
                shape = files.shape(name)
                problems.append(f"{name} is {shape}, not {slot.tensor_shape}")
            elif files.dtype(name) is None:
                problems.append(f"{name} is not of {', '.join(DTYPES)}")
    problems += [f"{name} is unknown" for name in sorted(unknown)]
    if problems:
        raise UserError(
            f"{files.where} does not fit config.json: {len(problems)} tensors, as"
            f" {'; '.join(problems[:SHOWN])}"
        )


def read_slots(
    files: SafetensorsFiles, slots: list[Slot], next_layer: str
) -> dict[Any, np.ndarray]:
    """Reads all leaves as float32, once they are checked. Tensors whose names begin
    with ``next_layer`` are unknown."""
    beyond = [name for name in files.names if name.startswith(next_layer)]
    check_slots(files, slots, beyond)
    return {slot.path: read_slot(files, slot, np.float32) for slot in slots}


def read_slot(
    files: SafetensorsFiles, slot: Slot, dtype: Any, index: Index | None = None
) -> np.ndarray:
    """Reads a leaf of our parameters, or a part of it. Values must be finite."""
    index = index or (slice(None),) * len(slot.shape)
    rows = slot.rows
    if slot.stacked:
        rows = rows[index[0]]
        index = index[1:]
    if slot.transposed:
        index = index[::-1]
    parts = []
    for names in rows:
        tensors = [files.read(name, index) for name in names]
        part = np.concatenate(tensors).astype(dtype, copy=False)
        if not np.isfinite(part).all():
            raise UserError(
                f"{files.where} holds values that are not finite in {names[0]}; copy it"
                " again"
            )
        parts.append(part.T if slot.transposed else part)
    return np.stack(parts) if slot.stacked else parts[0]


def _shards(folder: Path) -> list[str]:
    """Returns the names of the files in the index of a folder."""
    index = folder / INDEX
    if not index.is_file():
        raise UserError(
            f"{folder} has no {ONE_FILE} or {INDEX}, and pickles are never loaded; save"
            " the weights as safetensors"
        )
    places = read_json(index).get("weight_map")
    names = set(map(str, places.values())) if isinstance(places, dict) else set()
    if not names or any(Path(name).name != name for name in names):
        raise UserError(
            f"{index} has no weight_map of tensors to files of its folder; copy it"
        )
    return sorted(names)
