"""Word vectors: read from a file in the format of GloVe, or drawn from a hash of the word."""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from train.errors import UserError

__all__ = ["Embeddings", "glove_embeddings", "hashed_embeddings", "hashed_vector"]


class Embeddings:
    """A vector for every word: the file's where it has one, else one drawn from a hash of the word.

    Args:
      dim: Width of the vectors.
      vectors: Those of a file.
      length: Expected length of the drawn vectors.
    """

    def __init__(self, dim: int, vectors: Mapping[str, np.ndarray], *, length: float) -> None:
        self.dim, self._vectors, self._length = dim, dict(vectors), length
        self._drawn: dict[str, np.ndarray] = {}

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """The vectors of words, float32 (words, dim)."""
        return np.stack([self._vector(word) for word in words])

    def covers(self, word: str) -> bool:
        """Whether the vector of a word comes from the file."""
        return word in self._vectors

    def _vector(self, word: str) -> np.ndarray:
        if word in self._vectors:
            return self._vectors[word]
        if word not in self._drawn:
            self._drawn[word] = hashed_vector(word, self.dim, length=self._length)
        return self._drawn[word]


def hashed_vector(word: str, dim: int, *, length: float = 1.0) -> np.ndarray:
    """A Gaussian vector that is a function of the word alone, the same in every run and on every machine.

    Its entries are independent, of mean 0 and variance length^2 / dim: the bytes of SHAKE-256 of the word, read as
    uniform numbers and put through the inverse of the normal distribution. Different words are thus about
    length sqrt(2) apart, whatever they mean.
    """
    bits = np.frombuffer(hashlib.shake_256(word.encode()).digest(4 * dim), "<u4")
    return (length / math.sqrt(dim) * ndtri((bits + 0.5) / 2.0**32)).astype(np.float32)


def hashed_embeddings(dim: int, *, length: float = 1.0) -> Embeddings:
    """Embeddings without a file: every vector is a `hashed_vector`."""
    return Embeddings(dim, {}, length=length)


def glove_embeddings(path: Path, words: Collection[str]) -> Embeddings:
    """Reads the vectors of words from a file in the format of GloVe: a word and its numbers on each line.

    Files of any width will do, and words may hold spaces, as some of GloVe's largest file do. Only the wanted vectors
    are kept. Words that the file lacks get a `hashed_vector` of the root mean square length of those it has.

    Raises:
      UserError: if the file is missing, empty or not UTF-8, has lines of different widths, has a wanted vector with
        something that is no finite number, or has none of the words; it names the line.
    """
    if not path.is_file():
        raise UserError(f"embeddings={path} is not a file; give one in the format of GloVe: a word and numbers a line")
    wanted, vectors, dim = set(words), {}, 0
    for where, word, numbers in _lines(path):
        dim = dim or len(numbers)
        if word in wanted and word not in vectors:
            vectors[word] = _parsed(numbers, where)
    if not vectors:
        raise UserError(
            f"embeddings={path} has none of the {len(wanted)} words; give a file of their language, lower-case"
        )
    if not any(vector.any() for vector in vectors.values()):
        raise UserError(f"embeddings={path} has nothing but zeros for the {len(vectors)} words it knows; give others")
    length = math.sqrt(np.mean([np.sum(vector.astype(np.float64) ** 2) for vector in vectors.values()]))
    return Embeddings(dim, vectors, length=length)


def _lines(path: Path) -> Iterator[tuple[str, str, list[bytes]]]:
    """What to call each line, its word and its numbers as they stand."""
    dim = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"embeddings={path} line {number}"
            dim = dim or len(line.split()) - 1
            # From the right: the word may hold spaces.
            word, *numbers = line.rstrip().rsplit(b" ", max(dim, 1))
            if not dim:
                raise UserError(f"{where} has 0 numbers after its word; give a file in the format of GloVe")
            if len(numbers) != dim or _ends_in_number(word):
                width = len(line.split()) - 1
                raise UserError(f"{where} has {width} numbers after its word, the first line has {dim}; mend the file")
            try:
                yield where, word.decode(), numbers
            except UnicodeDecodeError as error:
                raise UserError(f"{where} is not UTF-8; convert the file to UTF-8") from error
    if not dim:
        raise UserError(f"embeddings={path} is empty; give a file in the format of GloVe: a word and numbers a line")


def _ends_in_number(word: bytes) -> bool:
    """Whether a word with spaces swallowed a number of its line."""
    return b" " in word and _is_number(word.rsplit(b" ", 1)[1])


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parsed(numbers: list[bytes], where: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # infinity is told below
            vector = np.array([float(number) for number in numbers], np.float32)
    except ValueError as error:
        raise UserError(
            f"{where}: {str(error).removeprefix('could not convert string to float: ')} is no number"
        ) from error
    if not np.isfinite(vector).all():
        raise UserError(f"{where} holds a number that is not finite; mend the file")
    return vector
