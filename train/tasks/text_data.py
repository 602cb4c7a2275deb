"""Inputs of text classification: batches of tokens, and the pretrained part of the
model."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..config.errors import OptionError, UserError, option_text
from ..config.tokens import TextRunConfig
from ..data import text
from ..data.files import SPLITS
from ..data.pretrained.encoders import Pretrained, load_pretrained
from ..data.reader import keep_examples
from ..data.text import TextData
from ..data.tokens import TextSpec, TokenData, token_deviation
from ..data.words import Tokenizer, learn_words
from ..system.distributed import weights_checksum

Log = Callable[[str], None]

FEWEST_TO_VALIDATE = 2  # one for each half


class TextInputs:
    """Texts as batches of ``tokens``, a ``pretrained`` encoder or a ``table`` of word
    embeddings (tokens, dim). Each is None if absent; a prediction has no ``tokens``.
    """

    def __init__(
        self,
        spec: TextSpec,
        tokens: TokenData | Any,
        *,
        pretrained: Pretrained | None = None,
        table: np.ndarray | None = None,
        embedding_std: float | None = None,
    ) -> None:
        self.spec, self.tokens, self.pretrained, self.table = (
            spec,
            tokens,
            pretrained,
            table,
        )
        self._embedding_std = embedding_std

    @property
    def num_examples(self) -> int | None:
        """Size of the train split; None without data."""
        return None if self.tokens is None else self.tokens.num_examples("train")

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens."""
        return len(self.spec.tokenizer.vocabulary if self.table is None else self.table)

    @functools.cached_property
    def embedding_std(self) -> float:
        """Standard deviation of an entry of the clean embeddings of train tokens; 1
        where these are learned."""
        if self._embedding_std is not None:
            return self._embedding_std
        if self.table is None:
            return 1.0  # what learned embeddings start with
        counts = np.zeros(len(self.table))
        for batch in self.tokens.examples("train", batch_size=1024):
            counts += np.bincount(batch.tokens[batch.mask], minlength=len(counts))
        table = self.table.astype(np.float64)
        return token_deviation(
            counts, np.mean(table, axis=1), np.mean(table**2, axis=1)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns all that a model needs without the texts, as JSON values."""
        return {
            **self.spec.to_json(),
            "embedding_std": self.embedding_std,
            "hidden": None if self.pretrained is None else self.pretrained.hidden,
            "table": None if self.table is None else list(self.table.shape),
        }

    @classmethod
    def from_json(cls, **values: Any) -> "TextInputs":
        """Reads what `to_json` wrote: enough for a model, whose parameters are then
        loaded."""
        hidden, table = values["hidden"], values["table"]
        rest = ("embedding_std", "hidden", "table")
        spec = TextSpec.from_json(
            {name: value for name, value in values.items() if name not in rest}
        )
        pretrained = (
            None
            if hidden is None
            else Pretrained(spec.tokenizer.config, {}, {}, hidden, spec.tokenizer)
        )
        table = None if table is None else np.broadcast_to(np.float32(0.0), table)
        return cls(
            spec,
            None,
            pretrained=pretrained,
            table=table,
            embedding_std=values["embedding_std"],
        )

    def data_fingerprint(self) -> dict[str, Any]:
        """Returns figures that change when the texts, their labels, the numbers of
        tokens or the given weights do. Words are not stored: a run learns them again
        from the texts, and edited texts may give them other numbers.
        """
        return {
            "examples": {split: self.tokens.num_examples(split) for split in SPLITS},
            "classes": list(self.spec.class_names),
            "vocabulary": self.vocabulary_size,
            "texts_checksums": self.tokens.checksums,
            "tokenizer_checksum": self.spec.tokenizer.checksum,
            "weights_checksum": self._weights_checksum,
        }

    @functools.cached_property
    def _weights_checksum(self) -> int | None:
        """The checksum of all pretrained weights; None without any."""
        given = (
            self.table
            if self.pretrained is None
            else (self.pretrained.params, self.pretrained.head)
        )
        return weights_checksum(given)


def load_inputs(config: TextRunConfig, log: Log) -> TextInputs:
    """Opens the texts and the pretrained part of the model."""
    data = text.load(config.data, log=log)
    keep_examples(data, config)
    if (count := data.num_examples("validation")) < FEWEST_TO_VALIDATE:
        allowed = (
            f"at least {FEWEST_TO_VALIDATE}, one for each half of early exit; or give"
            " more texts"
        )
        raise OptionError("validation_examples", allowed, count)
    tokenizer, pretrained, table = _tokenizer_and_weights(config, data, log)
    _check_length(tokenizer, config.max_length, pairs=data.pairs)
    if table is not None and np.ptp(table) == 0.0:
        raise UserError(
            "all entries of the given word embeddings are one number, so noise would be"
            " 0; give others"
        )
    tokens = TokenData(data, tokenizer, max_length=config.max_length, log=log)
    return TextInputs(tokens.spec, tokens, pretrained=pretrained, table=table)


def _tokenizer_and_weights(
    config: TextRunConfig, data: TextData, log: Log
) -> tuple[Tokenizer, Pretrained | None, np.ndarray | None]:
    if config.pretrained is None:
        return learn_words(data, at_least=config.min_count), None, None
    option = "--model.pretrained" if config.is_encoder else "--model.embeddings"
    pretrained = load_pretrained(config.pretrained, option=option, log=log)
    # allowed, as it may be the experiment's default for learned embeddings
    if config.min_count != 1:
        log(
            f"{option_text('min_count', config.min_count)} has no effect: the tokens"
            f" are those of {config.pretrained}"
        )
    table = np.asarray(pretrained.params["embeddings"]["word"]["embedding"])
    return pretrained.tokenizer, pretrained if config.is_encoder else None, table


def _check_length(tokenizer: Tokenizer, max_length: int, *, pairs: bool) -> None:
    try:
        tokenizer.encode(["a"], ["a"] if pairs else None, max_length=max_length)
    except ValueError as error:
        raise UserError(
            f"{option_text('max_length', max_length)} does not fit the tokenizer:"
            f" {error}"
        ) from error
