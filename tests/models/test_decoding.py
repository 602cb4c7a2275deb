"""Decoding with a cache: token by token, by ranges of layers, within its capacity; parameters stored in bfloat16."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import decoder_reference
from tests.models.drawing import float64
from tests.models.test_decoder import KINDS, SMALL, random_params, random_tokens
from unroll_jax.models import Decoder, decode, empty_cache, generate, speculate


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["biases, as in Qwen2", "normalised heads, as in Qwen3"])
def test_decoding_token_by_token_equals_the_reference(kind):
    config = KINDS[kind]
    params, tokens = random_params(Decoder(config, param_dtype=jnp.float64)), random_tokens(1, 4)
    run = jax.jit(lambda cache, token, place: decode(config, params["params"], token, cache, place))
    cache, outputs = empty_cache(config, 1, 4, jnp.float64), []
    for place in range(4):
        y, cache = run(cache, tokens[:, place : place + 1], jnp.array([[place]]))
        outputs.append(y[0, 0])
    expected = decoder_reference.outputs(float64(params)["params"], tokens[0], config)[-1]
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_decoding_by_ranges_of_layers_with_tokens_taken_back_equals_the_whole():
    """A prompt, a draft of wrong tokens by the first layer, and the right ones in their place; rows of two lengths."""
    model = Decoder(SMALL, param_dtype=jnp.float64, unroll=1)
    params, tokens, lengths = random_params(model), random_tokens(2, 9), np.array([4, 6])
    weights = params["params"]

    @jax.jit
    def run(decoder_params):
        cache, places = empty_cache(SMALL, 2, 12, jnp.float64), jnp.arange(6) + jnp.zeros((2, 1), int)
        _, cache = decode(SMALL, decoder_params, tokens[:, :6], cache, jnp.where(places < lengths[:, None], places, -1))
        rest = jnp.arange(3) + lengths[:, None]
        right = jnp.take_along_axis(tokens, rest, axis=1)
        _, cache = decode(SMALL, decoder_params, (right + 1) % 30, cache, rest, last=1)
        draft, cache = decode(SMALL, decoder_params, right, cache, rest, last=1)
        y, cache = decode(SMALL, decoder_params, draft, cache, rest, first=1)
        return y, model.apply(params, tokens), cache

    y, states, cache = run(weights)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(y[row], states[-1, row, length : length + 3], rtol=1e-10, atol=1e-11)
        assert np.all(np.asarray(cache.keys)[:, row, :, length + 3 :] == 0.0)
    assert cache.keys.shape == (3, 2, 2, 12, 2)


def test_a_token_beyond_the_capacity_overwrites_none():
    params, cache = random_params(Decoder(SMALL))["params"], empty_cache(SMALL, 1, 3)
    run = jax.jit(lambda cache, positions: decode(SMALL, params, random_tokens(1, 2), cache, positions)[1])
    cache = run(cache, jnp.array([[1, 2]]))
    chex.assert_trees_all_equal(run(cache, jnp.array([[3, -1]])), cache)


def test_answers_are_those_of_the_rounded_parameters():
    config = dataclasses.replace(KINDS["one head of keys, wider heads, untied"], qkv_bias=True)
    params = random_params(Decoder(config))["params"]
    stored = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), params)
    options = {"prompts": [[5, 6, 7, 5, 6], [8]], "max_tokens": 4}
    expected = generate(config, jax.tree.map(lambda leaf: leaf.astype(np.float32), stored), **options)
    plain = generate(config, stored, dtype=jnp.float32, **options)
    for answers in (plain, speculate(config, stored, exit_layer=1, draft_length=2, dtype=jnp.float32, **options)):
        np.testing.assert_array_equal(answers.tokens, expected.tokens)
