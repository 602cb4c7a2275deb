"""Weights of a decoder: read from files straight onto the mesh, layer by layer, and written back."""

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from safetensors.numpy import save_file

from unroll_jax.models import Decoder, DecoderConfig

from ...config.errors import UserError
from ...system.files import write_json
from .folders import INDEX, ONE_FILE, TensorFiles, bytes_of, check_layer_count, check_tensors

Place = Callable[[Any], Any]  # from parameters as shapes to the sharding of each

# Names in files of the parts of our layers, and of the rest.
LAYER = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "feedforward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
OTHERS = {("embedding",): "model.embed_tokens", ("norm", "scale"): "model.norm", ("head", "embedding"): "lm_head"}
UNUSED = re.compile(r"rotary_emb\.inv_freq$")  # a table in old files of Llama, redundant with config.json


class Slot(NamedTuple):
    """A leaf of our parameters, and the tensors that make it."""

    path: tuple[str, ...]  # keys of the leaf
    names: list[str]  # of tensors, which are stacked where there is an axis of layers
    shape: tuple[int, ...]  # of the leaf
    stacked: bool

    @property
    def transposed(self) -> bool:
        """True if files have (out, in) and we have (in, out)."""
        return self.path[-1] == "kernel"

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of each tensor in the file."""
        layer_shape = self.shape[1:] if self.stacked else self.shape
        return layer_shape[::-1] if self.transposed else layer_shape


def read_decoder_weights(
    files: TensorFiles, config: DecoderConfig, *, dtype: Any = None, place: Place | None = None
) -> dict[str, Any]:
    """Reads the parameters of a `Decoder`; files are checked before any tensor is read.

    Every device reads the part of each tensor that it will hold. Stacks are filled layer by layer, so that the host
    never holds more than a layer of one leaf.

    Args:
      files: the tensors.
      config: of the decoder.
      dtype: of the parameters; None takes that of each tensor in the file.
      place: from the parameters as `jax.ShapeDtypeStruct` to a sharding of each; None is the first device.
    """
    check_layer_count(files, config.num_layers)
    slots = list(decoder_slots(config))
    places = [(name, slot.tensor_shape) for slot in slots for name in slot.names]
    known = {name for name, _ in places} | {"lm_head.weight"}  # which files of tied heads may hold too
    others = sorted(name for name in files.names - known if not UNUSED.search(name))
    check_tensors(files, places, {"unknown": others})
    dtypes = {slot.path: _dtype(files, slot) if dtype is None else np.dtype(dtype) for slot in slots}
    shapes = {slot.path: jax.ShapeDtypeStruct(slot.shape, dtypes[slot.path]) for slot in slots}
    shardings: dict[Any, Any] = dict.fromkeys(shapes, SingleDeviceSharding(jax.local_devices()[0]))
    if place is not None:
        shardings = traverse_util.flatten_dict(place(traverse_util.unflatten_dict(shapes)))
    leaves = {slot.path: _leaf(files, slot, dtypes[slot.path], shardings[slot.path]) for slot in slots}
    return traverse_util.unflatten_dict(leaves)


def write_decoder_weights(
    folder: Path, config: DecoderConfig, params: Any, *, dtype: Any = None, shard_bytes: int = 2_000_000_000
) -> None:
    """Writes parameters as safetensors files of up to ``shard_bytes``, with an index where they are several.

    The host holds one file's tensors at a time. Files of these names are overwritten.

    Args:
      folder: that exists.
      config: of the decoder.
      params: of a `Decoder`, without the outer key ``params``.
      dtype: of the file; None keeps each leaf's.
      shard_bytes: a larger tensor gets a file for itself.
    """
    leaves: dict[Any, Any] = traverse_util.flatten_dict(params)
    slots = [slot for slot in decoder_slots(config) if slot.path in leaves]
    sources = {name: (slot, number) for slot in slots for number, name in enumerate(slot.names)}
    sizes = {name: bytes_of(slot.tensor_shape, dtype or leaves[slot.path].dtype) for name, (slot, _) in sources.items()}
    parts: list[list[str]] = [[]]
    for name, size in sizes.items():
        if parts[-1] and sum(map(sizes.__getitem__, parts[-1])) + size > shard_bytes:
            parts.append([])
        parts[-1].append(name)
    files = [f"model-{place:05d}-of-{len(parts):05d}.safetensors" for place in range(1, len(parts) + 1)]
    files = [ONE_FILE] if len(parts) == 1 else files
    for file, names in zip(files, parts, strict=True):
        tensors = {name: _tensor(leaves, *sources[name], dtype) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(parts) > 1:
        places = {name: file for file, names in zip(files, parts, strict=True) for name in names}
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places})
    (folder / (ONE_FILE if len(parts) > 1 else INDEX)).unlink(missing_ok=True)  # of earlier weights


def decoder_slots(config: DecoderConfig) -> Iterator[Slot]:
    """Yields the slots of all leaves of a decoder's parameters."""
    shapes = jax.eval_shape(Decoder(config).init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
    leaves: dict[Any, Any] = traverse_util.flatten_dict(shapes["params"])
    for path, leaf in leaves.items():
        if path[0] != "layers":
            yield Slot(path, [f"{OTHERS[path]}.weight"], leaf.shape, stacked=False)
            continue
        names = [f"model.layers.{layer}.{LAYER[path[1]]}.weight" for layer in range(config.num_layers)]
        yield Slot(path, names, leaf.shape, stacked=True)


def _dtype(files: TensorFiles, slot: Slot) -> np.dtype:
    kinds = {kind for name in slot.names if (kind := files.dtype(name)) is not None}
    return np.dtype(jax.dtypes.canonicalize_dtype(functools.reduce(jnp.promote_types, kinds)))


def _leaf(files: TensorFiles, slot: Slot, dtype: np.dtype, sharding: Any) -> jax.Array:
    def read_part(name: str, index: Any) -> np.ndarray:
        part = files.read(name, index[::-1] if slot.transposed else index).astype(dtype, copy=False)
        if not np.isfinite(part).all():
            raise UserError(f"{files.where} holds values that are not finite in {name}; copy it again")
        return part.T if slot.transposed else part

    def placed(name: str, shape: tuple[int, ...], sharding: Any) -> jax.Array:
        return jax.make_array_from_callback(shape, sharding, functools.partial(read_part, name), dtype=dtype)

    if not slot.stacked:
        return placed(slot.names[0], slot.shape, sharding)
    stack = _zeros(slot.shape, dtype, sharding)
    for number, name in enumerate(slot.names):
        stack = _put(stack, placed(name, slot.shape[1:], _of_a_layer(sharding)), number, sharding)
    return stack


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _put(stack: jax.Array, layer: jax.Array, number: int, sharding: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(jax.lax.dynamic_update_index_in_dim(stack, layer, number, 0), sharding)


def _of_a_layer(sharding: Any) -> Any:
    """Returns the sharding of one layer of a stack."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    first, *rest = sharding.spec or (None,)
    if first is not None:
        raise ValueError(f"place must not shard the axis of layers, got {sharding.spec}; shard the axes of a layer")
    return NamedSharding(sharding.mesh, PartitionSpec(*rest))


def _tensor(leaves: dict[tuple[str, ...], Any], slot: Slot, number: int, dtype: Any) -> np.ndarray:
    leaf = leaves[slot.path]
    tensor = np.asarray(leaf[number] if slot.stacked else leaf)
    tensor = tensor.T if slot.transposed else tensor
    return np.ascontiguousarray(tensor if dtype is None else tensor.astype(dtype))
