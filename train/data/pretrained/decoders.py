"""Pretrained decoders: weights and tokenizer of a language model from a folder of
`transformers`."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import SingleDeviceSharding

from unroll_jax.models import Decoder, DecoderConfig, RotaryScaling

from ...config.errors import UserError
from ...system.distributed import digest, fetch
from ...system.files import expanded, read_regular, to_bytes
from ..files import Log
from . import folders
from .architectures import given_values, read_fields
from .chat import ChatTokenizer, folder_tokenizer

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
Place = Callable[[Any], Any]  # from parameters as shapes to the sharding of each


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


def read_decoder_config(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """Returns the decoder of a config.json. The default width of heads is left out:
    equal decoders have equal configurations.
    """
    # transformers 5 writes rope_parameters with the base. Earlier versions write
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


def read_decoder_weights(
    files: folders.SafetensorsFiles,
    config: DecoderConfig,
    *,
    dtype: Any = None,
    place: Place | None = None,
) -> dict[str, Any]:
    """Reads the parameters of a `Decoder`. Files are checked before any tensor is read.
    Every device reads its part of each tensor, one leaf after another. ``dtype`` None
    keeps each tensor's.
    ``place`` maps parameters as `jax.ShapeDtypeStruct` to shardings. None is the first
    device.
    """
    folders.check_layer_count(files, config.num_layers)
    slots = list(decoder_slots(config))
    # which files of tied heads may hold
    known = {name for slot in slots for name in slot.names} | {"lm_head.weight"}
    folders.check_slots(files, slots, files.names - known)
    shapes = {}
    for slot in slots:
        stored = _dtype(files, slot) if dtype is None else np.dtype(dtype)
        shapes[slot.path] = jax.ShapeDtypeStruct(slot.shape, stored)
    shardings: dict[Any, Any] = dict.fromkeys(
        shapes, SingleDeviceSharding(jax.local_devices()[0])
    )
    if place is not None:
        tree = place(traverse_util.unflatten_dict(shapes))
        shardings = traverse_util.flatten_dict(tree)
    leaves = {}
    for slot in slots:
        leaves[slot.path] = jax.make_array_from_callback(
            slot.shape,
            shardings[slot.path],
            functools.partial(folders.read_slot, files, slot, shapes[slot.path].dtype),
            dtype=shapes[slot.path].dtype,
        )
    return traverse_util.unflatten_dict(leaves)


def decoder_slots(config: DecoderConfig) -> Iterator[folders.Slot]:
    """Yields the slots of all leaves of a decoder's parameters."""
    for path, leaf in folders.leaves_of(Decoder(config)).items():
        if path[0] != "layers":
            yield folders.Slot(path, [[f"{OTHERS[path]}.weight"]], leaf.shape)
            continue
        end = "bias" if path[-1] == "bias" else "weight"
        rows = [
            [f"model.layers.{layer}.{LAYER[path[1]]}.{end}"]
            for layer in range(config.num_layers)
        ]
        yield folders.Slot(path, rows, leaf.shape, stacked=True)


def _dtype(files: folders.SafetensorsFiles, slot: folders.Slot) -> np.dtype:
    kinds = [files.dtype(name) or np.dtype(np.float32) for name in slot.names]
    return np.dtype(jax.dtypes.canonicalize_dtype(jnp.result_type(*kinds)))


class PretrainedDecoder(NamedTuple):
    """The content of a folder."""

    config: DecoderConfig
    params: dict[str, Any]  # of `unroll_jax.models.Decoder`, without the outer key
    tokenizer: ChatTokenizer


class Summary(NamedTuple):
    """A checksum of pretrained parameters, and of each token's embedding the mean
    and the mean square."""

    checksum: int
    means: np.ndarray
    squares: np.ndarray


@dataclasses.dataclass(frozen=True)
class DecoderSource:
    """A decoder to start from, of a folder of `transformers`. Without a path it is
    drawn."""

    config: DecoderConfig
    tokenizer: ChatTokenizer
    path: Path | None = None
    dtype: Any = None  # of parameters, see `read_decoder_weights`
    place: Place | None = None  # likewise

    @property
    def has_weights(self) -> bool:
        """True if there are weights. A configuration and a tokenizer are enough for
        a plan."""
        places = [self.path / name for name in folders.WEIGHTS] if self.path else []
        return any(place.is_file() for place in places)

    def read(self) -> dict[str, Any] | None:
        """Reads the parameters of `unroll_jax.models.Decoder`, without the outer key,
        or None where they are drawn. Every call reads them again: training updates them
        in place, and devices hold them once.
        """
        if self.path is None:
            return None
        with folders.open_folder(self.path) as files:
            return read_decoder_weights(
                files, self.config, dtype=self.dtype, place=self.place
            )

    @functools.cached_property
    def summary(self) -> Summary | None:
        """The summary of the parameters, on any mesh, or None where they are drawn.
        Reads and drops them."""
        params = self.read()
        if params is None:
            return None
        table = params["embedding"].astype(jnp.float32)
        means = np.asarray(fetch(jnp.mean(table, axis=1)))
        squares = np.asarray(fetch(jnp.mean(table**2, axis=1)))
        return Summary(digest(params, {})[0], means, squares)

    def to_json(self) -> dict[str, Any]:
        """Returns all but the parameters, as JSON values."""
        return {
            "decoder": dataclasses.asdict(self.config),
            "tokenizer": self.tokenizer.to_spec(),
        }

    @classmethod
    def from_json(
        cls, decoder: Mapping[str, Any], tokenizer: Mapping[str, Any]
    ) -> Self:
        """Reads what `to_json` wrote. Unknown fields are a TypeError."""
        values = dict(decoder)
        if values["rotary_scaling"] is not None:
            values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])
        return cls(DecoderConfig(**values), ChatTokenizer.from_spec(tokenizer))

    def to_transformers(
        self, params: Any, template: str
    ) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
        """Returns a folder of `transformers` as tensors and other files, config.json
        last: the inverse of reading it. Files are copied from the decoder's folder, if
        any. ``params`` are on the host. ``template`` is of prompts.
        """
        leaves: dict[Any, Any] = traverse_util.flatten_dict(params)
        tensors: dict[str, np.ndarray] = {}
        for slot in decoder_slots(self.config):
            parts = leaves[slot.path] if slot.stacked else [leaves[slot.path]]
            for name, part in zip(slot.names, parts, strict=True):
                tensors[name] = part.T if slot.transposed else part
        if self.path is None:
            numbers, files = self.tokenizer.to_transformers()
            values = config_values(self.config) | numbers
        else:
            values = folders.read_json(self.path / "config.json")
            if values.get("eos_token_id") is None:
                values["eos_token_id"] = self.tokenizer.stops
            files = {}
            for name in folders.COPIED:
                if (self.path / name).exists():
                    files[name] = read_regular(self.path / name, where=name)
        values.pop("dtype", None)  # a newer name of torch_dtype
        values["architectures"] = [FAMILIES[values["model_type"]].architecture]
        values["torch_dtype"] = str(params["embedding"].dtype)
        files[folders.TEMPLATE] = template.encode()
        return tensors, {**files, "config.json": to_bytes(values)}


def open_decoder_source(
    source: str, *, option: str = "pretrained", log: Log = print
) -> DecoderSource:
    """Reads the configuration and the tokenizer of a decoder in a folder of
    `transformers`. Errors name the source by its option.
    """
    path = expanded(source, option)
    if not source or not path.is_dir():  # an empty source is not the working directory
        raise UserError(
            f"{option}={source} is not a folder; give a folder of config.json,"
            " tokenizer.json and model.safetensors (`hf download OWNER/NAME"
            " --local-dir FOLDER` fetches one of the hub)"
        )
    values = folders.read_json(path / "config.json")
    config = read_decoder_config(values, where=str(path / "config.json"))
    tokenizer = folder_tokenizer(path)
    if tokenizer.size > config.vocabulary_size:
        raise UserError(
            f"{source} has a tokenizer of {tokenizer.size} tokens for an embedding"
            f" table of {config.vocabulary_size} rows; use the tokenizer and"
            " config.json that came with the weights"
        )
    log(
        f"{values['model_type']} of {config.num_layers} layers, {config.dim} wide,"
        f" {config.vocabulary_size} tokens"
    )
    return DecoderSource(config, tokenizer, path)


def load_decoder(
    source: str,
    *,
    dtype: Any = None,
    place: Place | None = None,
    option: str = "pretrained",
    log: Log = print,
) -> PretrainedDecoder:
    """Reads a decoder with its weights: `open_decoder_source`, then
    `DecoderSource.read`."""
    opened = dataclasses.replace(
        open_decoder_source(source, option=option, log=log), dtype=dtype, place=place
    )
    return PretrainedDecoder(opened.config, opened.read() or {}, opened.tokenizer)
