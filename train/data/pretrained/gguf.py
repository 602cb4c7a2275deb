"""Decoders out of GGUF files: their configuration, and tensors that are dequantised as they are read."""

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unroll_jax.models import DecoderConfig

from ...config.errors import UserError, one_line
from .architectures import check_required
from .folders import Index
from .llama import decoder_config, read_scaling

ARCHITECTURE = "llama"
PLAIN = ("F32", "F16")  # types of tensors that are not quantised
# Fields of `DecoderConfig` by their names in GGUF's metadata.
NUMBERS = {
    "dim": "llama.embedding_length",
    "num_layers": "llama.block_count",
    "num_heads": "llama.attention.head_count",
    "hidden_dim": "llama.feed_forward_length",
    "max_positions": "llama.context_length",
    "norm_epsilon": "llama.attention.layer_norm_rms_epsilon",
}
# Names of `transformers` for the parts of GGUF's names.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PERMUTED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


class GGUFFiles:
    """The tensors of an open GGUF file by the names of `transformers`, dequantised to float32 when read.

    GGUF rotates neighbouring rows (2j, 2j + 1) of a head's queries and keys, `transformers` and we rows j and
    j + size / 2: they are read in our order.
    """

    def __init__(self, where: str, reader: Any, dequantize: Callable[[np.ndarray, Any], np.ndarray]) -> None:
        self.where, self._dequantize = where, dequantize
        self.metadata = dict(reader.fields)
        self._tensors = {_renamed(tensor.name): tensor for tensor in reader.tensors}
        self.names = frozenset(self._tensors)

    def value(self, name: str, default: Any = None) -> Any:
        """Returns a value of the metadata, or a default."""
        field = self.metadata.get(name)
        return default if field is None else field.contents()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def dtype(self, name: str) -> np.dtype | None:
        """Returns the dtype that all tensors are dequantised to."""
        return np.dtype(np.float32)

    def read(self, name: str, index: Index) -> np.ndarray:
        """Reads a part of a tensor; only its rows are dequantised."""
        tensor = self._tensors[name]
        rows, *columns = index
        data = tensor.data[self._order(name)[rows] if name.endswith(PERMUTED) else rows]
        return self._dequantize(np.ascontiguousarray(data), tensor.tensor_type)[(slice(None), *columns)]

    def _order(self, name: str) -> np.ndarray:
        """Returns the row of the file for each of our rows."""
        query = name.endswith(PERMUTED[0])
        heads = self.value(NUMBERS["num_heads"]) if query else _key_value_heads(self)
        rows = np.arange(self.shape(name)[0]).reshape(heads, -1, 2)
        return rows.swapaxes(1, 2).reshape(-1)


@contextlib.contextmanager
def open_gguf(file: Path) -> Iterator[GGUFFiles]:
    """Opens a GGUF file of Llama's architecture."""
    try:
        gguf: Any = importlib.import_module("gguf")  # imported here: only GGUF files need it
    except ImportError as error:
        raise UserError(f"{file} needs the package gguf, which is missing; pip install gguf") from error
    try:
        reader = _bounded_reader(gguf)(file)
    except Exception as error:  # damaged files raise errors of many classes
        raise UserError(f"{file} cannot be read as GGUF ({one_line(error)}); copy it again") from error
    architecture = reader.fields.get("general.architecture")
    name = None if architecture is None else architecture.contents()
    if name != ARCHITECTURE:
        raise UserError(f"{file} has general.architecture={name!r}; only {ARCHITECTURE!r} is supported")
    for tensor in reader.tensors:  # gguf.quants has a class for each type that it dequantises
        kind = tensor.tensor_type.name
        if kind not in PLAIN and not hasattr(gguf.quants, kind):
            raise UserError(f"{file}: the package gguf cannot dequantise {tensor.name} ({kind}); use safetensors")
    yield GGUFFiles(str(file), reader, gguf.dequantize)


def _bounded_reader(gguf: Any) -> Any:
    """Returns a reader that stops at the end of the file: gguf's reader follows any count in a header."""

    class BoundedReader(gguf.GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("the file ends early")
            return super()._get(offset, dtype, count, override_order)

    return BoundedReader


def gguf_config(files: GGUFFiles) -> DecoderConfig:
    """Returns the decoder that the metadata of a GGUF file describes."""
    where, table = files.where, "model.embed_tokens.weight"
    missing = [name for name in NUMBERS.values() if name not in files.metadata]
    if missing := missing + ["token_embd.weight"] * (table not in files.names):
        raise UserError(f"{where} has no {', '.join(missing)}; copy the original again")
    numbers = {field: files.value(name) for field, name in NUMBERS.items()}
    numbers |= {
        "vocabulary_size": files.shape(table)[0],
        "num_key_value_heads": _key_value_heads(files),
        "head_dim": files.value("llama.attention.key_length"),
        "rotary_base": files.value("llama.rope.freq_base", 10000.0),
        "tied": "lm_head.weight" not in files.names,
    }
    config = decoder_config(numbers, NUMBERS, where=where)
    required = {"llama.vocab_size": config.vocabulary_size, "llama.rope.dimension_count": config.head_size}
    check_required({name: files.value(name, value) for name, value in required.items()}, required, where=where)
    kind, factor = (files.value(f"llama.rope.scaling.{name}") for name in ("type", "factor"))
    scaling = read_scaling(kind, {"factor": factor}, where=where)
    return decoder_config({**numbers, "rotary_scaling": scaling}, NUMBERS, where=where)


def _key_value_heads(files: GGUFFiles) -> int:
    return files.value("llama.attention.head_count_kv", files.value(NUMBERS["num_heads"]))


def _renamed(name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in NAMES:
        return name
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{NAMES[match[2]]}.weight"
