"""Adapters change no answer; they start as the plain exit, and their loss is the divergence that NumPy computes."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import decoder_reference as reference
from tests.models.drawing import float64
from tests.models.generating import PROMPTS, SMALL, small_params
from tests.models.test_speculative import JUDGE, ROWS, TINY, TOKENS, assert_same_answers, exact_answers
from unroll_jax.models import (
    ExitAdapter,
    adapter_losses,
    draft_vocabulary,
    exit_adapter,
    exit_states,
    generate,
    speculate,
)

WORDS = np.array([1, 2, 3, 5, 8, 13, 21, 22, 23, 29])
WIDE = dataclasses.replace(SMALL, dim=16)
COUNT = 12


def random_adapter(seed=0, words=None, config=SMALL):
    draw = np.random.default_rng(seed)
    new = exit_adapter(jax.random.key(0), config, hidden_dim=10, words=words)
    return new._replace(
        weights=jax.tree.map(lambda leaf: jnp.asarray(0.6 * draw.normal(size=leaf.shape), leaf.dtype), new.weights)
    )


def reference_logits(params, adapter, text, exit_layer, config=SMALL):
    """Logits of the adapter and of the last layer at all places of a text, over the adapter's words, in float64."""
    weights, block = float64(params), float64(adapter.weights)
    states = reference.outputs(weights, text, config)
    normed = reference.rms_norm(states[exit_layer], block["norm"]["scale"], config.norm_epsilon)
    layer = {part: {name: leaf[0] for name, leaf in named.items()} for part, named in block["layers"].items()}
    y = reference.layer(layer, normed, config, np.arange(len(text)))
    words = np.arange(config.vocabulary_size) if adapter.words is None else np.asarray(adapter.words)
    return [reference.logits(weights, each, config)[:, words] for each in (y, states[-1])]


def accepted_by_hand(params, adapter, prompt, answer, exit_layer, draft_length, *, config=SMALL, count=COUNT):
    """Drafts played through on the text that came of it, by full passes without a cache."""
    text = np.array([*prompt, *answer])
    named = np.asarray(adapter.words)[reference_logits(params, adapter, text, exit_layer, config)[0].argmax(-1)]
    place, accepted = len(prompt), 0  # of the last token known
    while place < len(prompt) + count - 1:
        drafts = named[place : place + draft_length]
        right = drafts[: len(text) - 1 - place] == text[place + 1 : place + 1 + draft_length]
        stood = int(np.cumprod(right).sum())
        accepted, place = accepted + stood, place + stood + 1
    return accepted


@pytest.mark.parametrize("draft_length", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_greedy_answers_are_the_plain_ones_and_drafts_those_of_full_passes(draft_length):
    accepted = []
    for seed in range(3):
        params, adapter = small_params(seed), random_adapter(seed, WORDS)
        plain = generate(SMALL, params, PROMPTS, max_tokens=COUNT)
        for exit_layer in (1, 3):
            draft = {"exit_layer": exit_layer, "draft_length": draft_length, "adapter": adapter}
            answers = speculate(SMALL, params, PROMPTS, max_tokens=COUNT, **draft)
            assert_same_answers(answers, plain)
            by_hand = [
                accepted_by_hand(params, adapter, prompt, np.asarray(row), exit_layer, draft_length)
                for prompt, row in zip(PROMPTS, answers.tokens, strict=True)
            ]
            assert np.all(np.asarray(answers.accepted) - by_hand <= draft_length)  # the last draft may pass the end
            assert np.all(np.asarray(answers.accepted) >= by_hand)
            accepted += by_hand
    assert len(set(accepted)) > 2


@pytest.mark.parametrize("draft_length", [1, 2])
def test_the_adapter_reads_each_token_that_stands_once(draft_length):
    config, prompts, accepted = dataclasses.replace(SMALL, vocabulary_size=4), [[1, 2, 3], [0]], []
    for seed in range(4):
        params, adapter = small_params(seed, config=config), random_adapter(seed, range(4), config)
        draft = {"exit_layer": 1, "draft_length": draft_length, "adapter": adapter}
        answers = speculate(config, params, prompts, max_tokens=COUNT, **draft)
        longer = generate(config, params, prompts, max_tokens=COUNT + draft_length)
        by_hand = [
            accepted_by_hand(params, adapter, prompt, np.asarray(row), 1, draft_length, config=config)
            for prompt, row in zip(prompts, longer.tokens, strict=True)
        ]
        np.testing.assert_array_equal(answers.accepted, by_hand)
        accepted += by_hand
    assert len(set(accepted)) > 3


@jax.jit
def losses_of(params, adapter, tokens, **options):
    states = exit_states(SMALL, params, tokens, 2, segments=options.get("segments"))
    return adapter_losses(SMALL, params, adapter, states, **options)


def divergences(p_logits, q_logits):
    p, q = reference.softmax(p_logits), reference.softmax(q_logits)
    return np.sum(p * np.log(p / q), axis=-1)


def test_the_loss_is_the_divergence_of_the_distributions():
    """Two texts in one row, which do not see each other; a draft vocabulary, and a sample of the positions."""
    params, adapter, text = small_params(), random_adapter(1, WORDS), np.array([4, 5, 6, 7, 8, 9])
    y, last = reference_logits(params, adapter, text, 2)
    both, segments = np.concatenate([text, text])[None], np.repeat([0, 1], len(text))[None]
    losses = losses_of(params, adapter, both, places=np.array([[1, 4, 8]]), segments=segments)
    np.testing.assert_allclose(losses[0], divergences(last, y)[[1, 4, 2]], rtol=2e-4)


def test_an_adapter_starts_as_the_plain_exit():
    params, adapter, text = small_params(), exit_adapter(jax.random.key(3), SMALL), np.array([4, 5, 6, 7, 8, 9])
    weights = float64(params)
    states = reference.logits(weights, reference.outputs(weights, text, SMALL), SMALL)
    np.testing.assert_allclose(losses_of(params, adapter, text[None])[0], divergences(states[-1], states[2]), rtol=2e-4)


def test_only_the_adapter_has_a_gradient():
    params, adapter = small_params(), random_adapter(2, WORDS)

    def loss(params, weights):
        return losses_of(params, ExitAdapter(weights, adapter.words), jnp.array([[4, 5, 6]])).sum()

    base, trained = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, adapter.weights)
    assert all(not leaf.any() for leaf in jax.tree.leaves(base))
    assert all(leaf.any() for leaf in jax.tree.leaves(trained))


def test_the_rule_leaves_the_distribution_where_the_draft_cannot_name_a_token():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.0, 0.3])
    logs = jnp.log(jnp.asarray(np.stack([p, p]), jnp.float32))[None], jnp.log(jnp.asarray(q, jnp.float32))[None, None]
    result = np.minimum(p, q)
    for token, uniform in ((0, 0.99), (2, 0.99)):
        judged = JUDGE(*logs, jnp.array([[token]]), jnp.array([[uniform]]))
        assert int(judged.accepted[0]) == 0
        np.testing.assert_allclose(result + (1.0 - result.sum()) * np.exp(judged.remaining[0]), p, atol=1e-6)


@pytest.mark.slow
def test_sampled_answers_have_the_distribution_of_the_model():
    params, adapter = small_params(config=TINY), random_adapter(0, np.array([0, 1, 3]), TINY)
    options = {"max_tokens": TOKENS, "temperature": 1.5, "key": jax.random.key(7), "adapter": adapter}
    answers = speculate(TINY, params, [[1, 2]] * ROWS, exit_layer=1, draft_length=2, **options)
    assert 0.1 < float(answers.accepted.sum() / answers.drafted.sum()) < 0.9
    counts = np.zeros((4,) * TOKENS)
    np.add.at(counts, tuple(np.asarray(answers.tokens).T), 1)
    expected = ROWS * exact_answers(params, [1, 2], 1.5)
    freedom = expected.size - 1
    assert np.sum((counts - expected) ** 2 / expected) < freedom + 4.0 * np.sqrt(2.0 * freedom)  # chi-square


def test_a_draft_vocabulary_has_the_most_frequent_tokens():
    texts = [np.array([7, 7, 7, 4]), np.array([4, 9])]
    assert draft_vocabulary(texts, 2).tolist() == [4, 7]
    assert draft_vocabulary(texts, 10).tolist() == [4, 7, 9]
    assert draft_vocabulary(texts, 2, always=[30]).tolist() == [7, 30]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: exit_adapter(key, SMALL, hidden_dim=0), "hidden_dim must be at least 1, or None, got 0"),
        (lambda key: exit_adapter(key, SMALL, words=[1, 30]), "words must hold different integers from 0 to"),
        (lambda key: exit_adapter(key, SMALL, words=[1, 1]), "got [1, 1]; None drafts from the whole vocabulary"),
        (lambda key: draft_vocabulary([[1]], 0), "size must be at least 1, got 0"),
        (
            lambda key: exit_states(SMALL, {}, jnp.ones((1, 2), int), 4),
            "exit_layer must be in [1, num_layers=4), got 4",
        ),
        (
            lambda key: adapter_losses(SMALL, {}, exit_adapter(key, WIDE), (jnp.zeros((1, 1, 8)),) * 2),
            "adapter must have the decoder's shapes, attention_norm.scale (1, 8)",
        ),
    ],
)
def test_a_bad_argument_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(jax.random.key(0))


def test_speculate_takes_an_adapter_of_this_decoder_alone():
    adapter = exit_adapter(jax.random.key(0), WIDE)
    with pytest.raises(ValueError, match="make it with exit_adapter and the decoder's config"):
        speculate(SMALL, {}, PROMPTS, exit_layer=1, draft_length=2, max_tokens=5, adapter=adapter)
    fits = exit_adapter(jax.random.key(0), SMALL)
    for wrong, message in (
        (fits._replace(weights={"layers": fits.weights["layers"]}), "have weights norm.scale and layers"),
        (fits._replace(words=jnp.array([999])), "words must hold different integers"),
    ):
        with pytest.raises(ValueError, match=message):
            speculate(SMALL, {}, PROMPTS, exit_layer=1, draft_length=2, max_tokens=5, adapter=wrong)
    with pytest.raises(ValueError, match="texts must be one or more"):
        draft_vocabulary([], 3)
