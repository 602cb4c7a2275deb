"""Texts as the tokens of Figs. 5 and 6: a number per word, at full length."""

from typing import NamedTuple

import numpy as np

from unroll_jax.train.data.words import tokenise
from unroll_jax.train.tasks.text.data import TextBatch

SMALLEST_BUCKET = 16


class Sentence(NamedTuple):
    """A text of (words,) numbers in the vocabulary, and its label."""

    words: np.ndarray
    label: int


def choose(num_texts: int, count: int, *, seed: int) -> np.ndarray:
    """Numbers of ``count`` texts, different ones if there are enough."""
    generator = np.random.default_rng(seed)
    rounds = [generator.permutation(num_texts) for _ in range(-(-count // num_texts))]
    return np.concatenate([np.arange(0), *rounds])[:count]


def words_of(batches: list[TextBatch]) -> dict[str, int]:
    """Numbers the different words of all texts."""
    words = set()
    for batch in batches:
        words.update(*map(tokenise, batch.texts))
    return {word: number for number, word in enumerate(sorted(words))}


def as_numbers(batch: TextBatch, vocabulary: dict[str, int]) -> list[Sentence]:
    """Returns the numbers of all words of every text."""
    sentences = []
    for text, label in zip(batch.texts, batch.labels.tolist(), strict=True):
        words = [vocabulary[word] for word in tokenise(text)]
        sentences.append(Sentence(np.array(words, np.int32), label))
    return sentences


def bucket(length: int) -> int:
    """The padded length of a text: the least of 16, 24, 32, 48, ... that holds it.

    Each length that occurs is compiled once. There are few for texts of any length, and
    at most a third is padding.
    """
    size = SMALLEST_BUCKET
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def pad(words: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads the numbers of a text's words with zeros.

    Returns:
      Numbers (length,), and True for those of the text, (length,).
    """
    padded = np.zeros(length, np.int32)
    padded[: len(words)] = words
    return padded, np.arange(length) < len(words)
