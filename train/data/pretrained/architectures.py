"""Architectures of pretrained encoders: their names for our sizes and tensors;
configurations out of config.json."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from unroll_jax.models import EncoderConfig

from ...config.errors import UserError, one_line

C = TypeVar("C")

LARGEST = 2**31  # bound of sizes and token numbers: indices have 32 bits
# Our names of the activations in config.json.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Architecture(NamedTuple):
    """The names and values of one architecture in config.json and in the file of its
    tensors."""

    prefix: str  # of the encoder's tensors in files that also hold a head
    numbers: Mapping[str, str]  # required fields of config.json, by our names
    defaults: Mapping[str, Any]  # of fields that old files leave out
    required: Mapping[str, Any]  # the only supported values of other fields
    # tensors of the embeddings, without ``.weight`` and ``.bias``
    embeddings: Mapping[str, str]
    layers: str  # name of the list of layers
    # names inside a layer. Several are concatenated
    layer: Mapping[str, tuple[str, ...]]
    hidden: tuple[str, str]  # the layer before logits, and its activation
    # position embeddings start after the padding token's number
    positions_after_padding: bool = False


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
    defaults={
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
    },
    required={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    embeddings={
        "word": "embeddings.word_embeddings",
        "position": "embeddings.position_embeddings",
        "token_type": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer",
    layer={
        "query_key_value": (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ),
        "attention_output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "hidden": ("intermediate.dense",),
        "output": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
    hidden=("pooler.dense", "tanh"),
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
    embeddings={
        name: value for name, value in _BERT.embeddings.items() if name != "token_type"
    },
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
)

_ROBERTA = _BERT._replace(
    prefix="roberta.",
    defaults={**_BERT.defaults, "pad_token_id": 1},
    hidden=("classifier.dense", "tanh"),
    positions_after_padding=True,
)

# By ``model_type`` in config.json. MiniLM is a BERT.
ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "roberta": _ROBERTA,
}


def read_architecture(values: Mapping[str, Any], *, where: str) -> Architecture:
    """Returns the architecture that the values of a config.json name."""
    name = str(values.get("model_type"))
    if name not in ARCHITECTURES:
        raise UserError(
            f"{where} has model_type={name!r}; it must be one of"
            f" {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def read_config(values: Mapping[str, Any], *, where: str) -> EncoderConfig:
    """Returns the encoder of a config.json."""
    architecture = read_architecture(values, where=where)

    def make(
        *, activation: str, max_positions: int, padding_token: int, **sizes: Any
    ) -> EncoderConfig:
        offset = padding_token + 1 if architecture.positions_after_padding else 0
        return EncoderConfig(
            activation=activation_of(activation),
            max_positions=max_positions - offset,
            position_offset=offset,
            padding_token=padding_token,
            **{"token_types": 0, **sizes},
        )

    return read_fields(
        make,
        values,
        architecture.numbers,
        defaults=architecture.defaults,
        required=architecture.required,
        where=where,
    )


def activation_of(name: str) -> str:
    """Returns our name of an activation in config.json."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"activation must be one of {known}, got {name!r}")
    return ACTIVATIONS[name]


def read_fields(
    make: Callable[..., C],
    values: Mapping[str, Any],
    names: Mapping[str, str],
    *,
    defaults: Mapping[str, Any],
    required: Mapping[str, Any],
    where: str,
) -> C:
    """Makes a configuration of the values of a file, by the file's ``names`` of its
    fields. Null means the default. ``required`` are the only supported values of
    others. Errors give the file's names.
    """
    given = {**defaults, **given_values(values)}
    for name, wanted in required.items():
        if given.get(name, wanted) != wanted:
            raise UserError(
                f"{where} has {name}={given[name]!r}; only {name}={wanted!r} is"
                " supported"
            )
    fields = {}
    for field, name in names.items():
        if name not in given:
            raise UserError(f"{where} has no {name}; copy the original again")
        fields[field] = given[name]
        if isinstance(given[name], int) and given[name] >= LARGEST:
            raise UserError(f"{where} has {name}={given[name]}; it must be below 2**31")
    try:
        return make(**fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{where}: {one_line(error)}; its names are {dict(names)}"
        ) from error


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are not null: null means the default."""
    return {key: value for key, value in values.items() if value is not None}
