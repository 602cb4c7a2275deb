"""Llama's config.json: what it calls the numbers of our decoders, read and written."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from unroll_jax.models import SCALINGS, DecoderConfig, RotaryScaling

from ..config.errors import UserError
from .pretrained_architectures import LARGEST

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
# What config.json may leave out, and values that others would make another network.
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
    """The decoder that the values of a config.json describe; errors name the file, the value and what is known."""
    if (name := values.get("model_type")) != MODEL_TYPE:
        raise UserError(f"{where} has model_type={name!r}; the one that is known is {MODEL_TYPE!r}")
    values = {key: value for key, value in values.items() if value is not None}  # null stands for the usual one
    for field, wanted in REQUIRED.items():
        if (given := values.get(field, wanted)) != wanted:
            raise UserError(f"{where} has {field}={given!r}; only {field}={wanted!r} is supported")
    values = {**DEFAULTS, **values}
    if missing := [name for name in NUMBERS.values() if name not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}; copy the original again")
    numbers = {field: values[name] for field, name in NUMBERS.items()}
    for field, value in numbers.items():
        if field != "norm_epsilon" and value is not None and not (type(value) is int and abs(value) < LARGEST):
            raise UserError(f"{where} has {NUMBERS[field]}={value!r}; it must be an integer below 2**31")
    if numbers["num_key_value_heads"] is None:
        numbers["num_key_value_heads"] = numbers["num_heads"]
    base, scaling = _rotary(values, where)
    return checked_config(
        {**numbers, "rotary_base": base, "rotary_scaling": scaling, "tied": bool(values.get("tie_word_embeddings"))},
        NUMBERS,
        where=where,
    )


def checked_config(numbers: Mapping[str, Any], names: Mapping[str, str], *, where: str) -> DecoderConfig:
    """The decoder of these numbers; errors name them as the file does.

    A width of heads that is the usual one is left out, so that equal decoders have equal configurations.
    """
    try:
        config = DecoderConfig(**numbers)
        usual = config.num_heads * config.head_size == config.dim
        return dataclasses.replace(config, head_dim=None) if usual else config
    except (TypeError, ValueError) as error:
        words = re.findall(r"\w+", str(error))
        there = ", ".join(f"{field} is {name}" for field, name in names.items() if field in words)
        raise UserError(f"{where}: {error}{f' ({there} there)' if there else ''}") from error


def decoder_values(config: DecoderConfig) -> dict[str, Any]:
    """Returns the values of config.json for a decoder, in the names that every version of `transformers` reads."""
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
    """The scaling of a kind, by `RotaryScaling`'s names; None where the kind is "default" or none."""
    if kind in (None, "default", "none"):
        return None
    if kind not in SCALINGS:
        raise UserError(
            f"{where} has rotary embeddings scaled by {kind!r}; the scalings known are {', '.join(SCALINGS)}"
        )
    try:
        return RotaryScaling(kind, **values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} has a rotary scaling that cannot be: {error}; copy the original again") from error


def _rotary(values: Mapping[str, Any], where: str) -> tuple[Any, RotaryScaling | None]:
    # transformers 5 writes rope_parameters, base included; before it wrote rope_theta and rope_scaling.
    parts = [values.get(name, {}) for name in ("rope_scaling", "rope_parameters")]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{where} has a rope_scaling or rope_parameters that is no object; copy the original again")
    rope = {key: value for part in parts for key, value in part.items() if value is not None}
    if (share := rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UserError(f"{where} has partial_rotary_factor={share!r}; only 1.0 is supported")
    kind = rope.get("rope_type", rope.get("type"))
    names = SCALING if kind == "llama3" else {"factor": "factor"}
    given = {field: rope[name] for field, name in names.items() if name in rope}
    if kind == "llama3":
        given.setdefault("original_positions", values["max_position_embeddings"])
    return rope.get("rope_theta", values.get("rope_theta", BASE)), read_scaling(kind, given, where=where)


def _scaling_values(scaling: RotaryScaling) -> dict[str, Any]:
    names = SCALING if scaling.kind == "llama3" else {"factor": "factor"}
    return {"rope_type": scaling.kind} | {name: getattr(scaling, field) for field, name in names.items()}
