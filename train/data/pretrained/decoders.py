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
from ...system.files import expanded, to_bytes
from ...system.reading import read_regular
from ..files import Log
from . import folders
from .chat import ChatTokenizer, folder_tokenizer
from .llama import FAMILIES, LAYER, OTHERS, config_values, read_decoder_config

Place = Callable[[Any], Any]  # from parameters as shapes to the sharding of each


def read_decoder_weights(
    files: folders.SafetensorsFiles,
    config: DecoderConfig,
    *,
    dtype: Any = None,
    place: Place | None = None,
) -> dict[str, Any]:
    """Reads the parameters of a `Decoder`; files are checked before any tensor is read.
    Every device reads its part of each tensor, one leaf after another. ``dtype`` None
    keeps each tensor's.
    ``place`` maps parameters as `jax.ShapeDtypeStruct` to shardings; None is the first
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
    """A decoder to start from, of a folder of `transformers`; without a path it is
    drawn."""

    config: DecoderConfig
    tokenizer: ChatTokenizer
    path: Path | None = None
    dtype: Any = None  # of parameters, see `read_decoder_weights`
    place: Place | None = None  # likewise

    @property
    def has_weights(self) -> bool:
        """True if there are weights; a configuration and a tokenizer are enough for
        a plan."""
        places = [self.path / name for name in folders.WEIGHTS] if self.path else []
        return any(place.is_file() for place in places)

    def read(self) -> dict[str, Any] | None:
        """Reads the parameters of `unroll_jax.models.Decoder`, without the outer key;
        None where they are drawn. Every call reads them again: training updates them in
        place, and devices hold them once.
        """
        if self.path is None:
            return None
        with folders.open_folder(self.path) as files:
            return read_decoder_weights(
                files, self.config, dtype=self.dtype, place=self.place
            )

    @functools.cached_property
    def summary(self) -> Summary | None:
        """The summary of the parameters, on any mesh; None where they are drawn.
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
        """Reads what `to_json` wrote; unknown fields are a TypeError."""
        values = dict(decoder)
        if values["rotary_scaling"] is not None:
            values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])
        return cls(DecoderConfig(**values), ChatTokenizer.from_spec(tokenizer))

    def to_transformers(
        self, params: Any, template: str
    ) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
        """Returns a folder of `transformers` as tensors and other files, config.json
        last: the inverse of reading it. Files are copied from the decoder's folder, if
        any. ``params`` are on the host; ``template`` is of prompts.
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
