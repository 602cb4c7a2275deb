"""Texts as the tokens of Figs. 5 and 6: a vector per word, at full length."""

from typing import NamedTuple

import numpy as np

from papers.yang2022.vectors import Embeddings
from unroll_jax.train.data.words import tokenise
from unroll_jax.train.tasks.text.data import TextBatch

SMALLEST_BUCKET = 16


class Sentence(NamedTuple):
    """A text of (words, dim) vectors, and its label."""

    vectors: np.ndarray
    label: int


def choose(num_texts: int, count: int, *, seed: int) -> np.ndarray:
    """Numbers of ``count`` texts, different ones if there are enough."""
    generator = np.random.default_rng(seed)
    rounds = [generator.permutation(num_texts) for _ in range(-(-count // num_texts))]
    return np.concatenate([np.arange(0), *rounds])[:count]


def words_of(batches: list[TextBatch]) -> set[str]:
    """The words of all texts, to read their vectors."""
    words = set()
    for batch in batches:
        words.update(*map(tokenise, batch.texts))
    return words


def embed(batch: TextBatch, embeddings: Embeddings) -> list[Sentence]:
    """The vectors of all words of every text."""
    pairs = zip(batch.texts, batch.labels.tolist(), strict=True)
    return [Sentence(embeddings(tokenise(text)), label) for text, label in pairs]


def bucket(length: int) -> int:
    """The padded length of a text: the least of 16, 24, 32, 48, ... that holds it.

    Each length that occurs is compiled once. There are few for texts of any length, and
    at most a third is padding.
    """
    size = SMALLEST_BUCKET
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def pad(vectors: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads the vectors of a text with zeros.

    Returns:
      Vectors (length, dim), and True for those of the text, (length,).
    """
    padded = np.zeros((length, vectors.shape[1]), vectors.dtype)
    padded[: len(vectors)] = vectors
    return padded, np.arange(length) < len(vectors)
