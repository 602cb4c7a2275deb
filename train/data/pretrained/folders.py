"""Folders of pretrained weights in the layout of Hugging Face: local or on its hub,
read as JSON and safetensors."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...config.errors import UserError, one_line
from ...system.files import expanded, read_object, strict_json
from ...system.reading import check_regular, read_regular
from ..files import Log

FILES = ("config.json", "model.safetensors", "tokenizer.json")
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
DTYPES = {"F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64}
SHOWN = 5  # names in one line
MOST_TOKENS = 1 << 24  # of a vocabulary; the largest of models has a million
# Files that are copied with a decoder.
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
COPIED += ("added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt")
TEMPLATE = "chat_template.jinja"

Index = tuple[slice, ...]


class Slot(NamedTuple):
    """A leaf of our parameters, and the tensors that make it."""

    path: tuple[str, ...]  # keys of the leaf
    # names of tensors; a row's tensors are concatenated, the rows are stacked
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
        self.where, self.names, self._tensors = where, frozenset(tensors), tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(self._tensors[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> np.dtype | None:
        """Returns the dtype of a tensor: one file may hold several."""
        kind = DTYPES.get(str(self._tensors[name].get_slice(name).get_dtype()))
        return None if kind is None else np.dtype(kind)

    def read(self, name: str, index: Index = (slice(None),)) -> np.ndarray:
        """Reads a part of a tensor."""
        from safetensors import SafetensorError

        try:
            return np.asarray(self._tensors[name].get_slice(name)[index])
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
        folder = Path(snapshot_download(source, allow_patterns=[*FILES, INDEX, SHARDS]))
    # of huggingface_hub, its HTTP client or the file system: no common base class
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        given = f"{option}{' ' if option.startswith('--') else '='}{source}"
        raise UserError(
            f"{given} is not a folder, and the Hugging Face hub cannot provide it"
            f" ({reason}); without a network, copy {', '.join(FILES)} into a folder and"
            " name that"
        ) from error
    return folder


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
    """Makes a ``tokenizers.Tokenizer`` of its JSON; the error for numbers of tokens
    that would fill memory is one line. The package makes a table as long as the largest
    number of a token, and pads to any length.
    """
    import tokenizers  # imported here: most runs need none

    values = strict_json(text)
    vocabulary, padding = (
        (values.get("model") or {}).get("vocab"),
        (values.get("padding") or {}).get("strategy"),
    )
    numbers = [token.get("id") for token in values.get("added_tokens") or ()]
    numbers += vocabulary.values() if isinstance(vocabulary, dict) else ()
    numbers += padding.values() if isinstance(padding, dict) else ()
    if bad := [
        number
        for number in numbers
        if type(number) is not int or not 0 <= number < MOST_TOKENS
    ]:
        raise ValueError(
            f"a token number or length is {bad[0]!r:.40}; it must be below"
            f" {MOST_TOKENS:,}"
        )
    return tokenizers.Tokenizer.from_str(text)


@contextlib.contextmanager
def usable_tokenizer(file: Path) -> Iterator[None]:
    """Reports an error of the package ``tokenizers`` in one line that names the
    file."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    # tokenizers has no error class, and a panic of Rust is not an Exception
    except BaseException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{file} cannot be used as a tokenizer ({reason}); copy it again"
        ) from error


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[SafetensorsFiles]:
    """Opens all safetensors files of a folder: model.safetensors, or the files in
    its index."""
    index = folder / INDEX
    if (folder / ONE_FILE).is_file():
        places, where = None, str(folder / ONE_FILE)
    elif index.is_file():
        places, where = _weight_map(index), str(index)
    else:
        pickles = sorted(
            path.name for path in folder.iterdir() if path.suffix in PICKLES
        )
        instead = (
            f" but {', '.join(pickles)}, and pickles are never loaded"
            if pickles
            else f" or {INDEX}"
        )
        raise UserError(
            f"{folder} has no {ONE_FILE}{instead}; save the weights as safetensors"
        )
    with contextlib.ExitStack() as stack:
        files = [ONE_FILE] if places is None else sorted(set(places.values()))
        opened = {
            file: stack.enter_context(open_safetensors(folder / file)) for file in files
        }
        if places is None:
            places = dict.fromkeys(opened[ONE_FILE].keys(), ONE_FILE)
        present = {file: set(tensors.keys()) for file, tensors in opened.items()}
        if lost := [name for name, file in places.items() if name not in present[file]]:
            raise UserError(
                f"{where} lists {listed(lost)}, missing from {places[lost[0]]}; copy"
                " both again"
            )
        yield SafetensorsFiles(
            where, {name: opened[file] for name, file in places.items()}
        )


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


def check_layer_count(files: SafetensorsFiles, num_layers: int) -> None:
    """Checks that files hold at least one tensor per layer, before the names of all
    layers are made."""
    if num_layers > len(files.names):
        count = f"{len(files.names)} tensors in all"
        raise UserError(
            f"{files.where} has {count}, config.json num_layers={num_layers}; copy both"
            " again"
        )


def check_slots(
    files: SafetensorsFiles, slots: Iterable[Slot], others: Mapping[str, Sequence[str]]
) -> None:
    """Checks that files hold floating tensors for slots, in one error; ``others``
    describes unexpected names."""
    places = [(name, slot.tensor_shape) for slot in slots for name in slot.names]
    present = [(name, shape) for name, shape in places if name in files.names]
    wrong = [
        f"{name} is {stored}, not {shape}"
        for name, shape in present
        if (stored := files.shape(name)) != shape
    ]
    titles = {
        "missing": [name for name, _ in places if name not in files.names],
        "of another shape": wrong,
        f"not of {', '.join(DTYPES)}": [
            name for name, _ in present if files.dtype(name) is None
        ],
        **others,
    }
    if problems := [
        f"{len(names)} {title}: {listed(names)}"
        for title, names in titles.items()
        if names
    ]:
        raise UserError(
            f"{files.where} does not fit config.json: {'; '.join(problems)}"
        )


def check_finite(tensor: np.ndarray, name: str, where: str) -> np.ndarray:
    """Returns a tensor, all of whose values are finite."""
    if not np.isfinite(tensor).all():
        raise UserError(
            f"{where} holds values that are not finite in {name}; copy it again"
        )
    return tensor


def read_slot(files: SafetensorsFiles, slot: Slot) -> np.ndarray:
    """Reads the leaf of a slot, in float32."""

    def read(name: str) -> np.ndarray:
        return check_finite(np.asarray(files.read(name), np.float32), name, files.where)

    rows = [np.concatenate([read(name) for name in row]) for row in slot.rows]
    rows = [row.T for row in rows] if slot.transposed else rows
    return np.ascontiguousarray(np.stack(rows)) if slot.stacked else rows[0]


def listed(names: Sequence[str]) -> str:
    """Returns the first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _weight_map(index: Path) -> dict[str, str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} has no weight_map of tensors to files; copy it again")
    for file in places.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{index} lists {file!r}, not a file of its folder")
    return places
