"""Llama's config.json, read and written: its names for the fields of `DecoderConfig`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from unroll_jax.models import SCALINGS, DecoderConfig, RotaryScaling

from ...config.errors import UserError
from .architectures import check_required, given_values, make_config, named_values

MODEL_TYPE = "llama"
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
REQUIRED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0}
BASE = 10000.0  # of the frequencies, where config.json has none
# Fields of `RotaryScaling` by their names in config.json.
SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}


def read_decoder_config(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """Returns the decoder of a config.json."""
    if (name := values.get("model_type")) != MODEL_TYPE:
        raise UserError(f"{where} has model_type={name!r}; only {MODEL_TYPE!r} is supported")
    values = {**DEFAULTS, **given_values(values)}
    check_required(values, REQUIRED, where=where)
    numbers = named_values(values, NUMBERS, where=where)
    if numbers["num_key_value_heads"] is None:
        numbers["num_key_value_heads"] = numbers["num_heads"]
    base, scaling = _rotary(values, where)
    tied = bool(values.get("tie_word_embeddings"))
    return decoder_config(
        {**numbers, "rotary_base": base, "rotary_scaling": scaling, "tied": tied}, NUMBERS, where=where
    )


def decoder_config(numbers: Mapping[str, Any], names: Mapping[str, str], *, where: str) -> DecoderConfig:
    """Returns the decoder of these numbers; ``names`` are the file's.

    The default width of heads is left out, so that equal decoders have equal configurations.
    """
    config = make_config(DecoderConfig, numbers, names, where=where)
    default = config.num_heads * config.head_size == config.dim
    return dataclasses.replace(config, head_dim=None) if default else config


def decoder_values(config: DecoderConfig) -> dict[str, Any]:
    """Returns the values of config.json for a decoder, by names that every version of `transformers` reads."""
    scaling = config.rotary_scaling
    values = {name: getattr(config, field) for field, name in NUMBERS.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": MODEL_TYPE,
        **values,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": config.rotary_base,
        "rope_scaling": None if scaling is None else _scaling_values(scaling),
        "tie_word_embeddings": config.tied,
    }


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
    names = SCALING if kind == "llama3" else {"factor": "factor"}
    given = {field: rope[name] for field, name in names.items() if name in rope}
    if kind == "llama3":
        given.setdefault("original_positions", values["max_position_embeddings"])
    return rope.get("rope_theta", values.get("rope_theta", BASE)), read_scaling(kind, given, where=where)


def _scaling_values(scaling: RotaryScaling) -> dict[str, Any]:
    names = SCALING if scaling.kind == "llama3" else {"factor": "factor"}
    return {"rope_type": scaling.kind} | {name: getattr(scaling, field) for field, name in names.items()}
