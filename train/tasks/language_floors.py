"""Floors that need no network: tables of tokens, and of pairs of tokens, counted on the answers that are trained on."""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ..data.packing import PackedBatch

BACKED_OFF = 1.0  # pairs of each first token that are counted as if the table of single tokens had drawn them


class Floor(NamedTuple):
    """The shares of held-out tokens that a table predicts, and the mean of its losses, in nats."""

    accuracy: float
    loss: float


def floors(train: PackedBatch, test: PackedBatch, vocabulary_size: int) -> dict[str, Floor]:
    r"""Tables fitted on the answers of a train split, and tried on those of another.

    Of single tokens it is :math:`p(w) = (c(w) + 1) / (n + V)`; of pairs
    :math:`p(w | u) = (c(u, w) + p(w)) / (c(u) + 1)`, u the token before, which may be the prompt's last. Neither sees
    noise.
    """
    (before, after), (given, wanted) = pairs(train), pairs(test)
    counts = np.bincount(after, minlength=vocabulary_size)
    single = (counts + 1.0) / (counts.sum() + vocabulary_size)
    table: Any = csr_array((np.ones(len(after)), (before, after)), shape=(vocabulary_size,) * 2)
    table.sum_duplicates()
    totals = np.bincount(before, minlength=vocabulary_size)
    seen = np.asarray(table[given, wanted]).reshape(-1)
    paired = (seen + BACKED_OFF * single[wanted]) / (totals[given] + BACKED_OFF)
    likeliest = _likeliest(table, single)[given]
    return {
        "unigram": Floor(float(np.mean(wanted == counts.argmax())), float(-np.log(single[wanted]).mean())),
        "bigram": Floor(float(np.mean(wanted == likeliest)), float(-np.log(paired).mean())),
    }


def pairs(split: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of answers, and the token before each."""
    counted = split.weights > 0.0
    return np.take_along_axis(split.tokens, split.places, axis=1)[counted], split.labels[counted]


def _likeliest(table: Any, single: np.ndarray) -> np.ndarray:
    """Returns the likeliest second token for each first one that was seen; for others, the likeliest single token."""
    likeliest = np.full(table.shape[0], single.argmax())
    starts, words, counts = (np.asarray(part) for part in (table.indptr, table.indices, table.data))
    for first in np.flatnonzero(np.diff(starts)):
        followers = slice(starts[first], starts[first + 1])
        likeliest[first] = words[followers][np.argmax(counts[followers] + BACKED_OFF * single[words[followers]])]
    return likeliest
