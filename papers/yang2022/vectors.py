"""Vectors of words, read from a file like GloVe's, or drawn from a hash of the word."""

import functools
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from unroll_jax.train.config.errors import UserError, option_text
from unroll_jax.train.system.files import open_regular


class Embeddings:
    """A vector of width ``dim`` for every word.

    It is that of a file, or else a `hashed_vector` of a given length.
    """

    def __init__(
        self, dim: int, vectors: Mapping[str, np.ndarray], *, length: float
    ) -> None:
        self.dim = dim
        self._vectors = dict(vectors)
        hashed = functools.partial(hashed_vector, dim=dim, length=length)
        self._hashed = functools.cache(hashed)

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """The vectors of words, float32 (words, dim)."""
        known = self._vectors
        return np.stack([known[w] if w in known else self._hashed(w) for w in words])

    def covers(self, word: str) -> bool:
        """Returns whether the vector of a word comes from the file."""
        return word in self._vectors


def hashed_vector(word: str, dim: int, *, length: float = 1.0) -> np.ndarray:
    """A Gaussian vector that is a function of the word only.

    It is the same in every run and on every machine. Its entries have mean 0 and
    variance length^2 / dim: normal quantiles of the bytes of SHAKE-256.
    """
    bits = np.frombuffer(hashlib.shake_256(word.encode()).digest(4 * dim), "<u4")
    entries = ndtri((bits + 0.5) / 2.0**32)
    return (length / math.sqrt(dim) * entries).astype(np.float32)


def glove_embeddings(path: Path, words: Collection[str]) -> Embeddings:
    """Reads the vectors of words from a file in the format of GloVe.

    Each line has a word, which may contain spaces, and its numbers. Words that are not
    in the file get a `hashed_vector` of the root mean square length of the others.
    """
    where = option_text("embeddings", path)
    mend = "give one in the format of GloVe: a word and numbers per line"
    wanted = set(words)
    vectors = {}
    dim = 0
    with open_regular(path, where=where, mend=mend) as file:
        for number, line in enumerate(file, start=1):
            dim = dim or len(line.split()) - 1
            word, vector = _split(line, dim, f"{where} line {number}")
            if word in wanted and word not in vectors:
                if not np.isfinite(vector).all():
                    raise UserError(
                        f"{where} line {number} holds something that is not a finite"
                        " number; mend the file"
                    )
                vectors[word] = vector
    if not any(vector.any() for vector in vectors.values()):
        raise UserError(
            f"{where} has no vector but 0 for the {len(wanted)} words; give one of"
            " their language"
        )
    squares = [np.sum(np.float64(vector) ** 2) for vector in vectors.values()]
    return Embeddings(dim, vectors, length=math.sqrt(np.mean(squares)))


def _split(line: bytes, dim: int, where: str) -> tuple[str, np.ndarray]:
    """Returns the word of a line and its vector, with NaN for what is not a number."""
    word, *numbers = line.decode(errors="replace").rstrip().rsplit(" ", max(dim, 1))
    # a word that ends in a number: the line has one number too many
    too_many = " " in word and not math.isnan(_number(word.rsplit(" ", 1)[1]))
    if not dim or len(numbers) != dim or too_many:
        count = len(line.split()) - 1
        raise UserError(
            f"{where} has {count} numbers after its word, the first line has {dim};"
            " mend the file"
        )
    if "\ufffd" in word:
        raise UserError(f"{where} is not UTF-8; convert the file to UTF-8")
    with np.errstate(over="ignore"):  # infinity is an error where a word is wanted
        return word, np.array([_number(number) for number in numbers], np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
