"""Texts as numbers of a pretrained encoder's tokens, by the tokenizer that lies beside its weights."""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train.data.text.word_tokenizer import Encoded, check_texts
from train.errors import UserError
from train.pretrained.folders import missing_file
from unroll_jax.models import EncoderConfig

__all__ = ["EncoderTokenizer", "load_tokenizer"]

UNKNOWN = "a \U0010ffff"  # a word that some know, and a sign that none does
PADDING = ("[PAD]", "<pad>")  # what BERT and RoBERTa call it
FILLED = 0.9  # share of an embedding table that tokens have; some tables are rounded up to multiples of 64


class EncoderTokenizer:
    """A tokenizer that fits an encoder.

    Args:
      tokenizer: Of the package ``tokenizers``; its own padding and truncation are switched off.
      config: Of the encoder.

    Attributes:
      config: Of the encoder.
      padding_token: Number of the token that fills sequences up.
      checksum: CRC-32 of the tokenizer but for padding and truncation.
    """

    def __init__(self, tokenizer: Any, config: EncoderConfig) -> None:
        self.config, self.padding_token, self._tokenizer = config, config.padding_token, tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.checksum = zlib.crc32(tokenizer.to_str().encode())

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
          UserError: if a text cannot be used, see `check_texts`.
          ValueError: if max_length leaves no token of a text or is more than the encoder can take, or ``seconds`` has
            another length than ``texts``.
        """
        limit = self._limit(max_length, pairs=seconds is not None)
        if seconds is not None and len(seconds) != len(texts):
            raise ValueError(f"seconds must be as many as texts, {len(texts)}, got {len(seconds)}")
        check_texts(texts)
        check_texts(seconds or (), what="second texts")
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
        found, least = limit if max_length is None else max_length, added + (2 if pairs else 1)
        if not least <= found <= limit:
            raise ValueError(
                f"max_length must be in [{least}, {limit}], as {added} tokens are added to each "
                f"{'pair' if pairs else 'text'} and the encoder has {limit} positions, got {max_length}"
            )
        return found


def load_tokenizer(folder: Path, config: EncoderConfig, *, log: Callable[[str], None] = print) -> EncoderTokenizer:
    """Reads tokenizer.json of a folder.

    Args:
      folder: where it lies.
      config: of the encoder that it must fit.
      log: takes a line where much of the embedding table has no token.

    Raises:
      UserError: if the file is missing or damaged, makes a token that the encoder has no embedding of, or fills texts
        up with another token than the encoder does.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise missing_file(str(folder), file.name, [])
    import tokenizers  # here, as only runs that start from an encoder need it

    with _usable(file):
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise UserError(f"{file} has no tokens; copy it again")
    # The tokens that are put around texts have numbers of their own, which an unknown text and a pair of them show.
    with _usable(file):
        tokenizer.no_truncation()
        tried = [tokenizer.encode(*texts) for texts in ((UNKNOWN,), (UNKNOWN, UNKNOWN))]
    numbers = {number: token for token, number in vocabulary.items()}
    numbers |= {number: token for each in tried for number, token in zip(each.ids, each.tokens, strict=True)}
    if (last := max(numbers)) >= config.vocabulary_size:
        count = sum(number >= config.vocabulary_size for number in numbers)
        raise UserError(
            f"{file} does not fit the vocabulary: {count} of its tokens, as {numbers[last]!r} with number {last}, have "
            f"no row in the embedding table of {config.vocabulary_size}; take the tokenizer that came with the weights"
        )
    _check_padding(file, tokenizer, config)
    if len(numbers) < FILLED * config.vocabulary_size:
        log(
            f"{file} has {len(numbers)} tokens for an embedding table of {config.vocabulary_size} rows: make sure that "
            "it came with the weights"
        )
    return EncoderTokenizer(tokenizer, config)


def _check_padding(file: Path, tokenizer: Any, config: EncoderConfig) -> None:
    """Refuses a padding token of another number than the encoder's: such a tokenizer is that of another encoder."""
    own = (tokenizer.padding or {}).get("pad_token")
    found = [(name, tokenizer.token_to_id(name)) for name in (own, *PADDING) if name is not None]
    name, number = next((each for each in found if each[1] is not None), (None, config.padding_token))
    if number != config.padding_token:
        raise UserError(
            f"{file} does not fit the weights: its padding token {name!r} has number {number}, config.json has "
            f"pad_token_id={config.padding_token}; take the tokenizer that came with the weights, or if this one did, "
            f"copy the folder and make it {number} there"
        )


@contextlib.contextmanager
def _usable(file: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises nothing special, and where Rust panics no Exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file} cannot be used as a tokenizer ({reason}); copy it again") from error
