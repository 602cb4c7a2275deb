"""The material of a text experiment: batches of tokens, and the pretrained part of the model."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tokenizers

from unroll_jax.models import EncoderConfig

from ..config.errors import UserError
from ..config.text import EncoderOptions, TextRunConfig
from ..data import text
from ..data.pretrained.encoders import EncoderTokenizer, Pretrained, load_pretrained
from ..data.pretrained.folders import FILES, may_be_repository
from ..data.splits import SPLITS
from ..data.text import TextData
from ..data.tokens import TokenData
from ..data.words import SPECIAL, Tokenizer, WordTokenizer, embedding_table, glove_embeddings, learn_words
from ..system.digest import weights_checksum
from ..system.files import expanded
from .common import keep_examples
from .facts import TokenFacts

Log = Callable[[str], None]

FEWEST_TO_VALIDATE = 2  # one for each half
VECTOR_FILES = (".txt", ".vec", ".gz", ".zip")  # what files of word vectors end in, and repositories do not


class TextMaterial:
    """Texts as batches of tokens, and weights that are given.

    Attributes:
      tokens: batches of the three splits.
      pairs: whether every record has a second text.
      pretrained: the encoder that a classifier starts from; None draws one.
      table: the word embeddings that are given, float32 (tokens, dim); None learns them.
    """

    def __init__(
        self, tokens: TokenData, *, pairs: bool, pretrained: Pretrained | None = None, table: np.ndarray | None = None
    ) -> None:
        self.tokens, self.pairs, self.pretrained, self.table = tokens, pairs, pretrained, table

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""
        return tuple(self.tokens.class_names)

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens."""
        if self.table is not None:
            return len(self.table)
        tokenizer: Any = self.tokens.tokenizer
        return len(tokenizer.vocabulary)

    @functools.cached_property
    def embedding_std(self) -> float:
        """Standard deviation of an entry of the clean embeddings of train tokens; 1 where these are learned.

        Raises:
          UserError: if it is 0, as noise in its unit would be none.
        """
        if self.table is None:
            return 1.0  # what learned embeddings start with
        counts = np.zeros(len(self.table))
        for batch in self.tokens.examples("train", batch_size=1024):
            counts += np.bincount(batch.tokens[batch.mask], minlength=len(counts))
        shares, table = counts / counts.sum(), self.table.astype(np.float64)
        variance = shares @ np.mean(table**2, axis=1) - (shares @ np.mean(table, axis=1)) ** 2
        if not variance > 0.0:
            raise UserError("all given embeddings of train tokens are one number, so noise would be 0; give others")
        return float(np.sqrt(variance))

    def model_spec(self) -> dict[str, Any]:
        """All that a model needs to know of these texts: `material_of` makes the same of them, without the texts."""
        tokenizer: Any = self.tokens.tokenizer
        return {
            "class_names": list(self.class_names),
            "pairs": self.pairs,
            "embedding_std": self.embedding_std,
            "words": list(tokenizer.vocabulary[len(SPECIAL) :]) if isinstance(tokenizer, WordTokenizer) else None,
            "tokenizer": None if isinstance(tokenizer, WordTokenizer) else tokenizer.to_json(),
            "encoder": None if isinstance(tokenizer, WordTokenizer) else dataclasses.asdict(tokenizer.config),
            "hidden": None if self.pretrained is None else self.pretrained.hidden,
            "table": None if self.table is None else list(self.table.shape),
        }

    def data_fingerprint(self) -> dict[str, Any]:
        """Figures that change when the texts, their labels, the numbers of tokens or the given weights do.

        A run keeps no words: it learns them again from the texts, and edited texts may give them other numbers.
        """
        return {
            "examples": {split: self.tokens.num_examples(split) for split in SPLITS},
            "classes": list(self.class_names),
            "vocabulary": self.vocabulary_size,
            "texts_checksums": self.tokens.checksums,
            "tokenizer_checksum": self.tokens.tokenizer.checksum,
            "weights_checksum": self._weights_checksum,
        }

    @functools.cached_property
    def _weights_checksum(self) -> int | None:
        """Returns the checksum of all pretrained weights, by their names in this program; None without any."""
        given = self.table if self.pretrained is None else (self.pretrained.params, self.pretrained.head)
        return weights_checksum(given)


def material_of(facts: dict[str, Any]) -> TextMaterial:
    """Builds the material that `TextMaterial.model_spec` describes, enough for a model."""
    pretrained = None
    if facts["words"] is not None:
        tokenizer: Any = WordTokenizer(facts["words"])
    else:
        config = EncoderConfig(**facts["encoder"])
        tokenizer = EncoderTokenizer(tokenizers.Tokenizer.from_str(facts["tokenizer"]), config)
        if facts["hidden"] is not None:
            pretrained = Pretrained(config, {}, {}, facts["hidden"], (), tokenizer)
    tokens: Any = TokenFacts(tokenizer, tuple(facts["class_names"]))
    table = None if facts["table"] is None else np.broadcast_to(np.float32(0.0), facts["table"])
    material = TextMaterial(tokens, pairs=facts["pairs"], pretrained=pretrained, table=table)
    material.__dict__["embedding_std"] = facts["embedding_std"]  # a cached property
    return material


def load_material(config: TextRunConfig, log: Log) -> TextMaterial:
    """Opens the texts and what is given of the model."""
    data = text.load(config.data, log=log)
    keep_examples(data, config)
    _check_validation(data)
    tokenizer, pretrained, table = _given(config, data, log)
    _check_length(tokenizer, config.max_length, pairs=data.pairs)
    if table is not None and np.ptp(table) == 0.0:
        raise UserError("all entries of the given word embeddings are one number, so noise would be 0; give others")
    tokens = TokenData(data, tokenizer, max_length=config.max_length, log=log)
    return TextMaterial(tokens, pairs=data.pairs, pretrained=pretrained, table=table)


def _check_validation(data: TextData) -> None:
    if (count := data.num_examples("validation")) < FEWEST_TO_VALIDATE:
        raise UserError(
            f"the validation split must have at least {FEWEST_TO_VALIDATE} texts, as early exit is fitted on one half "
            f"of them and tried on the other, got {count}; raise --validation-examples, or give more of them"
        )


def _given(config: TextRunConfig, data: TextData, log: Log) -> tuple[Tokenizer, Pretrained | None, np.ndarray | None]:
    model = config.model
    if isinstance(model, EncoderOptions):
        if model.pretrained is None:
            return _words(data, config.min_count), None, None
        pretrained = load_pretrained(model.pretrained, revision=model.revision, option="--model.pretrained", log=log)
        return pretrained.tokenizer, pretrained, _word_table(pretrained)
    if model.embeddings is None:
        return _words(data, config.min_count), None, None
    if (file := expanded(model.embeddings, "model.embeddings")).is_file():
        # Nothing is learned of words whose vectors stay as they are, so those of all splits may be known.
        words = _words(data, config.min_count, splits=SPLITS if model.frozen else ("train",))
        vectors = glove_embeddings(file, words.vocabulary)
        known = sum(vectors.covers(word) for word in words.vocabulary)
        log(f"{model.embeddings} has vectors of {known} of {len(words.vocabulary)} words, {vectors.dim} wide")
        return words, None, embedding_table(words, vectors)
    _check_embeddings(model.embeddings)
    pretrained = load_pretrained(model.embeddings, option="--model.embeddings", log=log)
    if config.min_count != 1:  # not refused, as it may be what the experiment has where embeddings are learned
        log(f"--min-count {config.min_count} has no effect: the tokens are those of {model.embeddings}")
    return pretrained.tokenizer, None, _word_table(pretrained)


def _check_embeddings(source: str) -> None:
    """Refuses what is no file and no folder where it cannot be a repository either, before the hub is asked for it."""
    is_vectors = source.lower().endswith(VECTOR_FILES) or not may_be_repository(source)
    if is_vectors and not expanded(source, "model.embeddings").is_dir():
        raise UserError(
            f"--model.embeddings {source} is neither a file of word vectors nor an encoder's folder or repository; "
            f"give a file in the format of GloVe, a folder that holds {', '.join(FILES)}, or OWNER/NAME"
        )


def _words(data: TextData, at_least: int, *, splits: Sequence[str] = ("train",)) -> WordTokenizer:
    try:
        return learn_words(data, splits=splits, at_least=at_least)
    except ValueError as error:
        raise UserError(f"--min-count {at_least} does not fit the data: {error}") from error


def _word_table(pretrained: Pretrained) -> np.ndarray:
    return np.asarray(pretrained.params["embeddings"]["word"]["embedding"])


def _check_length(tokenizer: Tokenizer, max_length: int, *, pairs: bool) -> None:
    try:
        tokenizer.encode(["a"], ["a"] if pairs else None, max_length=max_length)
    except ValueError as error:
        raise UserError(f"--max-length {max_length} does not fit the tokenizer: {error}") from error
