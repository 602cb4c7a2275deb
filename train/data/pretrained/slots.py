"""Weights of pretrained encoders, of texts or of pictures, out of safetensors that are checked before they are read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import Encoder, EncoderConfig

from ...config.errors import UserError
from .architectures import Architecture
from .folders import SafetensorsFiles, check_layer_count, check_tensors, listed

# Names of our leaves in files; the first checkpoints of BERT call a norm's weights gamma and beta.
SUFFIXES = {"kernel": ("weight",), "embedding": ("weight",), "scale": ("weight", "gamma"), "bias": ("bias", "beta")}


class Slot(NamedTuple):
    """A leaf of our parameters, and the tensors that make it.

    Attributes:
      path: keys of the leaf.
      rows: names of tensors; those of a row are concatenated, the rows are stacked.
      shape: of each tensor.
      stacked: whether the leaf has an axis of layers.
    """

    path: tuple[str, ...]
    rows: list[list[str]]
    shape: tuple[int, ...]
    stacked: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all its tensors."""
        return [name for row in self.rows for name in row]


def read_weights(
    tensors: SafetensorsFiles, config: EncoderConfig, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the parameters of an `Encoder` and those of a `Head` that the file has, float32.

    A layer of the head is read if its weight or its bias is there: then both must be there and fit.
    """
    prefix = prefix_of(tensors, architecture)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), tokens)["params"]
    embeddings: dict[Any, Any] = traverse_util.flatten_dict({"embeddings": shapes["embeddings"]})
    slots = [
        Slot(path, [[_stored_name(tensors, prefix + architecture.embeddings[path[1]], path[2])]], leaf.shape)
        for path, leaf in embeddings.items()
    ]
    layers = layer_slots(tensors, shapes["layers"], architecture, num_layers=config.num_layers)
    heads = _head_slots(tensors, config, architecture, prefix)
    leaves = read_slots(tensors, [*slots, *layers, *heads], architecture, num_layers=config.num_layers)
    params = traverse_util.unflatten_dict(leaves)
    head = params.pop("head", {})
    return params, head


def prefix_of(tensors: SafetensorsFiles, architecture: Architecture) -> str:
    """Returns the prefix of the names of the encoder's tensors; empty in a file without a head."""
    return architecture.prefix if any(name.startswith(architecture.prefix) for name in tensors.names) else ""


def layer_slots(
    tensors: SafetensorsFiles, layers: Mapping[str, Mapping[str, Any]], architecture: Architecture, *, num_layers: int
) -> list[Slot]:
    """Returns slots of the parameters of stacked `unroll_jax.models.EncoderLayer`, given their shapes."""
    check_layer_count(tensors, num_layers)
    stem, slots = f"{prefix_of(tensors, architecture)}{architecture.layers}", []
    leaves: dict[Any, Any] = traverse_util.flatten_dict(layers)
    for (module, kind), leaf in leaves.items():
        pieces = architecture.layer[module]
        rows = [
            [_stored_name(tensors, f"{stem}.{layer}.{piece}", kind) for piece in pieces] for layer in range(num_layers)
        ]
        shape = (*leaf.shape[1:-1], leaf.shape[-1] // len(pieces))
        slots.append(Slot(("layers", module, kind), rows, shape[::-1], stacked=True))  # files have (out, in)
    return slots


def read_slots(
    tensors: SafetensorsFiles, slots: Sequence[Slot], architecture: Architecture, *, num_layers: int
) -> dict[tuple[str, ...], np.ndarray]:
    """Reads the leaves of slots by their paths, float32.

    Raises:
      UserError: if tensors are missing, do not fit or are not finite, or if the file has more layers.
    """
    stem = f"{prefix_of(tensors, architecture)}{architecture.layers}"
    layers = {int(match[1]) for name in tensors.names if (match := re.match(rf"{re.escape(stem)}\.(\d+)\.", name))}
    beyond = [f"{stem}.{layer}" for layer in sorted(layers) if layer >= num_layers]
    places = ((name, slot.shape) for slot in slots for name in slot.names)
    check_tensors(tensors, places, {f"layer(s) beyond num_layers={num_layers}": beyond})
    leaves = {slot.path: _joined(tensors, slot) for slot in slots}
    suspects = [name for slot in slots if not np.isfinite(leaves[slot.path]).all() for name in slot.names]
    if infinite := [name for name in suspects if not np.isfinite(_read(tensors, name)).all()]:
        raise UserError(f"{tensors.where} holds values that are not finite in {listed(infinite)}; copy it again")
    return leaves


def _stored_name(tensors: SafetensorsFiles, name: str, leaf: str) -> str:
    """Returns the name of a leaf of ours in the file; the default name if the file lacks it."""
    names = [f"{name}.{suffix}" for suffix in SUFFIXES[leaf]]
    return next((name for name in names if name in tensors.names), names[0])


def _head_slots(
    tensors: SafetensorsFiles, config: EncoderConfig, architecture: Architecture, prefix: str
) -> list[Slot]:
    # A bare BERT is written without the prefix, and with the pooler that heads are put on.
    hidden, slots = architecture.hidden[0] if prefix else architecture.hidden[0].removeprefix(architecture.prefix), []
    for part, name in {"hidden": hidden, "logits": architecture.logits}.items():
        present = [tensor for tensor in (f"{name}.weight", f"{name}.bias") if tensor in tensors.names]
        if present:
            # As many logits as classes; an empty tensor, or one without axes, does not have the shape (1, ...).
            rows = config.dim if part == "hidden" else max(*tensors.shape(present[0])[:1], 1, 1)
            slots.append(Slot(("head", part, "kernel"), [[f"{name}.weight"]], (rows, config.dim)))
            slots.append(Slot(("head", part, "bias"), [[f"{name}.bias"]], (rows,)))
    return slots


def _read(tensors: SafetensorsFiles, name: str) -> np.ndarray:
    return np.asarray(tensors.read(name), np.float32)


def _joined(tensors: SafetensorsFiles, slot: Slot) -> np.ndarray:
    rows = [np.concatenate([_read(tensors, name) for name in row]) for row in slot.rows]
    if slot.path[-1] == "kernel":
        rows = [row.T for row in rows]  # files have (out, in)
    return np.ascontiguousarray(np.stack(rows)) if slot.stacked else rows[0]
