"""Readings of answers by the layers of a language model, and tables of tokens as
floors."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from ..config.errors import UserError
from ..data.answers import AnswerTokenizer, PackedBatch, arrays, kept_positions, pack
from ..data.instructions import Conversation
from ..data.rows import is_whole

# pairs of each first token that are counted as if the table of single tokens had drawn
# them
BACKED_OFF = 1.0


class Drawn(NamedTuple):
    """A batch with the draws of a step: noise of the embeddings, and positions at
    which not all layers are read."""

    batch: PackedBatch
    noise: Float[Array, "batch n dim"] | None
    # kept positions at which layers before the last are read; None for all
    chosen: Int[Array, "batch part"] | None
    # by which a sum over these estimates that over all
    weights: Float[Array, "batch part"] | None


class LanguageReading(NamedTuple):
    """The layers that are read, on a whole split at one strength of noise. The loss of
    a text sums over its answer's tokens, over the mean number of tokens: means over
    texts are over tokens.
    """

    losses: np.ndarray  # of the texts, (N, layers)
    accuracies: np.ndarray  # (layers,), share of tokens that each layer predicts
    # (layers,), share at which it agrees with the last one: the acceptance of one-token
    # drafts
    agreements: np.ndarray
    perplexities: np.ndarray  # (layers,), exponentials of mean losses of tokens


class Answered(NamedTuple):
    """The answer to one prompt as a model sees it."""

    answer: str  # the answer
    # of its tokens, the end among them, by the last layer; in nats
    log_probabilities: np.ndarray
    losses: np.ndarray  # means over these tokens of every layer that is read
    accuracies: np.ndarray  # the share of these tokens that each layer predicts
    layers: tuple[int, ...]  # numbers of these layers


def choose(key: jax.Array, weights: Any, share: int) -> tuple[Array, Array]:
    """One in ``share`` of the positions that count in each row, and weights: weighted
    sums over them estimate sums over all. ``weights`` (batch, kept) are 1 where a
    position counts. Both are (batch, kept / share), rounded up. A row with few of them
    has all chosen; rows are functions of the key and their place in the batch.
    """
    weights = jnp.asarray(weights)
    most = -(-weights.shape[1] // share)
    order = jnp.where(weights > 0.0, jax.random.uniform(key, weights.shape), -1.0)
    largest, chosen = jax.lax.top_k(order, most)
    counted = (largest >= 0.0).astype(weights.dtype)
    totals = jnp.sum(weights, axis=1, keepdims=True)
    return chosen, counted * totals / jnp.maximum(
        jnp.sum(counted, axis=1, keepdims=True), 1.0
    )


def paired(inputs: Any, answers: Any) -> tuple[list[str], list[str]]:
    """Returns prompts, and an answer to each."""
    inputs, answers = (
        [each] if isinstance(each, str) else list(each or ())
        for each in (inputs, answers)
    )
    if not inputs:
        raise UserError("predict needs prompts; give --text, or a --file of them")
    if len(inputs) != len(answers):
        raise UserError(
            f"predict needs one answer (--second) for each prompt, got {len(inputs)}"
            f" prompts and {len(answers)} answers; to have prompts answered, use"
            " generate"
        )
    for kind, texts in (("prompt", inputs), ("answer", answers)):
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise UserError(
                    f"{kind} {number} must be a text, got {text!r:.60}; leave it out"
                )
            if not (text.strip() and is_whole(text)):
                raise UserError(
                    f"{kind} {number} is"
                    f" {'no valid UTF-8' if text.strip() else 'empty'}; leave it out"
                )
    return inputs, answers


def rows_of(
    inputs: Sequence[str],
    answers: Sequence[str],
    tokenizer: AnswerTokenizer,
    *,
    max_length: int,
) -> PackedBatch:
    """Returns prompts with their answers, a row each."""
    texts = tokenizer.encode(
        [Conversation(*pair) for pair in zip(inputs, answers, strict=True)]
    )
    for number, text in enumerate(texts, start=1):
        if len(text.tokens) > max_length:
            raise UserError(
                f"prompt {number} has {text.first} tokens, with its answer"
                f" {len(text.tokens)}, and training took at most {max_length}; give"
                " shorter ones"
            )
    rows = pack([len(text.tokens) for text in texts], 0)
    return arrays(texts, rows, max_length, kept_positions(texts, rows))


def answered(
    answers: Sequence[str],
    losses: np.ndarray,
    words: np.ndarray,
    whole: PackedBatch,
    layers: tuple[int, ...],
) -> Iterator[Answered]:
    """Splits losses and predicted tokens (layers, rows, kept) into readings, row by
    row."""
    for row, answer in enumerate(answers):
        counted = whole.weights[row] > 0.0
        of_answer, right = (
            losses[:, row, counted],
            words[:, row, counted] == whole.labels[row, counted],
        )
        yield Answered(
            answer, -of_answer[-1], of_answer.mean(axis=1), right.mean(axis=1), layers
        )


class Floor(NamedTuple):
    """The shares of held-out tokens that a table predicts, and the mean of its
    losses, in nats."""

    accuracy: float
    loss: float


def floors(
    train: PackedBatch, test: PackedBatch, vocabulary_size: int
) -> dict[str, Floor]:
    r"""Tables fitted on the answers of a train split, tried on the answers of another:
    :math:`p(w) = (c(w) + 1) / (n + V)`; of pairs
    :math:`p(w | u) = (c(u, w) + p(w)) / (c(u) + 1)`, u the token before, perhaps the
    prompt's last; no noise.
    """
    (before, after), (given, wanted) = pairs(train), pairs(test)
    counts = np.bincount(after, minlength=vocabulary_size)
    single = (counts + 1.0) / (counts.sum() + vocabulary_size)
    table: Any = csr_array(
        (np.ones(len(after)), (before, after)), shape=(vocabulary_size,) * 2
    )
    table.sum_duplicates()
    totals = np.bincount(before, minlength=vocabulary_size)
    seen = np.asarray(table[given, wanted]).reshape(-1)
    paired = (seen + BACKED_OFF * single[wanted]) / (totals[given] + BACKED_OFF)
    likeliest = _likeliest(table, single)[given]
    return {
        "unigram": Floor(
            float(np.mean(wanted == counts.argmax())),
            float(-np.log(single[wanted]).mean()),
        ),
        "bigram": Floor(
            float(np.mean(wanted == likeliest)), float(-np.log(paired).mean())
        ),
    }


def pairs(split: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of answers, and the token before each."""
    counted = split.weights > 0.0
    return (
        np.take_along_axis(split.tokens, split.places, axis=1)[counted],
        split.labels[counted],
    )


def _likeliest(table: Any, single: np.ndarray) -> np.ndarray:
    """Returns the likeliest second token for each first one that was seen; for
    others, the likeliest single token."""
    likeliest = np.full(table.shape[0], single.argmax())
    starts, words, counts = (
        np.asarray(part) for part in (table.indptr, table.indices, table.data)
    )
    for first in np.flatnonzero(np.diff(starts)):
        followers = slice(starts[first], starts[first + 1])
        likeliest[first] = words[followers][
            np.argmax(counts[followers] + BACKED_OFF * single[words[followers]])
        ]
    return likeliest
