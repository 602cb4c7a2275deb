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
from ..words import Encoded, check_pairs, encode_batch
from . import folders
from .architectures import Architecture, read_architecture, read_config

UNKNOWN_WORDS = "a \U0010ffff"  # a common word, and a character that no tokenizer knows
PADDING = ("[PAD]", "<pad>")  # its names in BERT and RoBERTa


def read_weights(
    tensors: folders.SafetensorsFiles, config: EncoderConfig, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the parameters of an `Encoder` and of the hidden layer of a `Head`,
    float32, if the file has it."""
    count = config.num_layers
    folders.check_layer_count(tensors, count)
    tensors = tensors.renamed(functools.partial(_plain, prefix=architecture.prefix))
    leaves = folders.leaves_of(Encoder(config))
    # with the pooler that heads are put on
    hidden = architecture.hidden[0]
    if any(name.startswith(f"{hidden}.") for name in tensors.names):
        size = (config.dim, config.dim)
        leaves["head", "hidden", "kernel"] = jax.ShapeDtypeStruct(size, np.float32)
        leaves["head", "hidden", "bias"] = jax.ShapeDtypeStruct(size[:1], np.float32)
    slots = []
    for path, leaf in leaves.items():
        names = {**architecture.embeddings, "hidden": hidden}.get(path[1], "")
        rows = [[names]]
        if path[0] == "layers":
            parts = architecture.layer[path[1]]
            layers = [f"{architecture.layers}.{number}" for number in range(count)]
            rows = [[f"{layer}.{part}" for part in parts] for layer in layers]
        end = "bias" if path[2] == "bias" else "weight"
        rows = [[f"{name}.{end}" for name in row] for row in rows]
        slots.append(folders.Slot(path, rows, leaf.shape, path[0] == "layers"))
    next_layer = f"{architecture.layers}.{count}."
    read = folders.read_slots(tensors, slots, next_layer)
    params = traverse_util.unflatten_dict(read)
    return params, params.pop("head", {})


def _plain(name: str, *, prefix: str) -> str:
    """Returns the name of a tensor as bare encoders have it. The first checkpoints of
    BERT call a norm's weights gamma and beta."""
    name = name.removeprefix(prefix)
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


class EncoderTokenizer:
    """A tokenizer of the package ``tokenizers`` that fits an encoder, without
    padding and truncation."""

    def __init__(self, tokenizer: Any, config: EncoderConfig) -> None:
        self.config = config
        self.padding_token = config.padding_token
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        self.checksum = zlib.crc32(self.to_json().encode())

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
        check_pairs(texts, seconds)
        limit = self.config.max_positions
        length = limit if max_length is None else max_length
        added = self._tokenizer.num_special_tokens_to_add(seconds is not None)
        least = added + (1 if seconds is None else 2)
        if not least <= length <= limit:
            raise ValueError(
                f"max_length must be in [{least}, {limit}], as {added} tokens are added"
                f" and the encoder has {limit} positions, got {max_length}"
            )
        self._tokenizer.enable_truncation(length)
        with folders.usable_tokenizer("the encoder's tokenizer.json"):
            encoded = encode_batch(self._tokenizer, texts, seconds)
        if self.config.token_types > 1:
            return encoded
        return encoded._replace(token_types=list(map(np.zeros_like, encoded.tokens)))

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        self._tokenizer.no_truncation()
        return self._tokenizer.to_str()

    @classmethod
    def from_json(cls, text: str, config: EncoderConfig) -> Self:
        """Reads what `to_json` wrote."""
        return cls(folders.make_tokenizer(text), config)


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
    where = str(folder / "config.json")
    values = folders.read_json(folder / "config.json")
    architecture = read_architecture(values, where=where)
    config = read_config(values, where=where)
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
    file = folder / "tokenizer.json"
    tokenizer = folders.read_tokenizer(folder)
    numbers = tokenizer.get_vocab(with_added_tokens=True)
    names = {(tokenizer.padding or {}).get("pad_token")} & numbers.keys() or PADDING
    with folders.usable_tokenizer(file):
        tokenizer.no_truncation()
        # its numbers of padding are not used, and may not be those of the vocabulary
        tokenizer.no_padding()
        # Tokens around a text may be missing from the vocabulary. Encoding an unknown
        # text and a pair shows them.
        for texts in ([UNKNOWN_WORDS], [UNKNOWN_WORDS, UNKNOWN_WORDS]):
            encoded = tokenizer.encode(*texts)
            numbers |= dict(zip(encoded.tokens, encoded.ids, strict=True))
    for token, number in numbers.items():
        is_padding = token in names
        if number >= config.vocabulary_size or (
            is_padding and number != config.padding_token
        ):
            raise UserError(
                f"{file} does not fit the weights: {token!r} has number {number},"
                f" config.json has a vocabulary of {config.vocabulary_size} and padding"
                f" by {config.padding_token}; use the tokenizer that came with the"
                " weights"
            )
    return EncoderTokenizer(tokenizer, config)
