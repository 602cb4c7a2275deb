"""Configurations of Llama's family in config.json, and the names of its tensors."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from unroll_jax.models import DecoderConfig, RotaryScaling

from ...config.errors import UserError
from .architectures import given_values, read_fields

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
DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
REQUIRED = {"hidden_act": "silu", "partial_rotary_factor": 1.0}
BASE = 10000.0  # of the frequencies, where config.json has none


class Family(NamedTuple):
    """A ``model_type`` of `transformers`: its class, fields of `DecoderConfig`, and
    further required values."""

    architecture: str
    fields: dict[str, bool]
    required: dict[str, Any]


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM", {}, {"attention_bias": False, "mlp_bias": False}
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM", {"qkv_bias": True}, {"use_sliding_window": False}
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        {"use_sliding_window": False, "attention_bias": False},
    ),
}
# Fields of `RotaryScaling` by their names in config.json.
SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}
# Names of tensors in files of `transformers`, of the parts of our layers, and of the
# rest.
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
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
OTHERS = {
    ("embedding",): "model.embed_tokens",
    ("norm", "scale"): "model.norm",
    ("head", "embedding"): "lm_head",
}


def read_decoder_config(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """Returns the decoder of a config.json. The default width of heads is left out:
    equal decoders have equal configurations.
    """
    # transformers 5 writes rope_parameters with the base; earlier versions write
    # rope_theta and rope_scaling.
    flat = given_values(values)
    for name in ("rope_scaling", "rope_parameters"):
        rope = flat.pop(name, {})
        if not isinstance(rope, dict):
            raise UserError(f"{where} has {name}={rope!r}; copy the original again")
        flat |= given_values(rope)
    kind = str(flat.get("model_type"))
    if kind not in FAMILIES:
        raise UserError(
            f"{where} has model_type={kind!r}; it must be one of {', '.join(FAMILIES)}"
        )

    def make(
        *, num_heads: int, num_key_value_heads: int | None, **numbers: Any
    ) -> DecoderConfig:
        groups = num_heads if num_key_value_heads is None else num_key_value_heads
        return DecoderConfig(
            num_heads=num_heads,
            num_key_value_heads=groups,
            rotary_base=flat.get("rope_theta", BASE),
            rotary_scaling=_scaling(flat, where),
            tied=bool(flat.get("tie_word_embeddings")),
            **numbers,
            **FAMILIES[kind].fields,
        )

    required = REQUIRED | FAMILIES[kind].required
    config = read_fields(
        make, flat, NUMBERS, defaults=DEFAULTS, required=required, where=where
    )
    if config.num_heads * config.head_size == config.dim:
        return dataclasses.replace(config, head_dim=None)
    return config


def config_values(config: DecoderConfig) -> dict[str, Any]:
    """Returns the fields of a config.json of a decoder that was drawn: the inverse
    of `read_decoder_config`."""
    if config.qkv_bias or config.qk_norm or config.rotary_scaling is not None:
        raise UserError(
            "a pretrained decoder is written with the config.json of its folder; export"
            " its run"
        )
    values: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": REQUIRED["hidden_act"],
    }
    values |= {name: getattr(config, field) for field, name in NUMBERS.items()}
    return values | {
        "head_dim": config.head_size,
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.tied,
    }


def _scaling(flat: Mapping[str, Any], where: str) -> RotaryScaling | None:
    kind = flat.get("rope_type", flat.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(
            f"{where} scales rotary embeddings by {kind!r}; only llama3 is supported"
        )
    length = flat.get("max_position_embeddings")
    return read_fields(
        functools.partial(RotaryScaling, kind),
        flat,
        SCALING,
        defaults={"original_max_position_embeddings": length},
        required={},
        where=f"{where}, rotary scaling",
    )
