"""Pretrained encoders of texts: weights and tokenizer from a folder in the layout of Hugging Face, or from its hub."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.models import Classifier, EncoderConfig

from ...config.errors import UserError
from ..files import Log
from ..words import Encoded, check_pairs
from .architectures import class_names, read_architecture, read_config, unnamed_classes
from .folders import find_folder, open_folder, read_json, read_tokenizer, usable_tokenizer
from .slots import read_weights

UNKNOWN_WORDS = "a \U0010ffff"  # a common word, and a character that no tokenizer knows
PADDING = ("[PAD]", "<pad>")  # its names in BERT and RoBERTa


class EncoderTokenizer:
    """A tokenizer of the package ``tokenizers`` that fits an encoder, without padding and truncation."""

    def __init__(self, tokenizer: Any, config: EncoderConfig) -> None:
        self.config, self.padding_token, self._tokenizer = config, config.padding_token, tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.checksum = zlib.crc32(tokenizer.to_str().encode())

    def encode(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> Encoded:
        """Encodes texts, or pairs of texts, as at most ``max_length`` tokens; None: as many as the encoder takes.

        Tokens added at the ends count. Longer texts are truncated at the end, of pairs the longer one first.
        """
        limit = self._limit(max_length, pairs=seconds is not None)
        check_pairs(texts, seconds)
        self._tokenizer.enable_truncation(limit)
        inputs: Any = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        encodings = self._tokenizer.encode_batch(inputs)
        types = [np.array(each.type_ids, np.int32) for each in encodings]
        return Encoded(
            tokens=[np.array(each.ids, np.int32) for each in encodings],
            token_types=types if self.config.token_types > 1 else [np.zeros_like(each) for each in types],
            truncated=sum(bool(each.overflowing) for each in encodings),
        )

    def to_json(self) -> str:
        """Returns the tokenizer as JSON, for `tokenizers.Tokenizer.from_str`."""
        self._tokenizer.no_truncation()
        return self._tokenizer.to_str()

    @classmethod
    def from_json(cls, text: str, config: EncoderConfig) -> Self:
        """Reads what `to_json` wrote."""
        import tokenizers  # imported here: only runs from an encoder need it

        return cls(tokenizers.Tokenizer.from_str(text), config)

    def _limit(self, max_length: int | None, *, pairs: bool) -> int:
        limit, added = self.config.max_positions, self._tokenizer.num_special_tokens_to_add(pairs)
        length, least = limit if max_length is None else max_length, added + (2 if pairs else 1)
        if not least <= length <= limit:
            raise ValueError(
                f"max_length must be in [{least}, {limit}], as {added} tokens are added to each "
                f"{'pair' if pairs else 'text'} and the encoder has {limit} positions, got {max_length}"
            )
        return length


class Pretrained(NamedTuple):
    """The content of a folder."""

    config: EncoderConfig
    params: dict[str, Any]  # of `unroll_jax.models.Encoder`, NumPy float32
    head: dict[str, Any]  # those of `unroll_jax.models.Head` that the file has: ``hidden``, ``logits``, both or none
    hidden: str  # activation of the architecture's hidden layer, "tanh" or "relu"
    classes: tuple[str, ...]  # names of the classes, where there are ``logits``; else empty
    tokenizer: EncoderTokenizer


def load_pretrained(
    source: str, *, revision: str | None = None, option: str = "pretrained", log: Log = print
) -> Pretrained:
    """Reads encoder, head and tokenizer of a BERT, DistilBERT, RoBERTa or MiniLM, from a folder or the hub.

    Errors name the source by its option. Pickles are never loaded.
    """
    folder = find_folder(source, revision=revision, option=option, log=log)
    values, where = read_json(folder / "config.json"), str(folder / "config.json")
    architecture, config = read_architecture(values, where=where), read_config(values, where=where)
    tokenizer = load_tokenizer(folder, config)
    with open_folder(folder) as tensors:
        params, head = read_weights(tensors, config, architecture)
    if "hidden" not in head:
        head = {}  # logits without the layer before them belong to another task, as of single tokens
    classes = class_names(values, len(head["logits"]["bias"]), where=where) if "logits" in head else ()
    log(
        f"{values['model_type']} of {config.num_layers} layers, {config.dim} wide, {config.vocabulary_size} tokens; "
        f"head: {' and '.join(head) or 'none'}"
    )
    return Pretrained(config, params, head, architecture.hidden[1], classes, tokenizer)


def start_from(pretrained: Pretrained, model: Classifier, key: jax.Array, *, class_names: Sequence[str]) -> Any:
    """Returns the variables of a classifier: the encoder's are pretrained, the head's where they fit, else new.

    A pretrained hidden layer is kept if the classifier has the same activation, pretrained logits if `keeps_logits`,
    each for the class of its name.
    """
    if model.encoder.config != pretrained.config:
        raise UserError(f"the classifier's encoder is {model.encoder.config}, the pretrained one {pretrained.config}")
    if len(class_names) != model.num_classes:
        raise ValueError(f"class_names must be as many as classes, {model.num_classes}, got {len(class_names)}")
    tokens = jnp.zeros((1, 1), jnp.int32)
    head = dict(jax.jit(lambda key: model.init(key, tokens)["params"]["head"])(key))
    if model.hidden == pretrained.hidden and "hidden" in pretrained.head:
        head["hidden"] = pretrained.head["hidden"]
    if keeps_logits(pretrained, model, class_names):
        order = _order_of_classes(pretrained, class_names)
        head["logits"] = {name: leaf[..., order] for name, leaf in pretrained.head["logits"].items()}
    narrow = lambda leaf: jnp.asarray(leaf, model.encoder.param_dtype)  # noqa: E731
    return {"params": jax.tree.map(narrow, {"encoder": pretrained.params, "head": head})}


def keeps_logits(pretrained: Pretrained, model: Classifier, class_names: Sequence[str]) -> bool:
    """Returns whether there are pretrained logits that a classifier can keep.

    They read the first token after the pretrained hidden layer. The classes must have the same names in any order,
    ignoring case; classes that the checkpoint calls LABEL_0, LABEL_1 and so on are matched by number.
    """
    if "logits" not in pretrained.head or model.hidden != pretrained.hidden or model.pooling != "first":
        return False
    return _order_of_classes(pretrained, class_names) is not None


def load_tokenizer(folder: Path, config: EncoderConfig) -> EncoderTokenizer:
    """Reads tokenizer.json of a folder, whose token numbers and padding must fit the encoder."""
    file, tokenizer = folder / "tokenizer.json", read_tokenizer(folder)
    with usable_tokenizer(file):
        tokenizer.no_truncation()
        # Tokens around a text may be missing from the vocabulary; encoding an unknown text and a pair shows them.
        tried = [tokenizer.encode(*texts) for texts in ((UNKNOWN_WORDS,), (UNKNOWN_WORDS, UNKNOWN_WORDS))]
    numbers = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    numbers |= {number: token for each in tried for number, token in zip(each.ids, each.tokens, strict=True)}
    if not numbers:
        raise UserError(f"{file} has no tokens; copy it again")
    if (last := max(numbers)) >= config.vocabulary_size:
        count = sum(number >= config.vocabulary_size for number in numbers)
        raise UserError(
            f"{file} does not fit the weights: {count} tokens, as {numbers[last]!r} with number {last}, have no row in "
            f"the embedding table of {config.vocabulary_size}; use the tokenizer that came with the weights"
        )
    _check_padding(file, tokenizer, config)
    return EncoderTokenizer(tokenizer, config)


def _order_of_classes(pretrained: Pretrained, class_names: Sequence[str]) -> list[int] | None:
    """Returns the number of the pretrained class of each class; None if the classes differ."""
    theirs, ours = ([name.casefold() for name in names] for names in (pretrained.classes, class_names))
    count = len(ours)
    if len(theirs) != count:
        return None
    if theirs == [name.casefold() for name in unnamed_classes(count)]:
        return list(range(count))
    if set(theirs) != set(ours) or len(set(ours)) < count:
        return None
    return [theirs.index(name) for name in ours]


def _check_padding(file: Path, tokenizer: Any, config: EncoderConfig) -> None:
    """Checks that the padding token has the encoder's number: otherwise the tokenizer belongs to another encoder."""
    pad_token = (tokenizer.padding or {}).get("pad_token")
    candidates = [(name, tokenizer.token_to_id(name)) for name in (pad_token, *PADDING) if name is not None]
    name, number = next((each for each in candidates if each[1] is not None), (None, config.padding_token))
    if number != config.padding_token:
        raise UserError(
            f"{file} does not fit the weights: its padding token {name!r} has number {number}, config.json has "
            f"pad_token_id={config.padding_token}; use the tokenizer that came with the weights, or correct config.json"
        )
