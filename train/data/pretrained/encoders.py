"""Pretrained encoders of texts: weights and tokenizer from a folder in the layout of
Hugging Face, or from its hub."""

import functools
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from unroll_jax.models import Classifier, Encoder, EncoderConfig

from ...config.errors import UserError
from ..files import Log
from ..words import Encoded, check_pairs
from . import folders
from .architectures import Architecture, read_architecture, read_config

# Names of our leaves in files; the first checkpoints of BERT call a norm's weights
# gamma and beta.
SUFFIXES = {
    "kernel": ("weight",),
    "embedding": ("weight",),
    "scale": ("weight", "gamma"),
    "bias": ("bias", "beta"),
}
UNKNOWN_WORDS = "a \U0010ffff"  # a common word, and a character that no tokenizer knows
PADDING = ("[PAD]", "<pad>")  # its names in BERT and RoBERTa


def read_weights(
    tensors: folders.SafetensorsFiles, config: EncoderConfig, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the parameters of an `Encoder` and of the hidden layer of a `Head`,
    float32, if the file has it."""
    count = config.num_layers
    folders.check_layer_count(tensors, count)
    prefix = (
        architecture.prefix
        if any(name.startswith(architecture.prefix) for name in tensors.names)
        else ""
    )
    stem = f"{prefix}{architecture.layers}"
    shapes = jax.eval_shape(
        Encoder(config).init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32)
    )
    leaves: dict[Any, Any] = traverse_util.flatten_dict(shapes["params"])
    slots = []
    for path, leaf in leaves.items():
        rows = (
            [[prefix + architecture.embeddings[path[1]]]]
            if path[0] == "embeddings"
            else [
                [f"{stem}.{layer}.{piece}" for piece in architecture.layer[path[1]]]
                for layer in range(count)
            ]
        )
        stored = [
            [_stored_name(tensors, name, path[2]) for name in row] for row in rows
        ]
        slots.append(
            folders.Slot(path, stored, leaf.shape, stacked=path[0] == "layers")
        )
    slots += _hidden_slots(tensors, config, architecture, prefix)
    layers = {
        int(match[1])
        for name in tensors.names
        if (match := re.match(rf"{re.escape(stem)}\.(\d+)\.", name))
    }
    beyond = [f"{stem}.{layer}" for layer in sorted(layers) if layer >= count]
    folders.check_slots(tensors, slots, {f"layer(s) beyond num_layers={count}": beyond})
    params = traverse_util.unflatten_dict(
        {slot.path: folders.read_slot(tensors, slot) for slot in slots}
    )
    return params, params.pop("head", {})


def _stored_name(tensors: folders.SafetensorsFiles, name: str, leaf: str) -> str:
    """Returns the name of a leaf of ours in the file; the default name if the file
    lacks it."""
    names = [f"{name}.{suffix}" for suffix in SUFFIXES[leaf]]
    return next((name for name in names if name in tensors.names), names[0])


def _hidden_slots(
    tensors: folders.SafetensorsFiles,
    config: EncoderConfig,
    architecture: Architecture,
    prefix: str,
) -> list[folders.Slot]:
    # A bare BERT is written without the prefix, and with the pooler that heads are put
    # on.
    name = (
        architecture.hidden[0]
        if prefix
        else architecture.hidden[0].removeprefix(architecture.prefix)
    )
    if tensors.names.isdisjoint((f"{name}.weight", f"{name}.bias")):
        return []
    kernel = folders.Slot(
        ("head", "hidden", "kernel"), [[f"{name}.weight"]], (config.dim, config.dim)
    )
    return [
        kernel,
        folders.Slot(("head", "hidden", "bias"), [[f"{name}.bias"]], (config.dim,)),
    ]


class EncoderTokenizer:
    """A tokenizer of the package ``tokenizers`` that fits an encoder, without
    padding and truncation."""

    def __init__(self, tokenizer: Any, config: EncoderConfig) -> None:
        self.config, self.padding_token, self._tokenizer = (
            config,
            config.padding_token,
            tokenizer,
        )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.checksum = zlib.crc32(tokenizer.to_str().encode())

    def encode(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
    ) -> Encoded:
        """Encodes texts, or pairs of texts, as at most ``max_length`` tokens; None: as
        many as the encoder takes. Tokens added at the ends count. Longer texts are
        truncated at the end, of pairs the longer one first.
        """
        limit = self._limit(max_length, pairs=seconds is not None)
        check_pairs(texts, seconds)
        self._tokenizer.enable_truncation(limit)
        inputs: Any = (
            list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        )
        encodings = self._tokenizer.encode_batch(inputs)
        types = [np.array(each.type_ids, np.int32) for each in encodings]
        return Encoded(
            tokens=[np.array(each.ids, np.int32) for each in encodings],
            token_types=(
                types
                if self.config.token_types > 1
                else [np.zeros_like(each) for each in types]
            ),
            truncated=sum(bool(each.overflowing) for each in encodings),
        )

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        self._tokenizer.no_truncation()
        return self._tokenizer.to_str()

    @classmethod
    def from_json(cls, text: str, config: EncoderConfig) -> Self:
        """Reads what `to_json` wrote."""
        return cls(folders.make_tokenizer(text), config)

    def _limit(self, max_length: int | None, *, pairs: bool) -> int:
        limit, added = (
            self.config.max_positions,
            self._tokenizer.num_special_tokens_to_add(pairs),
        )
        length, least = (
            limit if max_length is None else max_length,
            added + (2 if pairs else 1),
        )
        if not least <= length <= limit:
            raise ValueError(
                f"max_length must be in [{least}, {limit}], as {added} tokens are added"
                f" to each {'pair' if pairs else 'text'} and the encoder has {limit}"
                f" positions, got {max_length}"
            )
        return length


class Pretrained(NamedTuple):
    """The content of a folder."""

    config: EncoderConfig
    params: dict[str, Any]  # of `unroll_jax.models.Encoder`, NumPy float32
    # of `unroll_jax.models.Head`: ``hidden`` if the file has it, or none
    head: dict[str, Any]
    hidden: str  # activation of the architecture's hidden layer, "tanh" or "relu"
    tokenizer: EncoderTokenizer


def load_pretrained(
    source: str, *, option: str = "pretrained", log: Log = print
) -> Pretrained:
    """Reads encoder, head and tokenizer of a BERT, DistilBERT, RoBERTa or MiniLM, from
    a folder or the hub. Errors name the source by its option. Pickles are never loaded.
    """
    folder = folders.find_folder(source, option=option, log=log)
    values, where = (
        folders.read_json(folder / "config.json"),
        str(folder / "config.json"),
    )
    architecture, config = (
        read_architecture(values, where=where),
        read_config(values, where=where),
    )
    tokenizer = load_tokenizer(folder, config)
    with folders.open_folder(folder) as tensors:
        params, head = read_weights(tensors, config, architecture)
    log(
        f"{values['model_type']} of {config.num_layers} layers, {config.dim} wide,"
        f" {config.vocabulary_size} tokens; head: {' and '.join(head) or 'none'}"
    )
    return Pretrained(config, params, head, architecture.hidden[1], tokenizer)


def start_from(pretrained: Pretrained, model: Classifier, key: jax.Array) -> Any:
    """Returns a classifier's variables: the encoder and a fitting hidden layer are
    pretrained, the logits new."""
    if model.encoder.config != pretrained.config:
        raise UserError(
            f"the classifier's encoder is {model.encoder.config}, the pretrained one"
            f" {pretrained.config}"
        )
    tokens = jnp.zeros((1, 1), jnp.int32)
    head = dict(jax.jit(lambda key: model.init(key, tokens)["params"]["head"])(key))
    if model.hidden == pretrained.hidden and "hidden" in pretrained.head:
        head["hidden"] = pretrained.head["hidden"]
    params = {"encoder": pretrained.params, "head": head}
    narrow = functools.partial(jnp.asarray, dtype=model.encoder.param_dtype)
    return {"params": jax.tree.map(narrow, params)}


def load_tokenizer(folder: Path, config: EncoderConfig) -> EncoderTokenizer:
    """Reads tokenizer.json of a folder, whose token numbers and padding must fit the
    encoder."""
    file, tokenizer = folder / "tokenizer.json", folders.read_tokenizer(folder)
    with folders.usable_tokenizer(file):
        tokenizer.no_truncation()
        # Tokens around a text may be missing from the vocabulary; encoding an unknown
        # text and a pair shows them.
        tried = [
            tokenizer.encode(*texts)
            for texts in ((UNKNOWN_WORDS,), (UNKNOWN_WORDS, UNKNOWN_WORDS))
        ]
    numbers = {
        number: token
        for token, number in tokenizer.get_vocab(with_added_tokens=True).items()
    }
    numbers |= {
        number: token
        for each in tried
        for number, token in zip(each.ids, each.tokens, strict=True)
    }
    if not numbers:
        raise UserError(f"{file} has no tokens; copy it again")
    if (last := max(numbers)) >= config.vocabulary_size:
        count = sum(number >= config.vocabulary_size for number in numbers)
        raise UserError(
            f"{file} does not fit the weights: {count} tokens, as {numbers[last]!r}"
            f" with number {last}, have no row in the embedding table of"
            f" {config.vocabulary_size}; use the tokenizer that came with the weights"
        )
    _check_padding(file, tokenizer, config)
    return EncoderTokenizer(tokenizer, config)


def _check_padding(file: Path, tokenizer: Any, config: EncoderConfig) -> None:
    """Checks that the padding token has the encoder's number: otherwise the
    tokenizer belongs to another encoder."""
    pad_token = (tokenizer.padding or {}).get("pad_token")
    candidates = [
        (name, tokenizer.token_to_id(name))
        for name in (pad_token, *PADDING)
        if name is not None
    ]
    name, number = next(
        (each for each in candidates if each[1] is not None),
        (None, config.padding_token),
    )
    if number != config.padding_token:
        raise UserError(
            f"{file} does not fit the weights: its padding token {name!r} has number"
            f" {number}, config.json has pad_token_id={config.padding_token}; use the"
            " tokenizer that came with the weights, or correct config.json"
        )
