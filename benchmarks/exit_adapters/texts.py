"""Texts that an adapter is trained on: Alpaca's, and the decoder's own answers; and what its layers make of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.arguments import check, in_interval
from unroll_jax.models import Decoder, generate
from unroll_jax.train.data.answers import AnswerTokenizer
from unroll_jax.train.data.instructions import open_conversations
from unroll_jax.train.loading import Opened

__all__ = ["Alpaca", "States", "Text", "alpaca", "joined", "own_answers", "packed", "states_of"]

LONGEST_PROMPT = 64  # tokens: a few instructions have pages of input
LONGEST_TEXT = 192
ROW = 512  # tokens that texts are packed into
PLACES = 256  # of a row's positions at which logits are computed, at most
TOGETHER = 32  # prompts that the decoder answers at once


class Text(NamedTuple):
    """A prompt and its answer; ``first`` is the place where the answer starts."""

    tokens: np.ndarray
    first: int


class Alpaca(NamedTuple):
    """Texts to train on, whose prompts the decoder answers too; prompts to choose drafts by; prompts to time."""

    texts: list[Text]
    choosing: list[np.ndarray]
    timed: list[np.ndarray]


class States(NamedTuple):
    """Outputs of some layers for packed texts, in float16; the last layer is the last of the first axis.

    Attributes:
      outputs: of each layer.
      segments: which text each token is of.
      places: a sample of the positions whose next token is of an answer, filled up with others.
      weights: 1 for positions that count, 0 for the others.
    """

    outputs: np.ndarray
    segments: np.ndarray
    places: np.ndarray
    weights: np.ndarray


def alpaca(opened: Opened, root: Path, *, texts: int, choosing: int, timed: int) -> Alpaca:
    """Reads Alpaca in its order: texts to train on, and at its end prompts to choose by and prompts to time."""
    with open_conversations(root, print) as conversations:
        given = [one for one in conversations.splits["train"] if len(one.messages) == 1]
    encoded = AnswerTokenizer(opened.tokenizer, opened.template).encode(given)
    short = [Text(one.tokens[:LONGEST_TEXT], one.first) for one in encoded if one.first <= LONGEST_PROMPT]
    rest = len(short) - choosing - timed
    check("choosing and timed", choosing + timed, in_interval(f"[2, {len(short) - 1}]"))
    prompts = [text.tokens[: text.first] for text in short[rest:]]
    return Alpaca(short[: min(texts, rest)], prompts[:choosing], prompts[choosing:])


def own_answers(opened: Opened, prompts: Sequence[np.ndarray], *, max_tokens: int) -> list[Text]:
    """Greedy answers of the decoder, which are the texts that drafts meet."""
    texts = []
    for start in range(0, len(prompts), TOGETHER):
        batch = prompts[start : start + TOGETHER]
        answers = generate(opened.config, opened.params, batch, max_tokens=max_tokens, stops=opened.tokenizer.stops)
        for prompt, row, length in zip(batch, np.asarray(answers.tokens), np.asarray(answers.lengths), strict=True):
            texts.append(Text(np.concatenate([prompt, row[:length]]), len(prompt)))
        if start % 512 == 0 and start > 0:
            print(f"  {start} of {len(prompts)} prompts", flush=True)
    return texts


def states_of(opened: Opened, texts: Sequence[Text], layers: Sequence[int], log: Callable[[str], None]) -> States:
    """Runs the decoder once over all texts, packed into rows, and keeps the outputs of some layers and of the last."""
    tokens, segments, places, weights = packed(texts)
    numbers = jnp.asarray([*layers, opened.config.num_layers])

    @jax.jit
    def outputs(params: Any, tokens: jax.Array, segments: jax.Array) -> jax.Array:
        states: Any = Decoder(opened.config).apply({"params": params}, tokens, segments=segments)
        return states[numbers].astype(jnp.float16)

    kept = []
    for row in range(len(tokens)):
        kept.append(np.asarray(outputs(opened.params, tokens[row : row + 1], segments[row : row + 1])))
        if row % 50 == 49:
            log(f"  {row + 1} of {len(tokens)} rows of {ROW} tokens")
    return States(np.concatenate(kept, axis=1), segments, places, weights)


def packed(texts: Sequence[Text]) -> tuple[np.ndarray, ...]:
    """Whole texts, one after the other, in rows of `ROW` tokens; and the positions that count."""
    rows: list[list[Text]] = [[]]
    for number in np.random.default_rng(0).permutation(len(texts)):
        text = texts[number]
        if sum(len(one.tokens) for one in rows[-1]) + len(text.tokens) > ROW:
            rows.append([])
        rows[-1].append(text)
    tokens, segments = np.zeros((len(rows), ROW), np.int32), np.full((len(rows), ROW), -1, np.int32)
    counted = np.zeros((len(rows), ROW), bool)
    for row, several in enumerate(rows):
        start = 0
        for number, text in enumerate(several):
            end = start + len(text.tokens)
            tokens[row, start:end], segments[row, start:end] = text.tokens, number
            counted[row, start + text.first - 1 : end - 1] = True
            start = end
    drawn = np.random.default_rng(1).random(counted.shape)
    places = np.argsort(drawn + ~counted, axis=1)[:, :PLACES].astype(np.int32)
    return tokens, segments, places, np.take_along_axis(counted, places, axis=1).astype(np.float32)


def joined(several: Sequence[States]) -> States:
    """The rows of several."""
    parts = list(zip(*several, strict=True))
    return States(np.concatenate(parts[0], axis=1), *(np.concatenate(part) for part in parts[1:]))
