"""Texts as numbers of tokens: what a tokenizer is, and the one whose tokens are words."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from train.data.text.embeddings import Embeddings
from train.data.text.texts import TextData
from train.data.text.words import is_whole, tokenise, without_breaks
from train.errors import UserError

__all__ = ["Encoded", "Tokenizer", "WordTokenizer", "check_texts", "embedding_table", "learn_words"]

PADDING, UNKNOWN, SEPARATOR = "<padding>", "<unknown>", "<separator>"
SPECIAL = (PADDING, UNKNOWN, SEPARATOR)  # the first numbers; `tokenise` makes no such words
FEWEST_WITH_PAIRS = 3  # tokens: a word, the separator, a word


class Encoded(NamedTuple):
    """Texts as tokens, each as long as it is.

    Attributes:
      tokens: Numbers of tokens, int32 (n,), one array a text.
      token_types: Of each token, 0 in the first text and 1 in the second, int32 (n,); all 0 where there is no second.
      truncated: How many texts were longer than allowed.
    """

    tokens: list[np.ndarray]
    token_types: list[np.ndarray]
    truncated: int


class Tokenizer(Protocol):
    """What batches of tokens need of a tokenizer, of words or of parts of words."""

    @property
    def padding_token(self) -> int:
        """The number that stands where a text has ended."""
        ...

    @property
    def checksum(self) -> int:
        """CRC-32 of what it knows: another one may give texts other numbers."""
        ...

    def encode(self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, max_length: int | None) -> Encoded:
        """Turns texts, or pairs of texts, into no more than ``max_length`` tokens each."""
        ...


def check_texts(texts: Sequence[str], *, what: str = "texts", first: int = 1) -> None:
    """Checks that texts can be turned into tokens.

    Args:
      texts: The texts.
      what: What to call them.
      first: The number of the first.

    Raises:
      UserError: if some have nothing but white space and line breaks of HTML, or halves of characters; it says which.
    """
    _refuse([not without_breaks(text).strip() for text in texts], f"{what} without a word, number", first)
    _refuse([not is_whole(text) for text in texts], f"{what} that are no valid UTF-8, number", first)


def _refuse(bad: list[bool], problem: str, first: int) -> None:
    places = [str(place) for place, found in enumerate(bad, start=first) if found]
    if places:
        more = " and more" if len(places) > 10 else ""
        raise UserError(f"{len(places)} {problem} {', '.join(places[:10])}{more}; leave them out, or mend them")


class WordTokenizer:
    """Tokens that are words, as `tokenise` splits them; all words it does not know are one token.

    The two texts of a pair stand behind each other with a separator between.

    Args:
      words: Those it knows, in the order of their numbers.

    Attributes:
      vocabulary: All tokens in the order of their numbers; the first three are padding, unknown and separator.
      padding_token: 0.
      checksum: CRC-32 of the vocabulary in its order.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.vocabulary = (*SPECIAL, *words)
        self.padding_token = 0
        self._numbers = {word: number for number, word in enumerate(self.vocabulary)}
        if len(self._numbers) < len(self.vocabulary):
            repeated = next(word for word, count in Counter(self.vocabulary).items() if count > 1)
            raise ValueError(f"words must differ, got {repeated!r} more than once")
        self.checksum = zlib.crc32("\n".join(self.vocabulary).encode())

    def encode(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> Encoded:
        """Turns texts, or pairs of texts, into tokens.

        Args:
          texts: The texts.
          seconds: The second text of each pair.
          max_length: Most tokens of a text or pair; None allows any number. Longer texts lose their end; of a pair the
            longer text does, until both are as long.

        Raises:
          UserError: if a text cannot be used, see `check_texts`.
          ValueError: if ``max_length`` is too small, or ``seconds`` are not as many as ``texts``.
        """
        fewest = 1 if seconds is None else FEWEST_WITH_PAIRS
        if max_length is not None and max_length < fewest:
            raise ValueError(f"max_length must be at least {fewest}, got {max_length}")
        if seconds is not None and len(seconds) != len(texts):
            raise ValueError(f"seconds must be as many as texts, {len(texts)}, got {len(seconds)}")
        check_texts(texts)
        check_texts(seconds or (), what="second texts")
        firsts = self._columns(texts)
        if seconds is None:
            pieces = [(first[:max_length], np.zeros(len(first[:max_length]), np.int32)) for first in firsts]
            lengths = [len(first) for first in firsts]
        else:
            both = list(zip(firsts, self._columns(seconds), strict=True))
            pieces = [self._joined(*pair, max_length) for pair in both]
            lengths = [len(first) + 1 + len(second) for first, second in both]
        truncated = 0 if max_length is None else sum(length > max_length for length in lengths)
        return Encoded([tokens for tokens, _ in pieces], [types for _, types in pieces], truncated)

    def _columns(self, texts: Sequence[str]) -> list[np.ndarray]:
        unknown = self._numbers[UNKNOWN]
        return [np.array([self._numbers.get(word, unknown) for word in tokenise(text)], np.int32) for text in texts]

    def _joined(self, first: np.ndarray, second: np.ndarray, max_length: int | None) -> tuple[np.ndarray, np.ndarray]:
        if max_length is not None:
            room = max_length - 1
            kept = min(len(first), max(room - len(second), (room + 1) // 2))
            first, second = first[:kept], second[: room - kept]
        tokens = np.concatenate([first, np.array([self._numbers[SEPARATOR]], np.int32), second])
        return tokens, (np.arange(len(tokens)) > len(first)).astype(np.int32)


def learn_words(data: TextData, *, splits: Sequence[str] = ("train",), at_least: int = 1) -> WordTokenizer:
    """A tokenizer of the words of a data set, the most frequent first.

    Args:
      data: The texts.
      splits: Those that count. With fixed word vectors from a file, words of the other splits may be taken in too, as
        nothing is learned of them; with learned vectors they would stay as they were drawn.
      at_least: How often a word must occur.

    Raises:
      ValueError: if ``at_least`` is below 1, or no word is left.
    """
    if at_least < 1:
        raise ValueError(f"at_least must be at least 1, got {at_least}")
    counts: Counter[str] = Counter()
    for split in splits:
        for batch in data.examples(split, batch_size=256):
            for text in (*batch.texts, *(batch.seconds or ())):
                counts.update(tokenise(text))
    words = sorted((word for word in counts if counts[word] >= at_least), key=lambda word: (-counts[word], word))
    if not words:
        raise ValueError(f"at_least={at_least} leaves no word; the most frequent occurs {max(counts.values())} times")
    return WordTokenizer(words)


def embedding_table(tokenizer: WordTokenizer, embeddings: Embeddings) -> np.ndarray:
    """The vector of every token, float32 (tokens, dim); that of padding is 0."""
    table = embeddings(tokenizer.vocabulary)
    table[tokenizer.padding_token] = 0.0
    return table
