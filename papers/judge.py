"""`python -m papers.judge JUDGE ANSWERS [--against OTHERS]`: answers judged offline.

AlpacaEval asks a model behind an API which of two answers is better. Here the judge is
a decoder in a folder: a run of this project, or a pretrained one of `transformers`.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.models import Decoder
from unroll_jax.models.language.decoder import decoder_logits
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.loading import Opened, open_decoder
from unroll_jax.train.tasks.language.answers import AnswerTokenizer
from unroll_jax.train.tasks.language.instructions import (
    Conversation,
    Prompt,
    read_prompts,
)

__all__ = ["Judge", "Verdict", "main", "verdict"]

QUESTION = """Below are an instruction and two responses to it.

Instruction:
{instruction}

Response A:
{first}

Response B:
{second}

Which response follows the instruction better? Answer with A or B."""
NAMES = ("A", "B")


class Verdict(NamedTuple):
    """Preferences for first answers over second ones.

    Attributes:
      wins: share of prompts whose first answer is preferred; ties count half.
      error: its standard error.
      agreement: share of prompts on which the judge prefers one answer in both orders.
        A judge that reads nothing and always says A has 0.
    """

    wins: float
    error: float
    agreement: float


class Judge:
    """A decoder that scores answers."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._texts = AnswerTokenizer(opened.tokenizer, opened.template)
        self._logs: Callable[..., Array] = functools.partial(
            jax.jit(_log_probabilities, static_argnums=0), opened.config
        )

    def likelihoods(self, rows: Sequence[Prompt]) -> Float[np.ndarray, " rows"]:
        """Returns mean log-probabilities of the tokens of answers, in nats."""
        chats = [Conversation(row.text, str(row.answer)) for row in rows]
        means = []
        for tokens, first in self._texts.encode(chats):
            logs = self._read(tokens)[first - 1 : len(tokens) - 1]
            means.append(np.mean(logs[np.arange(len(logs)), tokens[first:]]))
        return np.array(means)

    def preferences(
        self, first: Sequence[Prompt], second: Sequence[Prompt]
    ) -> Float[np.ndarray, "rows 2"]:
        """Returns the probability of each first answer in both orders.

        Column 0 has it as response A, column 1 as response B.
        """
        one, other = (self._opened.tokenizer.encode([name])[0][-1] for name in NAMES)
        shares = []
        for mine, theirs in zip(first, second, strict=True):
            if mine.text != theirs.text:
                raise UserError(
                    f"the files have different prompts, as {mine.text[:40]!r} and"
                    f" {theirs.text[:40]!r}; answer the same ones"
                )
            pairs = [(mine.answer, theirs.answer), (theirs.answer, mine.answer)]
            asked = [
                QUESTION.format(instruction=mine.text, first=a, second=b)
                for a, b in pairs
            ]
            odds = []
            for tokens in self._texts.questions(asked):
                logs = self._read(tokens)[len(tokens) - 1]
                odds.append(1.0 / (1.0 + np.exp(logs[other] - logs[one])))
            shares.append([odds[0], 1.0 - odds[1]])
        return np.array(shares)

    def _read(self, tokens: np.ndarray) -> np.ndarray:
        """Returns log-probabilities of the next token at each place."""
        most = self._opened.config.max_positions
        if len(tokens) > most:
            raise UserError(
                f"a text has {len(tokens)} tokens, and the judge reads {most}; leave it"
                " out"
            )
        # few lengths are compiled; the mask is causal, so padding changes nothing
        length = min(most, max(16, 1 << (len(tokens) - 1).bit_length()))
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(self._logs(self._opened.params, padded))[0]


def verdict(preferences: Float[np.ndarray, "rows 2"]) -> Verdict:
    """Counts preferences: the mean over both orders, which cancels a bias to one."""
    means = preferences.mean(axis=1)
    wins = np.where(means == 0.5, 0.5, means > 0.5)
    sides = preferences > 0.5
    return Verdict(
        wins=float(wins.mean()),
        error=float(wins.std(ddof=1) / np.sqrt(len(wins))) if len(wins) > 1 else np.nan,
        agreement=float(np.mean(sides[:, 0] == sides[:, 1])),
    )


def _log_probabilities(config: Any, params: Any, tokens: Array) -> Array:
    model = Decoder(config, dtype=jnp.float32)
    states = jnp.asarray(model.apply({"params": params}, tokens))[-1]
    logits = decoder_logits(config, params, states)
    return jax.nn.log_softmax(logits.astype(jnp.float32))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the log-likelihood of answers, or the wins of one file against another."""
    parser = argparse.ArgumentParser(prog="python -m papers.judge", description=__doc__)
    parser.add_argument("judge", help="run folder, export, or folder of transformers")
    parser.add_argument(
        "answers", type=Path, help="JSON of `unroll-jax generate --out`"
    )
    parser.add_argument("--against", type=Path, help="another one, of the same prompts")
    parser.add_argument("--limit", type=int, help="number of prompts, from the first")
    given = parser.parse_args(arguments)
    try:
        rows = read_prompts(given.answers, option="ANSWERS", answers=True)
        rows = rows[: given.limit]
        judge = Judge(open_decoder(given.judge, option="JUDGE"))
        if given.against is None:
            nats = judge.likelihoods(rows)
            print(
                f"log-likelihood of {len(nats)} answers: {nats.mean():.3f} nats a token"
            )
            return 0
        others = read_prompts(given.against, option="--against", answers=True)
        found = verdict(judge.preferences(rows, others[: given.limit]))
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(
        f"wins of {given.answers} against {given.against}: {found.wins:.1%}, standard"
        f" error {found.error:.1%}; the judge agrees with itself in both orders on"
        f" {found.agreement:.1%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
