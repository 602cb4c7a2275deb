"""Drafted answers are the plain ones token for token. Sampled ones have the same
distribution, exactly and measured."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import nightly
from tests.models import decoder_reference
from tests.models.drawing import float64
from tests.models.test_generation import PROMPTS, SMALL, small_params
from tests.reference import compiled
from unroll_jax.models import generate, speculate
from unroll_jax.models.language.verification import judge_draft

COUNT = 8


def assert_counts_add_up(answers, draft_length):
    """A verification yields the accepted tokens and one more. Only the last may be
    cut."""
    calls, accepted, lengths = (
        np.asarray(each) for each in (answers.calls, answers.accepted, answers.lengths)
    )
    assert_array_equal(answers.drafted, draft_length * calls)
    assert np.all(lengths <= 1 + accepted + calls)
    assert np.all(lengths > 1 + accepted + calls - (draft_length + 1))


def test_greedy_answers_are_the_plain_ones_for_every_exit_layer():
    """Rows of different lengths, with noise. They end at different places with a
    stop."""
    options = {"max_tokens": COUNT, "noise": 0.2, "key": jax.random.key(1)}
    accepted = []
    lengths = []
    for seed in range(3):
        params = small_params(seed)
        stop = [
            int(generate(SMALL, params, PROMPTS, stops=[0], **options).tokens[0, 4])
        ]
        plain = generate(SMALL, params, PROMPTS, stops=stop, **options)
        for exit_layer in (1, 2):
            answers = speculate(
                SMALL,
                params,
                PROMPTS,
                stops=stop,
                exit_layer=exit_layer,
                draft_length=3,
                **options,
            )
            for name in ("tokens", "lengths", "stopped"):
                assert_array_equal(
                    getattr(answers, name), getattr(plain, name), err_msg=name
                )
            assert_counts_add_up(answers, draft_length=3)
            accepted.append(answers.accepted)
        lengths.append(plain.lengths)
    assert len(set(np.ravel(accepted))) > 2  # some rows went further than others
    assert len(set(np.ravel(lengths))) > 1


def test_the_rule_leaves_the_distribution_of_the_target_exactly():
    """One drafted token, just below and just above its ratio p / q: each stands, or
    one is drawn in its place."""
    target = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    judge = compiled(judge_draft)
    logs = np.float32(np.log(target))[None]
    for draft in (np.array([0.2, 0.5, 0.3]), np.array([0.9, 0.05, 0.05]), target[0]):
        outputs = np.zeros(3)
        draft_logs = np.float32(np.log(draft))[None, None]
        for token, drawn in enumerate(draft):
            ratio = min(1.0, target[0, token] / drawn)
            for uniform, stands, chance in (
                (ratio * 0.9999, 1, ratio),
                (ratio * 1.0001, 0, 1.0 - ratio),
            ):
                if chance == 0.0:
                    continue
                given = np.array([[token]], np.int32), np.array([[uniform]], np.float32)
                accepted, remaining = judge(logs, draft_logs, *given)
                assert int(accepted[0]) == stands
                following = np.exp(np.float64(remaining[0]))
                if stands:
                    assert_allclose(following, target[1], atol=1e-6)
                outputs += drawn * chance * (np.eye(3)[token] if stands else following)
        assert_allclose(outputs, target[0], atol=1e-6)


TINY = dataclasses.replace(
    SMALL, vocabulary_size=4, num_layers=2, num_heads=2, num_key_value_heads=1
)
ROWS, TOKENS = 4000, 3


def exact_answers(params, prompt, temperature):
    weights = float64(params)
    shares = np.zeros((4,) * TOKENS)
    places = len(prompt) - 1 + np.arange(TOKENS)
    for answer in itertools.product(range(4), repeat=TOKENS):
        text = np.array([*prompt, *answer])
        states = decoder_reference.outputs(weights, text, TINY)[-1]
        logits = decoder_reference.logits(weights, states, TINY)
        chances = decoder_reference.softmax(logits / temperature)
        shares[answer] = np.prod(chances[places, answer])
    return shares


@nightly
@pytest.mark.parametrize("way", ["plain", "drafted"])
def test_sampled_answers_have_the_distribution_of_the_model(way):
    params = small_params(config=TINY)
    prompt = [1, 2]
    options = {"max_tokens": TOKENS, "temperature": 1.5, "key": jax.random.key(7)}
    if way == "plain":
        generated = generate(TINY, params, [prompt] * ROWS, **options)
    else:
        generated = speculate(
            TINY, params, [prompt] * ROWS, exit_layer=1, draft_length=2, **options
        )
        share = float(generated.accepted.sum() / generated.drafted.sum())
        assert 0.1 < share < 0.9  # both accepted and redrawn tokens are under test
    counts = np.zeros((4,) * TOKENS)
    np.add.at(counts, tuple(np.asarray(generated.tokens).T), 1)
    expected = ROWS * exact_answers(params, prompt, 1.5)
    freedom = expected.size - 1
    assert expected.min() > 2.0
    # chi-square
    assert np.sum((counts - expected) ** 2 / expected) < freedom + 4.0 * np.sqrt(
        2.0 * freedom
    )
