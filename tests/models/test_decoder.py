"""The decoder: its outputs, packed texts that do not see each other, a cache that
changes nothing, low-rank changes."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64, nightly
from tests.models import decoder_reference
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled, gaussian, gaussian_like, jax_array
from unroll_jax.models import (
    Decoder,
    DecoderConfig,
    RotaryScaling,
    decode,
    decoder_logits,
    empty_cache,
    generate,
    low_rank_changes,
    merged_changes,
    speculate,
    with_changes,
)
from unroll_jax.models.language.rotary import rotary_frequencies

SMALL = DecoderConfig(
    30,
    dim=8,
    num_layers=3,
    num_heads=4,
    num_key_value_heads=2,
    hidden_dim=12,
    max_positions=40,
    rotary_base=100.0,
)
LLAMA3 = RotaryScaling("llama3", 8.0, original_positions=24)
TWO = dataclasses.replace(SMALL, num_layers=2)
KINDS = {
    "grouped": SMALL,
    "one head of keys, wider heads, untied": dataclasses.replace(
        TWO,
        num_heads=2,
        num_key_value_heads=1,
        head_dim=6,
        rotary_base=20.0,
        rotary_scaling=LLAMA3,
        tied=False,
    ),
    "a head of keys each": dataclasses.replace(
        TWO,
        num_heads=2,
        rotary_scaling=RotaryScaling("linear", 4.0),
        norm_epsilon=1e-3,
    ),
    "biases, as in Qwen2": dataclasses.replace(TWO, qkv_bias=True),
    "normalised heads, as in Qwen3": dataclasses.replace(TWO, head_dim=6, qk_norm=True),
}
ONE = jax.ShapeDtypeStruct((1, 1), jnp.int32)


def random_params(model, seed=0):
    return drawn(model, ONE, scale=0.6, seed=seed)


def random_tokens(*shape, seed=2):
    return jax_array(np.random.default_rng(seed).integers(0, 30, shape, np.int32))


@in_float64
# which is in test_every_model.py
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "grouped"])
def test_all_outputs_and_logits_equal_the_reference(kind):
    config = KINDS[kind]
    model = Decoder(
        config,
        param_dtype=jnp.float64,
        unroll=None if kind == "a head of keys each" else 1,
    )
    params = random_params(model)
    tokens = random_tokens(7)
    inputs = {
        "positions": np.array([0, 1, 2, 3, 7, 8, 30]),
        "perturbation": np.asarray(normal(7, 8)),
    }

    @compiled
    def run(params):
        states = model.apply(params, tokens, **jax.tree.map(jnp.asarray, inputs))
        return states, decoder_logits(config, params["params"], states)

    states, logits = run(params)
    weights = float64(params)["params"]
    expected = decoder_reference.outputs(weights, tokens, config, **inputs)
    assert states.shape == (config.num_layers + 1, 7, 8)
    assert_allclose(states, expected, rtol=1e-10, atol=1e-11)
    assert_allclose(
        logits,
        decoder_reference.logits(weights, expected, config),
        rtol=1e-10,
        atol=1e-11,
    )


@pytest.mark.parametrize(
    "scaling",
    [None, LLAMA3, RotaryScaling("linear", 3.0), RotaryScaling("llama3", 32.0)],
)
def test_frequencies_are_those_of_the_reference(scaling):
    actual = rotary_frequencies(64, 5e5, scaling)
    expected = [
        decoder_reference.frequency(place, 64, 5e5, scaling) for place in range(32)
    ]
    assert_allclose(actual, expected, rtol=1e-12)


@nightly
@in_float64
def test_packed_texts_have_the_outputs_and_gradients_they_have_alone():
    """Behind each other in one row, with padding of any kind at its end."""
    model = Decoder(SMALL, param_dtype=jnp.float64, unroll=1)
    params = random_params(model)
    first = random_tokens(5)
    second = random_tokens(3, seed=3)
    packed = jnp.concatenate([first, second, jax_array([29, 29, 1])])[None]
    segments = jax_array([[7] * 5 + [2] * 3 + [0] * 3])
    weight = gaussian(4, 8, 8)

    def alone(params):
        states = jnp.concatenate(
            [model.apply(params, text) for text in (first, second)], axis=1
        )
        return jnp.sum(weight * jnp.sin(states)), states

    def together(params):
        states = model.apply(params, packed, segments=segments)[:, 0, :8]
        return jnp.sum(weight * jnp.sin(states)), states

    expected, actual = compiled(
        lambda params: [
            jax.value_and_grad(run, has_aux=True)(params) for run in (alone, together)
        ]
    )(params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-10, atol=1e-11)


@in_float64
@pytest.mark.parametrize(
    "kind", ["biases, as in Qwen2", "normalised heads, as in Qwen3"]
)
def test_decoding_token_by_token_equals_the_reference(kind):
    config = KINDS[kind]
    params = random_params(Decoder(config, param_dtype=jnp.float64))
    tokens = random_tokens(4)

    @compiled
    def run(params, tokens):
        def step(cache, given):
            token, place = jax.tree.map(lambda number: number[None, None], given)
            y, cache = decode(config, params["params"], token, cache, place)
            return cache, y[0, 0]

        cache = empty_cache(config, 1, 4, jnp.float64)
        return jax.lax.scan(step, cache, (tokens, jnp.arange(4)))[1]

    weights = float64(params)["params"]
    expected = decoder_reference.outputs(weights, tokens, config)[-1]
    assert_allclose(run(params, tokens), expected, rtol=1e-10, atol=1e-11)


def test_a_token_beyond_the_capacity_overwrites_none():
    params = random_params(Decoder(SMALL))["params"]

    @compiled
    def run(places, others):
        tokens = random_tokens(1, 2)
        cache = empty_cache(SMALL, 1, 3)
        _, cache = decode(SMALL, params, tokens, cache, places)
        return cache, decode(SMALL, params, tokens, cache, others)[1]

    chex.assert_trees_all_equal(*run(jax_array([[1, 2]]), jax_array([[3, -1]])))


def test_answers_are_those_of_the_rounded_parameters():
    config = dataclasses.replace(
        KINDS["one head of keys, wider heads, untied"], qkv_bias=True
    )
    params = random_params(Decoder(config))["params"]
    stored = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), params)
    options = {"prompts": [[5, 6, 7, 5, 6], [8]], "max_tokens": 4}
    expected = generate(
        config, jax.tree.map(lambda leaf: leaf.astype(np.float32), stored), **options
    )
    plain = generate(config, stored, dtype=jnp.float32, **options)
    for answers in (
        plain,
        speculate(
            config, stored, exit_layer=1, draft_length=2, dtype=jnp.float32, **options
        ),
    ):
        assert_array_equal(answers.tokens, expected.tokens)


@nightly
def test_changes_beside_kernels_are_changes_of_the_kernels():
    model = Decoder(SMALL, unroll=1)
    tokens = random_tokens(1, 5)
    params = random_params(model)["params"]
    layers = jax.device_get(params["layers"])
    changes = compiled(lambda key: low_rank_changes(key, SMALL, rank=2))(
        jax.random.key(0)
    )
    every_kernel = {"down", "gate", "key", "output", "query", "up", "value"}
    assert set(changes) == every_kernel
    assert changes["down"]["compress"].shape == (3, 12, 2)
    assert changes["key"]["expand"].shape == (3, 2, 4)
    expansions = jax.tree.map(np.float32, gaussian_like(changes))
    moved = {}
    merged = dict(layers)
    for part, weights in changes.items():
        moved[part] = weights | {"expand": expansions[part]["expand"]}
        change = weights["compress"] @ moved[part]["expand"]
        merged[part] = layers[part] | {"kernel": layers[part]["kernel"] + change}

    @compiled
    def run(params, moved):
        outputs = [
            model.apply({"params": params}, tokens, changes=given)
            for given in (None, changes, moved)
        ]
        whole = model.apply({"params": params | {"layers": merged}}, tokens)
        changed = params | {"layers": with_changes(params["layers"], moved)}
        cache = empty_cache(SMALL, 1, 8)
        decoded, _ = decode(SMALL, changed, tokens, cache, jnp.arange(5)[None])
        return outputs, whole, decoded, merged_changes(params["layers"], moved)

    (plain, start, beside), whole, decoded, ours = run(params, moved)
    assert_array_equal(start, plain)
    assert_allclose(beside, whole, rtol=1e-4, atol=1e-4)
    assert_allclose(decoded, whole[-1], rtol=1e-4, atol=1e-4)
    chex.assert_trees_all_close(ours, merged, rtol=1e-5, atol=1e-6)


def test_positions_of_small_integers_are_written_to_their_slots():
    """A token without a position is not written. The cache has more slots than an
    int8 can count."""
    config = dataclasses.replace(SMALL, max_positions=400)
    params = drawn(Decoder(config), ONE)["params"]
    kinds = ("int32", "int8", "int16")

    @compiled
    def run(places):
        cache = empty_cache(config, batch=1, capacity=300)
        tokens = jax_array([[5, 6, 7]])
        return [
            decode(config, params, tokens, cache, places.astype(kind))[1]
            for kind in kinds
        ]

    expected, *others = run(np.array([[0, -1, 1]]))
    for other in others:
        chex.assert_trees_all_equal(other, expected)
    assert not np.any(expected.keys[:, :, :, 2:])
