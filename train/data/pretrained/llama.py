"""Configurations of Llama's family in config.json and GGUF files, whose tensors are dequantised as they are read."""

import contextlib
import dataclasses
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unroll_jax.models import SCALINGS, DecoderConfig, RotaryScaling

from ...config.errors import UserError, one_line
from .architectures import check_required, given_values, make_config, named_values
from .folders import Index

GGUF_ARCHITECTURE = "llama"
# Fields of `DecoderConfig` by their names in config.json.
NUMBERS = {
    "vocabulary_size": "vocab_size",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
}
# Fields that config.json may leave out, and the only supported values of others.
DEFAULTS = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
REQUIRED = {"hidden_act": "silu", "partial_rotary_factor": 1.0}
BASE = 10000.0  # of the frequencies, where config.json has none


class Family(NamedTuple):
    """A ``model_type`` of `transformers`: its class, fields of `DecoderConfig`, and further required values."""

    architecture: str
    fields: dict[str, bool]
    required: dict[str, Any]


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", {}, {"attention_bias": False, "mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", {}, {"sliding_window": None}),
    "qwen2": Family("Qwen2ForCausalLM", {"qkv_bias": True}, {"use_sliding_window": False}),
    "qwen3": Family("Qwen3ForCausalLM", {"qk_norm": True}, {"use_sliding_window": False, "attention_bias": False}),
}
# Fields of `RotaryScaling` by their names in config.json.
SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}
PLAIN = ("F32", "F16")  # types of tensors that are not quantised
# The same in GGUF's metadata.
GGUF_NUMBERS = {
    "dim": "llama.embedding_length",
    "num_layers": "llama.block_count",
    "num_heads": "llama.attention.head_count",
    "hidden_dim": "llama.feed_forward_length",
    "max_positions": "llama.context_length",
    "norm_epsilon": "llama.attention.layer_norm_rms_epsilon",
}
# Names of tensors in files of `transformers`, and in GGUF, of the parts of our layers, and of the rest.
LAYER = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "query": ("self_attn.q_proj", "attn_q"),
    "key": ("self_attn.k_proj", "attn_k"),
    "value": ("self_attn.v_proj", "attn_v"),
    "output": ("self_attn.o_proj", "attn_output"),
    "feedforward_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
    "query_norm": ("self_attn.q_norm", "attn_q_norm"),
    "key_norm": ("self_attn.k_norm", "attn_k_norm"),
}
OTHERS = {
    ("embedding",): ("model.embed_tokens", "token_embd"),
    ("norm", "scale"): ("model.norm", "output_norm"),
    ("head", "embedding"): ("lm_head", "output"),
}
NAMES = {gguf: name for name, gguf in (*LAYER.values(), *OTHERS.values())}
PERMUTED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


def read_decoder_config(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """Returns the decoder of a config.json."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"{where} has model_type={kind!r}; it must be one of {', '.join(FAMILIES)}")
    window = {} if "sliding_window" in values else {"sliding_window": 4096}  # the default of transformers
    values = {**DEFAULTS, **window, **given_values(values)}
    check_required(values, REQUIRED | FAMILIES[kind].required, where=where)
    numbers = named_values(values, NUMBERS, where=where)
    if numbers["num_key_value_heads"] is None:
        numbers["num_key_value_heads"] = numbers["num_heads"]
    base, scaling = _rotary(values, where)
    numbers |= {"rotary_base": base, "rotary_scaling": scaling, "tied": bool(values.get("tie_word_embeddings"))}
    return decoder_config(numbers | FAMILIES[kind].fields, NUMBERS, where=where)


def family_of(config: DecoderConfig) -> str:
    """Returns the ``model_type`` that has a decoder's biases and norms; Mistral's is Llama's."""
    flags = {name: True for name in ("qkv_bias", "qk_norm") if getattr(config, name)}
    if len(flags) > 1:
        raise UserError(f"no model_type has both {' and '.join(flags)}; transformers cannot read this decoder")
    return next(kind for kind, family in FAMILIES.items() if family.fields == flags)


def config_values(config: DecoderConfig) -> dict[str, Any]:
    """Returns the fields of a config.json: the inverse of `read_decoder_config`."""
    values: dict[str, Any] = {"model_type": family_of(config), "hidden_act": REQUIRED["hidden_act"]}
    values |= {name: getattr(config, field) for field, name in NUMBERS.items()}
    values |= {"head_dim": config.head_size, "rope_theta": config.rotary_base, "tie_word_embeddings": config.tied}
    if (scaling := config.rotary_scaling) is not None:
        parts = {name: getattr(scaling, field) for field, name in _scaling_names(scaling.kind).items()}
        values["rope_scaling"] = {"rope_type": scaling.kind, **parts}
    return values


def decoder_config(numbers: Mapping[str, Any], names: Mapping[str, str], *, where: str) -> DecoderConfig:
    """Returns the decoder of these numbers; ``names`` are the file's. The default width of heads is left out: equal
    decoders have equal configurations."""
    config = make_config(DecoderConfig, numbers, names, where=where)
    default = config.num_heads * config.head_size == config.dim
    return dataclasses.replace(config, head_dim=None) if default else config


def read_scaling(kind: Any, values: Mapping[str, Any], *, where: str) -> RotaryScaling | None:
    """Returns the scaling of a kind, by the fields of `RotaryScaling`; None if the kind is "default" or None."""
    if kind in (None, "default", "none"):
        return None
    if kind not in SCALINGS:
        raise UserError(f"{where} scales rotary embeddings by {kind!r}; it must be one of {', '.join(SCALINGS)}")
    return make_config(RotaryScaling, {"kind": kind, **values}, {}, where=f"{where}, rotary scaling")


def _rotary(values: Mapping[str, Any], where: str) -> tuple[Any, RotaryScaling | None]:
    # transformers 5 writes rope_parameters with the base; earlier versions write rope_theta and rope_scaling.
    parts = [values.get(name, {}) for name in ("rope_scaling", "rope_parameters")]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{where} has a rope_scaling or rope_parameters that is not an object; copy the original again")
    rope = {key: value for part in parts for key, value in part.items() if value is not None}
    check_required(rope, {"partial_rotary_factor": 1.0}, where=where)
    kind = rope.get("rope_type", rope.get("type"))
    given = {field: rope[name] for field, name in _scaling_names(kind).items() if name in rope}
    if kind == "llama3":
        given.setdefault("original_positions", values["max_position_embeddings"])
    return rope.get("rope_theta", values.get("rope_theta", BASE)), read_scaling(kind, given, where=where)


def _scaling_names(kind: Any) -> dict[str, str]:
    return SCALING if kind == "llama3" else {"factor": "factor"}


class GGUFFiles:
    """The tensors of an open GGUF file by the names of `transformers`, dequantised to float32 when read, in our order:
    GGUF rotates neighbouring rows (2j, 2j + 1) of a head's queries and keys, we rows j and j + size / 2."""

    def __init__(self, where: str, reader: Any, dequantize: Callable[[np.ndarray, Any], np.ndarray]) -> None:
        self.where, self._dequantize = where, dequantize
        self.metadata = dict(reader.fields)
        self._tensors = {_renamed(tensor.name): tensor for tensor in reader.tensors}
        self.names = frozenset(self._tensors)

    def value(self, name: str, default: Any = None) -> Any:
        """Returns a value of the metadata, or a default."""
        field = self.metadata.get(name)
        try:
            return default if field is None else field.contents()
        except (ValueError, IndexError) as error:
            raise UserError(f"{self.where}: cannot read {name} ({one_line(error)}); copy it again") from error

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
        heads = self.value(GGUF_NUMBERS["num_heads"]) if query else _key_value_heads(self)
        rows = np.arange(self.shape(name)[0]).reshape(heads, -1, 2)
        return rows.swapaxes(1, 2).reshape(-1)


@contextlib.contextmanager
def open_gguf(file: Path) -> Iterator[GGUFFiles]:
    """Opens a GGUF file of Llama's architecture, as Mistral's are too."""
    try:
        gguf: Any = importlib.import_module("gguf")  # imported here: only GGUF files need it
    except ImportError as error:
        raise UserError(f"{file} needs the package gguf, which is missing; pip install gguf") from error
    try:
        reader = _bounded_reader(gguf)(file)
        files = GGUFFiles(str(file), reader, gguf.dequantize)
    except Exception as error:  # damaged files raise errors of many classes
        raise UserError(f"{file} cannot be read as GGUF ({one_line(error)}); copy it again") from error
    if (name := files.value("general.architecture")) != GGUF_ARCHITECTURE:
        raise UserError(f"{file} has general.architecture={name!r}; only {GGUF_ARCHITECTURE!r} is supported as GGUF")
    for tensor in reader.tensors:  # gguf.quants has a class for each type that it dequantises
        kind = tensor.tensor_type.name
        if kind not in PLAIN and not hasattr(gguf.quants, kind):
            raise UserError(f"{file}: the package gguf cannot dequantise {tensor.name} ({kind}); use safetensors")
    yield files


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
    missing = [name for name in GGUF_NUMBERS.values() if name not in files.metadata]
    if missing := missing + ["token_embd.weight"] * (table not in files.names):
        raise UserError(f"{where} has no {', '.join(missing)}; copy the original again")
    numbers = {field: files.value(name) for field, name in GGUF_NUMBERS.items()}
    numbers |= {
        "vocabulary_size": files.shape(table)[0],
        "num_key_value_heads": _key_value_heads(files),
        "head_dim": files.value("llama.attention.key_length"),
        "rotary_base": files.value("llama.rope.freq_base", 10000.0),
        "tied": "lm_head.weight" not in files.names,
    }
    config = decoder_config(numbers, GGUF_NUMBERS, where=where)
    required = {"llama.vocab_size": config.vocabulary_size, "llama.rope.dimension_count": config.head_size}
    check_required({name: files.value(name, value) for name, value in required.items()}, required, where=where)
    kind, factor = (files.value(f"llama.rope.scaling.{name}") for name in ("type", "factor"))
    scaling = read_scaling(kind, {"factor": factor}, where=where)
    return decoder_config({**numbers, "rotary_scaling": scaling}, GGUF_NUMBERS, where=where)


def _key_value_heads(files: GGUFFiles) -> int:
    return files.value("llama.attention.head_count_kv", files.value(GGUF_NUMBERS["num_heads"]))


def _renamed(name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in NAMES:
        return name
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{NAMES[match[2]]}.weight"
