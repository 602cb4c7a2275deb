"""Architectures of pretrained encoders: what their files call the numbers and tensors of ours."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from unroll_jax.models import EncoderConfig

from ..config.errors import UserError

C = TypeVar("C")

LARGEST = 2**31  # what a size stays below: indices have 32 bits
# What config.json calls an activation, and what we do.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Architecture(NamedTuple):
    """The names and values of one architecture in config.json and in the file of its tensors."""

    prefix: str  # of the names of the encoder's tensors where the file holds a head as well
    numbers: Mapping[str, str]  # names in config.json of fields of ours, none of which may be missing
    defaults: Mapping[str, Any]  # values in config.json that old ones leave out
    required: Mapping[str, Any]  # values that others in config.json would make another network
    embeddings: Mapping[str, str]  # names of the embeddings' tensors, without ``.weight`` and ``.bias``
    layers: str  # name of the list of layers
    layer: Mapping[str, tuple[str, ...]]  # names inside a layer; those of several are concatenated
    hidden: tuple[str, str]  # name of the hidden layer of the head, and its activation
    logits: str  # name of the last layer of the head
    positions_after_padding: bool = False  # whether rows of the table of positions up to the padding token's are unused


_BERT = Architecture(
    prefix="bert.",
    numbers={
        "vocabulary_size": "vocab_size",
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "token_types": "type_vocab_size",
        "norm_epsilon": "layer_norm_eps",
        "activation": "hidden_act",
        "padding_token": "pad_token_id",
    },
    defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0},
    required={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    embeddings={
        "word": "embeddings.word_embeddings",
        "position": "embeddings.position_embeddings",
        "token_type": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer",
    layer={
        "query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention_output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "hidden": ("intermediate.dense",),
        "output": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
    hidden=("bert.pooler.dense", "tanh"),
    logits="classifier",
)

_DISTILBERT = Architecture(
    prefix="distilbert.",
    numbers={
        "vocabulary_size": "vocab_size",
        "dim": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "hidden_dim": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
        "padding_token": "pad_token_id",
    },
    defaults={"activation": "gelu", "pad_token_id": 0},
    required={},
    embeddings={name: value for name, value in _BERT.embeddings.items() if name != "token_type"},
    layers="transformer.layer",
    layer={
        "query_key_value": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention_output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "hidden": ("ffn.lin1",),
        "output": ("ffn.lin2",),
        "output_norm": ("output_layer_norm",),
    },
    hidden=("pre_classifier", "relu"),
    logits="classifier",
)

_ROBERTA = _BERT._replace(
    prefix="roberta.",
    defaults={**_BERT.defaults, "pad_token_id": 1},
    hidden=("classifier.dense", "tanh"),
    logits="classifier.out_proj",
    positions_after_padding=True,
)

_VIT = Architecture(
    prefix="vit.",
    numbers={
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
        "activation": "hidden_act",
        "image_size": "image_size",
        "patch_size": "patch_size",
        "channels": "num_channels",
        "stride": "encoder_stride",
    },
    defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu", "num_channels": 3, "encoder_stride": 16},
    required={"qkv_bias": True},
    embeddings={
        "class_token": "embeddings.cls_token",
        "position": "embeddings.position_embeddings",
        "patch": "embeddings.patch_embeddings.projection",
    },
    layers="encoder.layer",
    layer={
        "attention_norm": ("layernorm_before",),
        "query_key_value": tuple(f"attention.attention.{name}" for name in ("query", "key", "value")),
        "attention_output": ("attention.output.dense",),
        "output_norm": ("layernorm_after",),
        "hidden": ("intermediate.dense",),
        "output": ("output.dense",),
    },
    hidden=("vit.pooler.dense", "tanh"),
    logits="classifier",
)

# By ``model_type`` in config.json. MiniLM is a BERT.
ARCHITECTURES: dict[str, Architecture] = {"bert": _BERT, "distilbert": _DISTILBERT, "roberta": _ROBERTA}
# The same of encoders of pictures.
VISION: dict[str, Architecture] = {"vit": _VIT}


def read_architecture(
    values: Mapping[str, Any], *, where: str, known: Mapping[str, Architecture] = ARCHITECTURES
) -> Architecture:
    """The one of the known architectures that the values of a config.json name."""
    values, name = _given(values), values.get("model_type")
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{where} has model_type={name!r}; the architectures known are {', '.join(known)}")
    architecture = known[name]
    for field, wanted in architecture.required.items():
        if (value := values.get(field, wanted)) != wanted:
            raise UserError(f"{where} has {field}={value!r}; of {name} only {field}={wanted!r} is supported")
    return architecture


def read_config(values: Mapping[str, Any], *, where: str) -> EncoderConfig:
    """The encoder that the values of a config.json describe; one error names all fields that are missing."""
    architecture = read_architecture(values, where=where)
    numbers = {"token_types": 0, **read_numbers(values, architecture, where=where)}
    if architecture.positions_after_padding:
        numbers["position_offset"] = numbers["padding_token"] + 1
        numbers["max_positions"] -= numbers["position_offset"]
    return config_of(EncoderConfig, numbers, architecture, where=where)


def read_numbers(values: Mapping[str, Any], architecture: Architecture, *, where: str) -> dict[str, Any]:
    """The numbers that an architecture has in a config.json, and the activation, by our names."""
    values = {**architecture.defaults, **_given(values)}
    if missing := [name for name in architecture.numbers.values() if name not in values]:
        raise UserError(f"{where} lacks {', '.join(missing)}; copy the original again")
    numbers = {field: values[name] for field, name in architecture.numbers.items()}
    activation = numbers["activation"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        name = architecture.numbers["activation"]
        raise UserError(f"{where} has {name}={activation!r}; the activations known are {', '.join(ACTIVATIONS)}")
    numbers["activation"] = ACTIVATIONS[activation]
    for field, name in architecture.numbers.items():
        number = values[name]
        if field not in ("activation", "norm_epsilon") and not (type(number) is int and abs(number) < LARGEST):
            raise UserError(f"{where} has {name}={number!r}; it must be an integer below 2**31")
        if field == "norm_epsilon" and not isinstance(number, float | int):
            raise UserError(f"{where} has {name}={number!r}; it must be a number")
    return numbers


def config_of(make: Callable[..., C], numbers: Mapping[str, Any], architecture: Architecture, *, where: str) -> C:
    """``make(**numbers)``, whose refusal names what config.json calls the fields."""
    try:
        return make(**numbers)
    except ValueError as error:
        words = re.findall(r"\w+", str(error))
        names = ", ".join(f"{field} is {name}" for field, name in architecture.numbers.items() if field in words)
        raise UserError(f"{where}: {error} ({names} there)") from error


def class_names(values: Mapping[str, Any], count: int, *, where: str) -> tuple[str, ...]:
    """Names of a head's classes by number, as config.json has them, else those of `unnamed_classes`."""
    names = _given(values).get("id2label", {})
    if not isinstance(names, dict):
        raise UserError(f"{where} has id2label={names!r}; it must be an object of names by number")
    return tuple(str(names.get(str(number), usual)) for number, usual in enumerate(unnamed_classes(count)))


def unnamed_classes(count: int) -> tuple[str, ...]:
    """Returns the default names of unnamed classes: LABEL_0, LABEL_1 and so on."""
    return tuple(f"LABEL_{number}" for number in range(count))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that are null, which stands for the usual one."""
    return {key: value for key, value in values.items() if value is not None}
