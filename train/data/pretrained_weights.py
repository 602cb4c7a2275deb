"""Weights of a pretrained encoder and its head out of a safetensors file, which is checked before it is read."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import Encoder, EncoderConfig

from ..config.errors import UserError
from .pretrained_architectures import Architecture
from .pretrained_files import open_safetensors

FLOATS = ("F16", "BF16", "F32", "F64")
# What our leaves are called in files; the first checkpoints of BERT call a norm's weights gamma and beta.
SUFFIXES = {"kernel": ("weight",), "embedding": ("weight",), "scale": ("weight", "gamma"), "bias": ("bias", "beta")}


class Tensors(NamedTuple):
    """An open safetensors file, and the names of its tensors."""

    file: Path
    opened: Any
    names: frozenset[str]

    def stored_name(self, name: str, leaf: str) -> str:
        """Returns the name of a leaf of ours in the file; its usual name where the file lacks it."""
        names = [f"{name}.{suffix}" for suffix in SUFFIXES[leaf]]
        return next((name for name in names if name in self.names), names[0])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is there."""
        return tuple(self.opened.get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        """The dtype of a tensor that is there, as safetensors has it."""
        return str(self.opened.get_slice(name).get_dtype())

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32."""
        return np.asarray(self.opened.get_tensor(name), dtype=np.float32)


class Slot(NamedTuple):
    """A leaf of our parameters, and the tensors that make it."""

    path: tuple[str, ...]  # keys of the leaf
    rows: list[list[str]]  # names of tensors: those of one row are concatenated, the rows are stacked
    shape: tuple[int, ...]  # of each tensor
    stacked: bool = False  # whether the leaf has an axis of layers

    @property
    def names(self) -> list[str]:
        """The names of all its tensors."""
        return [name for row in self.rows for name in row]


@contextlib.contextmanager
def open_tensors(file: Path) -> Iterator[Tensors]:
    """Opens a safetensors file."""
    with open_safetensors(file) as opened:
        yield Tensors(file, opened, frozenset(opened.keys()))


def read_weights(
    tensors: Tensors, config: EncoderConfig, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of an `Encoder`, and those of a `Head` that the file has, float32; one error names all faults.

    A layer of the head is there if its weight or its bias is: then both must be, and fit.
    """
    prefix = prefix_of(tensors, architecture)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), tokens)["params"]
    embeddings: dict[Any, Any] = traverse_util.flatten_dict({"embeddings": shapes["embeddings"]})
    slots = [
        Slot(path, [[tensors.stored_name(prefix + architecture.embeddings[path[1]], path[2])]], leaf.shape)
        for path, leaf in embeddings.items()
    ]
    layers = layer_slots(tensors, shapes["layers"], architecture, num_layers=config.num_layers)
    heads = _head_slots(tensors, config, architecture, prefix)
    leaves = read_slots(tensors, [*slots, *layers, *heads], architecture, num_layers=config.num_layers)
    params = traverse_util.unflatten_dict(leaves)
    head = params.pop("head", {})
    return params, head


def prefix_of(tensors: Tensors, architecture: Architecture) -> str:
    """Returns the prefix of the names of the encoder's tensors; empty in a file without a head."""
    return architecture.prefix if any(name.startswith(architecture.prefix) for name in tensors.names) else ""


def layer_slots(
    tensors: Tensors, layers: Mapping[str, Mapping[str, Any]], architecture: Architecture, *, num_layers: int
) -> list[Slot]:
    """Slots of the parameters of stacked `unroll_jax.models.EncoderLayer`, given their shapes.

    Raises:
      UserError: if the file has fewer tensors than layers.
    """
    if num_layers > len(tensors.names):  # and be it billions: names of all their tensors would fill the memory
        raise UserError(
            f"{tensors.file} does not fit its config.json: num_layers={num_layers}, but {len(tensors.names)} "
            "tensors in all; copy both again"
        )
    stem, slots = f"{prefix_of(tensors, architecture)}{architecture.layers}", []
    leaves: dict[Any, Any] = traverse_util.flatten_dict(layers)
    for (module, kind), leaf in leaves.items():
        pieces = architecture.layer[module]
        rows = [
            [tensors.stored_name(f"{stem}.{layer}.{piece}", kind) for piece in pieces] for layer in range(num_layers)
        ]
        shape = (*leaf.shape[1:-1], leaf.shape[-1] // len(pieces))
        slots.append(Slot(("layers", module, kind), rows, shape[::-1], stacked=True))  # files have (out, in)
    return slots


def read_slots(
    tensors: Tensors, slots: Sequence[Slot], architecture: Architecture, *, num_layers: int
) -> dict[tuple[str, ...], np.ndarray]:
    """The leaves of slots by their paths, float32.

    Raises:
      UserError: naming all tensors that are missing, of another shape or kind, or not finite, and layers left over.
    """
    problems = _problems(tensors, slots, num_layers, f"{prefix_of(tensors, architecture)}{architecture.layers}")
    if problems:
        raise UserError(f"{tensors.file} does not fit its config.json: {'; '.join(problems)}")
    leaves = {slot.path: _joined(tensors, slot) for slot in slots}
    suspects = [name for slot in slots if not np.isfinite(leaves[slot.path]).all() for name in slot.names]
    if infinite := [name for name in suspects if not np.isfinite(tensors.read(name)).all()]:
        raise UserError(f"{tensors.file} holds numbers that are not finite in {', '.join(infinite)}; copy it again")
    return leaves


def _head_slots(tensors: Tensors, config: EncoderConfig, architecture: Architecture, prefix: str) -> Iterator[Slot]:
    # A bare BERT is written without the prefix, and with the pooler that heads are put on.
    hidden = architecture.hidden[0] if prefix else architecture.hidden[0].removeprefix(architecture.prefix)
    for part, name in {"hidden": hidden, "logits": architecture.logits}.items():
        present = [tensor for tensor in (f"{name}.weight", f"{name}.bias") if tensor in tensors.names]
        if not present:
            continue
        # As many logits as there are classes; a tensor without any, or without axes, is of another shape than (1, ...).
        rows = config.dim if part == "hidden" else max(*tensors.shape(present[0])[:1], 1, 1)
        yield Slot(("head", part, "kernel"), [[f"{name}.weight"]], (rows, config.dim))
        yield Slot(("head", part, "bias"), [[f"{name}.bias"]], (rows,))


def _problems(tensors: Tensors, slots: Sequence[Slot], num_layers: int, stem: str) -> list[str]:
    places = [(name, slot.shape) for slot in slots for name in slot.names]
    missing = [name for name, _ in places if name not in tensors.names]
    present = [(name, shape) for name, shape in places if name in tensors.names]
    wrong = [f"{name} is {stored}, not {shape}" for name, shape in present if (stored := tensors.shape(name)) != shape]
    kinds = [f"{name} is {kind}" for name, _ in present if (kind := tensors.kind(name)) not in FLOATS]
    layers = {int(match[1]) for name in tensors.names if (match := re.match(rf"{re.escape(stem)}\.(\d+)\.", name))}
    beyond = [f"{stem}.{layer}" for layer in sorted(layers) if layer >= num_layers]
    titles = {
        f"{len(missing)} tensor(s) missing": missing,
        f"{len(wrong)} of another shape": wrong,
        f"{len(kinds)} not of {', '.join(FLOATS)}": kinds,
        f"{len(beyond)} layer(s) beyond num_layers={num_layers}": beyond,
    }
    return [f"{title}: {', '.join(names)}" for title, names in titles.items() if names]


def _joined(tensors: Tensors, slot: Slot) -> np.ndarray:
    rows = [np.concatenate([tensors.read(name) for name in row]) for row in slot.rows]
    if slot.path[-1] == "kernel":
        rows = [row.T for row in rows]  # files have (out, in)
    return np.ascontiguousarray(np.stack(rows)) if slot.stacked else rows[0]
