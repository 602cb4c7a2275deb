"""Texts as numbers of a pretrained encoder's tokens, by the tokenizer that lies beside its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from train.errors import UserError
from unroll_jax.models import EncoderConfig

__all__ = ["Encoded", "TokenBatch", "Tokenizer", "load_tokenizer", "pad"]


class Encoded(NamedTuple):
    """Texts as tokens, each as long as it is.

    Attributes:
      tokens: Numbers of tokens, int32 (n,), one array a text.
      token_types: Their kinds likewise; all 0 where the encoder knows only one.
      truncated: How many texts were longer than allowed.
    """

    tokens: list[np.ndarray]
    token_types: list[np.ndarray]
    truncated: int


class TokenBatch(NamedTuple):
    """Tokens, padded to one length: what an encoder takes.

    Attributes:
      tokens: int32 (batch, n).
      mask: bool (batch, n), which tokens are real.
      token_types: int32 (batch, n).
    """

    tokens: np.ndarray
    mask: np.ndarray
    token_types: np.ndarray


class Tokenizer:
    """A tokenizer that fits an encoder.

    Args:
      tokenizer: Of the package ``tokenizers``; its own padding and truncation are switched off.
      config: Of the encoder.

    Attributes:
      config: Of the encoder.
    """

    def __init__(self, tokenizer: Any, config: EncoderConfig) -> None:
        self.config, self._tokenizer = config, tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def encode(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> Encoded:
        """Turns texts, or pairs of texts, into tokens.

        Args:
          texts: The texts.
          seconds: The second text of each pair.
          max_length: Most tokens of a text, those added at its ends included; None is what the encoder can take.
            Longer texts lose their end, of pairs the longer one does first.

        Raises:
          UserError: if a text is empty but for white space; it says which.
          ValueError: if max_length is not in the encoder's range, or ``seconds`` has another length than ``texts``.
        """
        limit = self._limit(max_length, pairs=seconds is not None)
        if seconds is not None and len(seconds) != len(texts):
            raise ValueError(f"seconds must be as many as texts, {len(texts)}, got {len(seconds)}")
        for column in (texts, seconds or ()):
            _check_texts(column)
        self._tokenizer.enable_truncation(limit)
        inputs: Any = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        found = self._tokenizer.encode_batch(inputs)
        types = [np.array(each.type_ids, np.int32) for each in found]
        return Encoded(
            tokens=[np.array(each.ids, np.int32) for each in found],
            token_types=types if self.config.token_types > 1 else [np.zeros_like(each) for each in types],
            truncated=sum(bool(each.overflowing) for each in found),
        )

    def _limit(self, max_length: int | None, *, pairs: bool) -> int:
        limit, added = self.config.max_positions, self._tokenizer.num_special_tokens_to_add(pairs)
        if max_length is None:
            return limit
        if not added < max_length <= limit:
            raise ValueError(
                f"max_length must be in ({added}, {limit}], as {added} tokens are added to each text and the encoder "
                f"has {limit} positions, got {max_length}"
            )
        return max_length


def load_tokenizer(folder: Path, config: EncoderConfig) -> Tokenizer:
    """Reads tokenizer.json of a folder.

    Raises:
      UserError: if the file is missing or damaged, or has a token that the encoder has no embedding of.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{file} does not exist; save the tokenizer as the package tokenizers does")
    try:
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing more special
        raise UserError(f"{file} cannot be read as a tokenizer ({error}); copy it again") from error
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(vocabulary, key=lambda token: vocabulary[token], default=None)
    if last is None:
        raise UserError(f"{file} has no tokens; copy it again")
    if vocabulary[last] >= config.vocabulary_size:
        count = sum(number >= config.vocabulary_size for number in vocabulary.values())
        raise UserError(
            f"{file} does not fit the vocabulary: {count} of its tokens, as {last!r} with number {vocabulary[last]}, "
            f"have no row in the embedding table of {config.vocabulary_size}; take the tokenizer that came with the "
            "weights"
        )
    return Tokenizer(tokenizer, config)


def pad(
    tokens: Sequence[np.ndarray],
    token_types: Sequence[np.ndarray],
    config: EncoderConfig,
    *,
    lengths: Sequence[int] | None = None,
) -> TokenBatch:
    """Pads a batch on the right.

    Args:
      tokens: Of `Encoded`, one array a text.
      token_types: Likewise.
      config: Of the encoder.
      lengths: Lengths that a batch may have: the shortest that holds all of its texts is taken, so that a program is
        compiled for each of them only; None takes that of the longest text.

    Raises:
      ValueError: if there are no texts, or one is longer than all lengths.
    """
    if not len(tokens):
        raise ValueError("tokens must be those of at least one text, got none")
    longest = max(len(each) for each in tokens)
    fitting = [length for length in ([longest] if lengths is None else lengths) if length >= longest]
    if not fitting:
        raise ValueError(f"lengths must hold one of at least {longest}, got {lengths}; truncate texts to the longest")
    shape = (len(tokens), min(fitting))
    batch = TokenBatch(np.full(shape, config.padding_token, np.int32), np.zeros(shape, bool), np.zeros(shape, np.int32))
    for row, (numbers, types) in enumerate(zip(tokens, token_types, strict=True)):
        batch.tokens[row, : len(numbers)] = numbers
        batch.mask[row, : len(numbers)] = True
        batch.token_types[row, : len(types)] = types
    return batch


def _check_texts(texts: Sequence[str]) -> None:
    empty = [str(place) for place, text in enumerate(texts, start=1) if not text.strip()]
    if empty:
        places = ", ".join(empty[:10]) + (" and more" if len(empty) > 10 else "")
        raise UserError(f"{len(empty)} of {len(texts)} texts are empty, number {places}; give each at least a word")
