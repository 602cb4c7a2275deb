"""Copied drafts follow the longest match, and leave the answers as they are."""

import re

import jax
import jax.numpy as jnp
import pytest

from tests.models.generating import PROMPTS, SMALL, small_params
from tests.models.test_speculative import assert_counts_add_up, assert_same_answers
from unroll_jax.models import generate, prompt_lookup
from unroll_jax.models.language.prompt_lookup import copied

COUNT = 20  # greedy answers of small decoders repeat by then


def test_the_longest_match_is_copied():
    rows = [[7, 1, 2, 9, 1, 2], [1, 2, 5, 2, 6, 1, 2], [3, 3, 3, 3, 0, 0], [4, 5, 6, 7, 8, 9]]
    ends = jnp.array([5, 6, 3, 5])
    width = max(map(len, rows))
    text = jnp.array([row + [0] * (width - len(row)) for row in rows])
    drafts = jax.jit(copied, static_argnums=(2, 3))(text, ends, 4, 2)
    # After "1 2" came 9 1 2, and then the same again; after the longer match 5, not 6; 3 follows 3.
    assert drafts[:3].tolist() == [[9, 1, 2, 9], [5, 2, 6, 1], [3, 3, 3, 3]]


@pytest.mark.parametrize("draft_length", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_answers_are_the_plain_ones(draft_length):
    accepted = 0
    for seed in range(2):
        params = small_params(seed)
        stop = [int(generate(SMALL, params, PROMPTS, stops=[0], max_tokens=COUNT).tokens[0, 9])]
        options = {"max_tokens": COUNT, "stops": stop}
        answers = prompt_lookup(SMALL, params, PROMPTS, draft_length=draft_length, **options)
        assert_same_answers(answers, generate(SMALL, params, PROMPTS, **options))
        assert_counts_add_up(answers, draft_length)
        accepted += int(answers.accepted.sum())
    assert accepted > 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_length": 0}, "draft_length must be in [1, max_positions=60), got 0"),
        ({"longest_match": 0}, "longest_match must be at least 1, got 0"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        prompt_lookup(SMALL, {}, PROMPTS, **{"draft_length": 2, "max_tokens": 5} | change)
