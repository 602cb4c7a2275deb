"""Acceptance is that of the reference, what is expected is what happens, and the best draft is chosen."""

import re

import jax
import numpy as np
import pytest

from tests.models.generating import PROMPTS, SMALL, named_by_layers, small_params
from unroll_jax.models import (
    Acceptance,
    Costs,
    DecoderConfig,
    acceptance,
    choose_draft,
    exit_adapter,
    expected_speedup,
    expected_tokens,
    generate,
    speculate,
    tokens_a_call,
    weight_costs,
)
from unroll_jax.models.language.sampling import row_keys

NOISE, KEY = 0.3, jax.random.key(4)
WORDS = [1, 2, 3, 5, 8, 13, 21, 22, 23, 29]  # of 30


def random_adapter(seed, words=None):
    draw, new = np.random.default_rng(seed), exit_adapter(jax.random.key(0), SMALL, hidden_dim=10, words=words)
    drawn = jax.tree.map(lambda leaf: np.float32(0.6 * draw.normal(size=leaf.shape)), new.weights)
    return new._replace(weights=drawn)


@pytest.mark.slow
def test_acceptance_is_the_share_of_positions_where_a_layer_names_the_last_layers_token():
    params, keys, starts = small_params(), row_keys(KEY, 3), [1, 4, 0]
    agreement = acceptance(SMALL, params, PROMPTS, starts=starts, noise=NOISE, key=KEY)
    matches = []
    for row, (text, start) in enumerate(zip(PROMPTS, starts, strict=True)):
        named = named_by_layers(params, text, keys[row], NOISE)
        matches.append((named == named[-1])[:, start:])
        np.testing.assert_array_equal(agreement.matches[:, row, start : len(text)], matches[-1])
    np.testing.assert_allclose(agreement.rates, np.concatenate(matches, axis=1).mean(axis=1))
    assert agreement.rates[-1] == 1.0
    assert agreement.counted.sum() == 6


@pytest.mark.slow
def test_drafts_played_through_on_answers_are_those_of_speculation():
    params, count, options = small_params(2), 12, {"noise": NOISE, "key": KEY}
    answers = np.asarray(generate(SMALL, params, PROMPTS, max_tokens=count, **options).tokens)
    texts = [[*prompt, *answer[:-1]] for prompt, answer in zip(PROMPTS, answers.tolist(), strict=True)]
    measured = acceptance(SMALL, params, texts, starts=[len(prompt) for prompt in PROMPTS], **options)
    for exit_layer in (1, 2, 3):
        draft = {"exit_layer": exit_layer, "draft_length": 2}
        speculated = speculate(SMALL, params, PROMPTS, max_tokens=count, **draft, **options)
        assert tokens_a_call(measured, **draft) == pytest.approx(3 * (count - 1) / int(speculated.calls.sum()))


def test_expected_tokens_are_those_of_independent_drafts():
    draw = np.random.default_rng(0)
    matches = draw.random((1, 1, 60000)) < 0.7
    measured = Acceptance(matches.mean((1, 2)), matches, np.ones((1, 60000), bool))
    assert tokens_a_call(measured, 0, 3) == pytest.approx(expected_tokens(0.7, 3), rel=0.01)
    assert expected_tokens(0.7, 3) == pytest.approx((1 - 0.7**4) / (1 - 0.7))
    assert [expected_tokens(rate, 3) for rate in (0.0, 1.0)] == [1.0, 4.0]


def test_speedup_weighs_tokens_against_the_calls_that_they_take():
    costs = Costs(layer=2.0, head=3.0, further=0.25)
    plain = 4 * 2.0 + 3.0
    draft, verification = 3 * 1 * 2.0 + 2 * 3.0, 1.5 * (3 * 2.0 + 3.0)
    assert expected_speedup(SMALL, 1, 2, 1.8, costs) == pytest.approx(1.8 * plain / (draft + verification))
    leaves = jax.tree.leaves(small_params()["layers"])
    assert weight_costs(SMALL) == Costs(sum(leaf.size for leaf in leaves) / 4, 30 * 8, 0.0)


@pytest.mark.slow
def test_the_chosen_draft_is_the_quickest_that_is_expected():
    """The last two layers add nothing: two layers that draft are always right, and the head is cheap."""
    params = small_params()
    still = params | {"layers": jax.tree.map(lambda leaf: leaf.at[2:].set(0.0), params["layers"])}
    costs = Costs(layer=1.0, head=0.01)
    best = choose_draft(SMALL, still, PROMPTS, max_tokens=13, draft_lengths=(1, 5), costs=costs)
    assert (best.exit_layer, best.rate) == (2, 1.0)
    tokens = {1: 2.0, 5: 6.0}  # of 12 behind the first, by calls that yield one more than they draft
    speedups = {length: expected_speedup(SMALL, 2, length, each, costs) for length, each in tokens.items()}
    assert best.draft_length == max(speedups, key=lambda length: speedups[length])
    assert (best.tokens, best.speedup) == (tokens[best.draft_length], pytest.approx(max(speedups.values())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": [0]}, "starts must be one for each of 3 texts, got 1"),
        ({"starts": [3, 7, 1]}, "starts must leave positions that count, got none"),
        ({"noise": 0.1}, "noise must be 0 where key is None, got 0.1"),
        ({"texts": [[1] * 61]}, "prompt 0 must have from 1 to 60 tokens, got shape (61,)"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(change, message):
    call = {"texts": PROMPTS} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        acceptance(SMALL, {}, call.pop("texts"), **call)


def test_a_decoder_of_one_layer_and_answers_of_one_token_have_no_draft():
    with pytest.raises(ValueError, match=r"exit_layer must be in \[1, num_layers=1\), got 1"):
        choose_draft(DecoderConfig(30, 8, 1, 2, 1, 12), {}, PROMPTS)
    with pytest.raises(ValueError, match="answers of two tokens or more to measure on, got max_tokens=1"):
        choose_draft(SMALL, small_params(), PROMPTS, max_tokens=1)


@pytest.mark.slow
def test_an_exit_with_an_adapter_is_played_through_as_it_drafts():
    params, count = small_params(2), 12
    adapter = random_adapter(2, WORDS)
    answers = np.asarray(generate(SMALL, params, PROMPTS, max_tokens=count).tokens)
    texts = [[*prompt, *answer[:-1]] for prompt, answer in zip(PROMPTS, answers.tolist(), strict=True)]
    starts = [len(prompt) for prompt in PROMPTS]
    plain = acceptance(SMALL, params, texts, starts=starts)
    measured = acceptance(SMALL, params, texts, starts=starts, adapters={2: adapter})
    draft = {"exit_layer": 2, "draft_length": 2}
    speculated = speculate(SMALL, params, PROMPTS, max_tokens=count, adapter=adapter, **draft)
    assert tokens_a_call(measured, **draft) == pytest.approx(3 * (count - 1) / int(speculated.calls.sum()))
    assert measured.rates[2] != plain.rates[2]
    np.testing.assert_array_equal(np.delete(measured.matches, 2, axis=0), np.delete(plain.matches, 2, axis=0))


def test_an_adapter_costs_its_share_of_a_layer_and_its_words_their_share_of_the_head():
    adapter, costs = random_adapter(0, WORDS), Costs(layer=2.0, head=3.0, further=0.25)
    layer = 2 * (8 * 8 + 8 * 4) + 3 * 8 * 12 + 2 * 8  # query and output, key and value, gate, up and down, norms
    share = (2 * (8 * 8 + 8 * 4) + 3 * 8 * 10 + 3 * 8) / layer  # of 10 in place of 12, and a norm more
    draft, verification = (3 + 2 * share) * 2.0 + 2 * (10 / 30) * 3.0, 1.5 * (3 * 2.0 + 3.0)
    expected = 1.8 * (4 * 2.0 + 3.0) / (draft + verification)
    assert expected_speedup(SMALL, 1, 2, 1.8, costs, adapter=adapter) == pytest.approx(expected)


@pytest.mark.slow
def test_the_choice_leaves_an_exit_whose_adapter_is_wrong():
    """The last three layers add nothing: the plain exit of the first is always right, and its adapter is not."""
    params = small_params()
    still = params | {"layers": jax.tree.map(lambda leaf: leaf.at[1:].set(0.0), params["layers"])}
    options = {"max_tokens": 13, "draft_lengths": (2,), "costs": Costs(layer=1.0, head=0.01)}
    plain = choose_draft(SMALL, still, PROMPTS, **options)
    other = choose_draft(SMALL, still, PROMPTS, adapters={1: random_adapter(0)}, **options)
    assert [(one.exit_layer, one.rate) for one in (plain, other)] == [(1, 1.0), (2, 1.0)]


def test_an_adapter_belongs_to_an_exit_layer():
    with pytest.raises(ValueError, match=r"adapters must be in \[1, num_layers=4\), got 4"):
        choose_draft(SMALL, {}, PROMPTS, adapters={4: random_adapter(0)})
