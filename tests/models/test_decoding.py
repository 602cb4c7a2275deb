"""Decoding with a cache: token by token, and within its capacity; parameters stored in bfloat16."""

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
