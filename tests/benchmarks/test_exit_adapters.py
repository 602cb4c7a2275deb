"""Texts are packed whole, and the positions that count are those before the tokens of answers."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.test_exit_adapters import SMALL, random_adapter, small_params

from benchmarks.__main__ import main
from benchmarks.exit_adapters.choosing import Judge, best_exit, best_length
from benchmarks.exit_adapters.comparing import compare
from benchmarks.exit_adapters.costs import cost_table
from benchmarks.exit_adapters.texts import ROW, Text, own_answers, packed, states_of
from benchmarks.exit_adapters.training import train
from benchmarks.record import Record
from tests.models.drawing import drawn
from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    draft_vocabulary,
    exit_adapter,
    generate,
    speculate,
    tokens_a_call,
)
from unroll_jax.train.loading import Opened


def test_the_positions_that_count_are_those_before_answers():
    draw = np.random.default_rng(0)
    lengths, firsts = (200, 190, 150, 60, 40), (150, 180, 100, 59, 1)
    texts = [
        Text(draw.integers(0, 9, length).astype(np.int32) + 10 * number, first)
        for number, (length, first) in enumerate(zip(lengths, firsts, strict=True))
    ]
    tokens, segments, places, weights = packed(texts)
    assert tokens.shape == segments.shape == (2, ROW)
    assert (segments >= 0).sum() == sum(lengths)
    following = [int(tokens[row, place + 1]) for row, place in np.argwhere(counted(places, weights))]
    assert sorted(following) == sorted(int(token) for text in texts for token in text.tokens[text.first :])


def counted(places, weights):
    marks = np.zeros((len(places), ROW), bool)
    for row, place, weight in zip(marks, places, weights, strict=True):
        row[place[weight > 0]] = True
    return marks


def test_wrong_options_are_one_line(capsys):
    assert main(["exit_adapters"]) == 2
    assert "exit_adapters needs --root, the folder of Alpaca" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["digits", "--steps", "3"])
    assert "--steps is for exit_adapters alone; leave it out" in capsys.readouterr().err


@pytest.fixture(scope="module")
def opened():
    """A random decoder of four layers whose stop is token 0."""
    config = DecoderConfig(60, dim=8, num_layers=4, num_heads=2, num_key_value_heads=1, hidden_dim=16)
    params = drawn(Decoder(config), jax.ShapeDtypeStruct((1, 1), jnp.int32), scale=0.6)["params"]
    tokenizer: Any = SimpleNamespace(stops=(0,))
    return Opened(config, params, tokenizer, "chat", lambda gamma: 0.0, "small", (0, 4), {})


@pytest.fixture(scope="module")
def answers(opened):
    draw = np.random.default_rng(0)
    prompts = [draw.integers(1, 60, length) for length in (3, 5, 4, 9, 2, 6)]
    return own_answers(opened, prompts, max_tokens=12)


def test_own_answers_are_those_of_generate(opened, answers):
    for text in answers:
        prompt, answer = text.tokens[: text.first], text.tokens[text.first :]
        alone = generate(opened.config, opened.params, [prompt], max_tokens=12, stops=(0,))
        np.testing.assert_array_equal(answer, np.asarray(alone.tokens)[0, : int(alone.lengths[0])])


@pytest.mark.parametrize("draft_length", [1, 2])
def test_drafts_are_judged_as_speculate_meets_them(draft_length):
    config = dataclasses.replace(SMALL, vocabulary_size=6)
    params, adapter = small_params(1, config=config), random_adapter(1, range(6), config)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 6, 5) for _ in range(40)]
    answers = np.asarray(generate(config, params, prompts, max_tokens=9).tokens)
    texts = [Text(np.concatenate([prompt, row]), 5) for prompt, row in zip(prompts, answers, strict=True)]
    whole: Any = SimpleNamespace(config=config, params=params)
    judged = tokens_a_call(Judge(whole, texts).measured({1: adapter}), 1, draft_length)
    drafted = speculate(config, params, prompts, max_tokens=9, exit_layer=1, draft_length=draft_length, adapter=adapter)
    assert judged == pytest.approx((np.asarray(drafted.lengths) - 1).sum() / np.asarray(drafted.calls).sum())


def test_the_draft_length_has_the_most_tokens_for_its_cost(opened, answers):
    record, judge, adapter = Record(), Judge(opened, answers), exit_adapter(jax.random.key(0), opened.config)
    assert best_length(record, judge, adapter, 2, {1: 1.5, 2: 1.0}) == 2  # longer drafts yield no fewer tokens
    assert best_length(record, judge, adapter, 2, {1: 1.0, 2: 9.0}) == 1
    assert 0.0 <= record.figures["acceptance"] <= 1.0


@pytest.mark.slow
def test_an_adapter_is_trained_chosen_and_timed(opened, answers, capsys):
    record, judge = Record(), Judge(opened, answers[:3])
    words = draft_vocabulary([text.tokens for text in answers], 60, always=(0,))
    states, rates = states_of(opened, answers, (1, 2), print), {}

    def trained(layer, steps):
        adapter = train(opened.config, opened.params, states, layer - 1, words=words, steps=steps, log=print, rate=3e-2)
        rates[layer, steps] = float(judge.measured({layer: adapter}).rates[layer])
        return adapter

    layer = best_exit(record, judge, trained, (1, 2), 2, (1, 2))
    adapter = trained(layer, 150)
    assert rates[layer, 150] > float(judge.measured({}).rates[layer])  # of answers that it was trained on
    costs = cost_table(record, opened, adapter, layer, (1, 2))
    length = best_length(record, judge, adapter, layer, costs)
    compare(record, opened, [text.tokens[: text.first] for text in answers[:3]], adapter, layer, length, 6)
    assert all(record.figures[f"greedy_{name}_same"] == 3 for name in ("adapter", "plain_exit", "prompt_lookup"))
    assert "parameters stored in bfloat16" in capsys.readouterr().out
