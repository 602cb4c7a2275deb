"""Generation with loops of each token, against whole texts by hand, whose tokens stop where they are still."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.models import NO_TOKEN, DecoderConfig, LoopedTransformer, generate_looped, rms_norm
from unroll_jax.models.language.decoder_parts import (
    decoder_layer,
    fed_forward,
    grouped_attention,
    queries_keys_values,
    rotation,
)

CONFIG = DecoderConfig(17, dim=8, num_layers=2, num_heads=2, num_key_value_heads=1, hidden_dim=12, max_positions=64)
MODEL = LoopedTransformer(CONFIG, param_dtype=jnp.float64)
PROMPTS = [[5, 6, 7], [8], [9, 3, 4, 4, 1]]
MOST, LONGEST, NONE = 6, 5, 99  # loops, tokens of an answer, and a stop that is no token


def drawn():
    params = jax.jit(lambda: MODEL.init(jax.random.key(1), jnp.ones((1, 2), int), loops=1))()["params"]
    return jax.tree.map(lambda leaf: 6.0 * leaf if leaf.std() < 0.1 and leaf.ndim > 1 else leaf, params)


@jax.jit
def by_hand(params, tokens, threshold):
    """The most probable token behind each of a whole text, and the loops of each; no cache."""
    places = jnp.arange(tokens.size)
    angles, mask = rotation(CONFIG, places, jnp.float64), places <= places[:, None]

    def layer(name, place):
        return jax.tree.map(lambda leaf: leaf[place], params[name])

    e = decoder_layer(CONFIG, layer("prelude", 0), params["embedding"][tokens], angles, mask)
    h = e = rms_norm(e, jnp.ones(8), CONFIG.norm_epsilon)
    moving, taken, kept = jnp.ones(tokens.size, bool), jnp.zeros(tokens.size, int), {}
    for _ in range(MOST):
        y = jnp.concatenate([h, e], -1) @ params["injection"]["kernel"]
        for place in range(CONFIG.num_layers):
            mixed = queries_keys_values(CONFIG, layer("layers", place), y, angles)
            fresh = (mixed.keys, mixed.values)
            pairs = zip(fresh, kept.get(place, fresh), strict=True)
            kept[place] = [jnp.where(moving[:, None, None], new, old) for new, old in pairs]
            keys, values = (jnp.swapaxes(part, -2, -3) for part in kept[place])
            attended = grouped_attention(mixed.queries, keys, values, mask)
            y = fed_forward(CONFIG, layer("layers", place), y, attended)
        y = rms_norm(y, params["norm"]["scale"], CONFIG.norm_epsilon)
        change = jnp.linalg.norm(y - h, axis=-1) / jnp.linalg.norm(y, axis=-1)
        h, taken = jnp.where(moving[:, None], y, h), taken + moving
        moving = moving & (change >= threshold)
    return jnp.argmax(h @ params["embedding"].T, -1), taken


def generated(params, threshold, stop=NONE):
    options = {"max_tokens": LONGEST, "loops": MOST, "threshold": threshold}
    return generate_looped(MODEL, params, PROMPTS, stops=[stop], **options)


@pytest.mark.parametrize("threshold", [0.8, pytest.param(1e-12, marks=pytest.mark.slow)])
def test_answers_are_those_of_whole_texts(threshold, x64):
    params = drawn()
    result = generated(params, threshold)
    for prompt, tokens, loops in zip(PROMPTS, result.tokens.tolist(), result.loops.tolist(), strict=True):
        text = prompt + tokens
        named, taken = by_hand(params, jnp.asarray(text + [0] * (10 - len(text))), threshold)
        behind = slice(len(prompt) - 1, len(text) - 1)
        assert (named[behind].tolist(), taken[behind].tolist()) == (tokens, loops)
    used = set(np.asarray(result.loops).ravel().tolist())
    assert used == {MOST} if threshold < 0.1 else len(used) > 2


@pytest.mark.slow
def test_without_exits_answers_are_those_of_the_model(x64):
    params = drawn()
    tokens = generated(params, 1e-12).tokens[0]
    text = jnp.concatenate([jnp.asarray(PROMPTS[0]), tokens])[None]
    logits = jax.jit(lambda: MODEL.apply({"params": params}, text, loops=MOST).records[-1, 0])()
    assert jnp.argmax(logits, -1)[2:-1].tolist() == tokens.tolist()


@pytest.mark.slow
def test_an_answer_ends_with_its_stop(x64):
    params = drawn()
    free = generated(params, 0.8)
    stop = int(free.tokens[0, 1])
    result = generated(params, 0.8, stop)
    for before, tokens, loops in zip(free.tokens.tolist(), result.tokens.tolist(), result.loops.tolist(), strict=True):
        end = before.index(stop) + 1 if stop in before else LONGEST
        assert tokens == before[:end] + [NO_TOKEN] * (LONGEST - end)
        assert [loop > 0 for loop in loops] == [place < end for place in range(LONGEST)]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"causal": False}, {}, "model must be causal"),
        ({"start": "noise"}, {}, 'model.start must be "zeros" or "prelude", got noise'),
        ({}, {"threshold": 0.0}, "threshold must be positive"),
        ({}, {"loops": 0}, "loops must be at least 1"),
    ],
)
def test_bad_arguments_are_named(change, options, message):
    model = dataclasses.replace(MODEL, **change)
    with pytest.raises(ValueError, match=message.replace('"', ".")):
        generate_looped(model, {}, PROMPTS, **{"max_tokens": 2, "loops": 2, "threshold": 0.1} | options)
