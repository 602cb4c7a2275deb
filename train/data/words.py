"""Texts as words, split as in the Penn Treebank, and as numbers of words."""

import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config.errors import UserError
from .rows import is_empty, is_whole, without_breaks

PADDING, UNKNOWN, SEPARATOR = "<padding>", "<unknown>", "<separator>"
# the first numbers. `tokenise` makes no such words
SPECIAL = (PADDING, UNKNOWN, SEPARATOR)
FEWEST_WITH_PAIRS = 3  # tokens: a word, the separator, a word
CLITIC = re.compile(r"(?<=\w)(n't|'(?:s|m|d|re|ve|ll))\b")
WORD = re.compile(
    r"""-[lr][rcs]b- | `` | '' | \.{3} | --  # brackets, signs of several letters
      | (?:[^\W\d_]\.){2,}        # initials: u.s.
      | n't\b | '(?:s|m|d|re|ve|ll)\b  # clitics
      | \d+(?:[.,:]\d+)+             # numbers: 3.5, 1,000, 10:30
      | \w+(?:[-']\w+)*              # words: well-made, o'brien
      | [^\w\s]                      # any other sign by itself""",
    re.VERBOSE,
)


Tokenizer = Any  # a `WordTokenizer`, or an `EncoderTokenizer` of parts of words


class Encoded(NamedTuple):
    """Texts as numbers of tokens and their types (0, or 1 in a second text), int32,
    and how many were truncated."""

    tokens: list[np.ndarray]
    token_types: list[np.ndarray]
    truncated: int


def tokenise(text: str) -> list[str]:
    """Splits a text into lower-case words.

    Signs are words and clitics are split off, as in the Penn Treebank, whose words
    GloVe and SST-2 use. The line breaks of HTML, common in IMDB, are dropped.

    Example:
      >>> tokenise("It's well-made, but I don't care.<br />3.5 stars...")[:9]
      ['it', "'s", 'well-made', ',', 'but', 'i', 'do', "n't", 'care']
    """
    # SST-2 has the slash behind a backslash, as the treebank does.
    plain = without_breaks(text.lower()).replace("’", "'").replace("\\/", " / ")
    return WORD.findall(CLITIC.sub(r" \1", plain))


def check_pairs(texts: Sequence[str], seconds: Sequence[str] | None) -> None:
    """Checks that texts, or the texts of pairs, have words and no lone surrogates.
    Errors give the number of the first that does not."""
    if seconds is not None and len(seconds) != len(texts):
        raise ValueError(
            f"seconds must be as many as texts, {len(texts)}, got {len(seconds)}"
        )
    for number, text in enumerate((*texts, *(seconds or ()))):
        if is_empty(text) or not is_whole(text):
            raise UserError(
                f"number {number % len(texts) + 1} of the texts has no word, or is no"
                " valid UTF-8; leave it out, or mend it"
            )


def encode_batch(
    tokenizer: Any, firsts: Sequence[Any], seconds: Sequence[Any] | None, **options: Any
) -> Encoded:
    """Encodes texts, or pairs, by a ``tokenizers.Tokenizer``."""
    inputs = firsts if seconds is None else zip(firsts, seconds, strict=True)
    encodings = tokenizer.encode_batch(list(inputs), **options)
    return Encoded(
        [np.array(each.ids, np.int32) for each in encodings],
        [np.array(each.type_ids, np.int32) for each in encodings],
        sum(bool(each.overflowing) for each in encodings),
    )


class WordTokenizer:
    """Tokens that are words, as `tokenise` splits them. All unknown words are one
    token. The vocabulary starts with padding, unknown, and the separator of the texts
    of a pair. The checksum is of the vocabulary in its order.
    """

    padding_token = 0

    def __init__(self, words: Iterable[str]) -> None:
        # imported here: most runs need none
        from tokenizers import Tokenizer, models, processors

        self.vocabulary = (*SPECIAL, *words)
        numbers = {word: number for number, word in enumerate(self.vocabulary)}
        if len(numbers) < len(self.vocabulary):
            ((repeated, _),) = Counter(self.vocabulary).most_common(1)
            raise ValueError(f"words must differ, got {repeated!r} more than once")
        self._tokenizer: Any = Tokenizer(models.WordLevel(numbers, UNKNOWN))
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single="$A",
            pair=f"$A {SEPARATOR}:0 $B:1",
            special_tokens=[(SEPARATOR, numbers[SEPARATOR])],
        )
        self.checksum = zlib.crc32("\n".join(self.vocabulary).encode())

    def encode(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
    ) -> Encoded:
        """Turns texts, or pairs of texts, into no more than ``max_length`` tokens each.
        Longer texts lose their end. Of a pair the longer text does, until both are as
        long.
        """
        fewest = 1 if seconds is None else FEWEST_WITH_PAIRS
        if max_length is not None and max_length < fewest:
            raise ValueError(f"max_length must be at least {fewest}, got {max_length}")
        check_pairs(texts, seconds)
        self._tokenizer.enable_truncation(max_length or sys.maxsize)
        words = list(map(tokenise, texts))
        others = None if seconds is None else list(map(tokenise, seconds))
        return encode_batch(self._tokenizer, words, others, is_pretokenized=True)
