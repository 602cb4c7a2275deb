"""Readings of answers by the layers of a language model, and the rows that are read."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..config.errors import UserError
from ..data.answers import PLACEHOLDER, AnswerTokenizer
from ..data.conversations import Conversation, Message, messages_of
from ..data.packing import PackedBatch, Tokens, arrays, filled, kept_positions, pack
from ..data.rows import is_whole


class Drawn(NamedTuple):
    """A batch with what is random in a step.

    Attributes:
      batch: rows of texts.
      noise: of the embeddings; None where there is none.
      chosen: of the kept positions of each row, those at which layers before the last are read; None for all.
      weights: what these weigh, so that their sum stands for that over all.
    """

    batch: PackedBatch
    noise: Float[Array, "batch n dim"] | None
    chosen: Int[Array, "batch part"] | None
    weights: Float[Array, "batch part"] | None


class LanguageReading(NamedTuple):
    """The layers that are read, on a whole split at one strength of noise.

    Attributes:
      losses: of the texts, (N, layers): the sum over the tokens of a text's answer over the mean number of tokens, so
        that means over texts are means over tokens.
      accuracies: the share of tokens that each layer predicts, (layers,).
      agreements: the share of tokens at which each layer predicts what the last one does, (layers,): how many drafts of
        one token stand, if answers are those of the data.
    """

    losses: np.ndarray
    accuracies: np.ndarray
    agreements: np.ndarray


class Answered(NamedTuple):
    """The answer to one prompt as a model sees it.

    Attributes:
      answer: the answer.
      log_probabilities: of its tokens, the end among them, by the last layer; in nats.
      losses: means over these tokens of every layer that is read.
      accuracies: the share of these tokens that each layer predicts.
      layers: numbers of these layers.
    """

    answer: str
    log_probabilities: np.ndarray
    losses: np.ndarray
    accuracies: np.ndarray
    layers: tuple[int, ...]


class NextToken(NamedTuple):
    """The most probable token behind a prompt, by every layer that is read.

    Attributes:
      tokens: as texts.
      probabilities: of these, (layers,).
      layers: numbers of these layers.
    """

    tokens: tuple[str, ...]
    probabilities: np.ndarray
    layers: tuple[int, ...]


def choose(key: jax.Array, weights: Any, share: int) -> tuple[Array, Array]:
    """One in ``share`` of the positions that count in each row, and weights by which sums over them stand for all.

    ``weights`` (batch, kept) are 1 where a position counts. Both are (batch, kept / share), rounded up.
    A row with few of them has all chosen; rows are functions of the key and their place in the batch.
    """
    weights = jnp.asarray(weights)
    most = -(-weights.shape[1] // share)
    order = jnp.where(weights > 0.0, jax.random.uniform(key, weights.shape), -1.0)
    largest, chosen = jax.lax.top_k(order, most)
    counted = (largest >= 0.0).astype(weights.dtype)
    totals = jnp.sum(weights, axis=1, keepdims=True)
    return chosen, counted * totals / jnp.maximum(jnp.sum(counted, axis=1, keepdims=True), 1.0)


def perplexity(losses: np.ndarray) -> list[float]:
    """The exponential of the mean loss of a token, by layer."""
    return np.exp(losses.mean(axis=0)).tolist()


def paired(inputs: Any, answers: Any) -> tuple[list[Any], list[str | None]]:
    """Prompts, and an answer or None for each; without answers, None for all.

    Raises:
      UserError: if there is no prompt, not an answer for each, or one of them is empty or no valid UTF-8.
    """
    inputs = several(inputs)
    answers = [None] * len(inputs) if answers is None else several(answers)
    if not inputs:
        raise UserError("predict needs prompts; give --text, or a --file of them")
    if len(inputs) != len(answers):
        raise UserError(
            f"predict needs one answer (--second) for each prompt, got {len(inputs)} prompts and {len(answers)} answers"
        )
    for kind, texts in (("prompt", inputs), ("answer", answers)):
        for number, text in enumerate(texts, start=1):
            if kind == "answer" and not isinstance(text, str | None):
                raise UserError(f"answer {number} must be a text, or None for the next token, got {text!r:.60}")
            if isinstance(text, str) and not (text.strip() and is_whole(text)):
                raise UserError(f"{kind} {number} is {'no valid UTF-8' if text.strip() else 'empty'}; leave it out")
    return inputs, answers


def rows_of(
    inputs: Sequence[Any], answers: Sequence[str | None], tokenizer: AnswerTokenizer, *, max_length: int
) -> PackedBatch:
    """Prompts with their answers, a row each, and of a prompt without one the place of the next token; those that are
    too long are refused."""
    whole = [PLACEHOLDER if answer is None else answer for answer in answers]
    texts = tokenizer.encode([Conversation(_question(one), answer) for one, answer in zip(inputs, whole, strict=True)])
    texts = [
        Tokens(text.tokens[: text.first + 1], text.first) if answer is None else text
        for text, answer in zip(texts, answers, strict=True)
    ]
    for number, text in enumerate(texts, start=1):
        if len(text.tokens) > max_length:
            raise UserError(
                f"prompt {number} has {text.first} tokens, with its answer {len(text.tokens)}, and training took at "
                f"most {max_length}; give shorter ones"
            )
    rows = pack([len(text.tokens) for text in texts], 0)
    return arrays(texts, rows, max_length, kept_positions(texts, rows))


def part_of(whole: PackedBatch, start: int, size: int) -> PackedBatch:
    """A number of rows from one on; behind the last, rows that do not count."""
    return filled(PackedBatch(*(part[start : start + size] for part in whole)), size)


def answered(
    answers: Sequence[str | None],
    readings: Sequence[np.ndarray],
    whole: PackedBatch,
    layers: tuple[int, ...],
    decode: Callable[[Sequence[int]], str],
) -> Iterator[Answered | NextToken]:
    """Splits losses, predicted tokens and their log-probabilities (layers, rows, kept) into readings, row by row."""
    for row, answer in enumerate(answers):
        counted = whole.weights[row] > 0.0
        losses, words, logs = (part[:, row, counted] for part in readings)
        if answer is None:
            yield NextToken(tuple(decode([int(word)]) for word in words[:, 0]), np.exp(logs[:, 0]), layers)
            continue
        right = words == whole.labels[row, counted]
        yield Answered(answer, -losses[-1], losses.mean(axis=1), right.mean(axis=1), layers)


def several(given: Any) -> list[Any]:
    """A list of texts; of one text, with it alone."""
    return [given] if isinstance(given, str) else list(given)


def _question(given: Any) -> tuple[Message, ...]:
    """The messages before an answer, of a text or of messages as they are in files."""
    return (Message("user", given),) if isinstance(given, str) else messages_of(given, where="a prompt")
