"""The decoder: what it computes, that packed texts do not see each other, and that its cache changes nothing."""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models import decoder_reference
from tests.models.drawing import drawn, float64, normal
from unroll_jax.models import Decoder, DecoderConfig, RotaryScaling, decode, decoder_logits, empty_cache
from unroll_jax.models.language.decoder_parts import segment_positions
from unroll_jax.models.language.rotary import rotary_frequencies
from unroll_jax.perturbations import lost_layer

SMALL = DecoderConfig(
    30, dim=8, num_layers=3, num_heads=4, num_key_value_heads=2, hidden_dim=12, max_positions=40, rotary_base=100.0
)
LLAMA3 = RotaryScaling("llama3", 8.0, original_positions=24)
KINDS = {
    "grouped": SMALL,
    "one head of keys, wider heads, untied": DecoderConfig(
        30, 8, 2, 2, 1, 12, head_dim=6, max_positions=40, rotary_base=20.0, rotary_scaling=LLAMA3, tied=False
    ),
    "a head of keys each": DecoderConfig(
        30, 8, 2, 2, 2, 12, max_positions=40, rotary_scaling=RotaryScaling("linear", 4.0), norm_epsilon=1e-3
    ),
    "biases, as in Qwen2": dataclasses.replace(SMALL, num_layers=2, qkv_bias=True),
    "normalised heads, as in Qwen3": dataclasses.replace(SMALL, num_layers=2, head_dim=6, qk_norm=True),
}
ONE = jax.ShapeDtypeStruct((1, 1), jnp.int32)


def random_params(model, seed=0):
    return drawn(model, ONE, scale=0.6, seed=seed)


def random_tokens(*shape, seed=2):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 30, shape), jnp.int32)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_and_logits_equal_the_reference(kind):
    config = KINDS[kind]
    model = Decoder(config, param_dtype=jnp.float64)
    params, tokens = random_params(model), random_tokens(7)
    inputs = {"positions": np.array([0, 1, 2, 3, 7, 8, 30]), "perturbation": np.asarray(normal(7, 8))}

    @jax.jit
    def run(params):
        states = model.apply(params, tokens, **jax.tree.map(jnp.asarray, inputs))
        return states, decoder_logits(config, params["params"], states)

    states, logits = run(params)
    weights = float64(params)["params"]
    expected = decoder_reference.outputs(weights, tokens, config, **inputs)
    assert states.shape == (config.num_layers + 1, 7, 8)
    np.testing.assert_allclose(states, expected, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(logits, decoder_reference.logits(weights, expected, config), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("scaling", [None, LLAMA3, RotaryScaling("linear", 3.0), RotaryScaling("llama3", 32.0)])
def test_frequencies_are_those_of_the_reference(scaling):
    actual = rotary_frequencies(64, 5e5, scaling)
    expected = [decoder_reference.frequency(place, 64, 5e5, scaling) for place in range(32)]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    model = Decoder(SMALL, param_dtype=jnp.float64, remat=True)
    params, direction = (random_params(model, seed) for seed in (0, 1))
    tokens, weight = random_tokens(5), np.random.default_rng(0).normal(size=(4, 5, 8))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, tokens))))(params)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: leaf + distance * d, float64(params), float64(direction))
        return np.sum(weight * decoder_reference.outputs(moved["params"], tokens, SMALL))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_packed_texts_have_the_outputs_and_gradients_they_have_alone():
    """Behind each other in one row, with padding of any kind at its end."""
    model = Decoder(SMALL, param_dtype=jnp.float64)
    params, first, second = random_params(model), random_tokens(5), random_tokens(3, seed=3)
    packed = jnp.concatenate([first, second, jnp.array([29, 29, 1])])[None]
    segments = jnp.array([[7] * 5 + [2] * 3 + [0] * 3])
    weight = np.random.default_rng(0).normal(size=(4, 8, 8))

    def alone(params):
        states = jnp.concatenate([model.apply(params, text) for text in (first, second)], axis=1)
        return jnp.sum(weight * jnp.sin(states)), states

    def together(params):
        states = model.apply(params, packed, segments=segments)[:, 0, :8]
        return jnp.sum(weight * jnp.sin(states)), states

    expected, actual = jax.jit(
        lambda params: [jax.value_and_grad(run, has_aux=True)(params) for run in (alone, together)]
    )(params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-10, atol=1e-11)


def test_positions_start_anew_in_every_segment():
    segments = np.array([[1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 3, 3]])
    actual = jax.jit(segment_positions)(segments)
    np.testing.assert_array_equal(actual, [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]])


def test_leading_axes_are_batches():
    model = Decoder(SMALL)
    params, tokens = random_params(model), random_tokens(2, 3, 5)
    outputs = jax.jit(model.apply)(params, tokens)
    assert outputs.shape == (4, 2, 3, 5, 8)
    for place in np.ndindex(2, 3):
        expected = decoder_reference.outputs(float64(params)["params"], tokens[place], SMALL)
        np.testing.assert_allclose(np.asarray(outputs)[(slice(None), *place)], expected, rtol=1e-4, atol=1e-4)


def test_record_is_evaluated_at_every_layer_and_perturb_moves_their_outputs():
    model, tokens = Decoder(SMALL), random_tokens(2, 5)
    record = lambda y: {"mean": jnp.mean((y - 1.0) ** 2), "largest": jnp.max(y)}  # noqa: E731

    @jax.jit
    def run(params):
        return (
            model.apply(params, tokens, record=record),
            model.apply(params, tokens),
            model.apply(params, tokens, perturb=lost_layer(2)),
        )

    recorded, outputs, lost = (jax.tree.map(np.asarray, tree) for tree in run(random_params(model)))
    np.testing.assert_allclose(recorded["mean"], np.mean((outputs - 1.0) ** 2, axis=(1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(recorded["largest"], np.max(outputs, axis=(1, 2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(lost[2], lost[1])
    assert not np.allclose(lost[3], outputs[3])


@pytest.mark.slow
def test_bfloat16_layers_keep_float32_parameters_outputs_and_records():
    narrow, wide, seen = Decoder(SMALL, dtype=jnp.bfloat16), Decoder(SMALL), []
    tokens = random_tokens(2, 5)
    params = jax.jit(narrow.init)(jax.random.key(0), tokens)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    record = lambda y: seen.append(y.dtype) or y  # noqa: E731
    outputs, expected = jax.jit(lambda p: (narrow.apply(p, tokens, record=record), wide.apply(p, tokens)))(params)
    assert {outputs.dtype, *seen} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(outputs, expected, atol=0.05 * float(jnp.max(jnp.abs(expected))))
    products = re.findall(r"dot_general.*: \((.*)\) ->", jax.jit(narrow.apply).lower(params, tokens).as_text())
    assert len(products) > 0
    assert all("xf32" not in factors for factors in products)


@pytest.mark.slow
def test_unrolling_and_remat_change_nothing_but_the_program():
    tokens, params = random_tokens(2, 3), drawn(Decoder(SMALL), ONE, scale=0.2)
    options: list[dict] = [{}, {"unroll": 2, "remat": jax.checkpoint_policies.dots_saveable}]
    total = lambda params, model: jnp.sum(model.apply(params, tokens) ** 3)  # noqa: E731
    run = jax.jit(lambda params: [jax.value_and_grad(total)(params, Decoder(SMALL, **each)) for each in options])
    plain, other = run(params)
    chex.assert_trees_all_close(other, plain, rtol=1e-4, atol=1e-5)


def test_the_program_does_not_grow_with_depth():
    sizes, tokens = [], random_tokens(2, 5)
    for depth in (2, 12):
        model = Decoder(DecoderConfig(30, 8, depth, 2, 1, 12))
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)
        loss = lambda params: jnp.sum(model.apply(params, tokens))  # noqa: B023, E731
        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"num_key_value_heads": 5}, "num_key_value_heads must divide num_heads=32, got 5"),
        ({"num_heads": 24}, "num_heads must divide dim=2048 where head_dim is None, got 24"),
        ({"head_dim": 7}, "head_dim must be even, as pairs are rotated, got 7"),
        ({"rotary_base": 1.0}, r"rotary_base must be in \(1, inf\), got 1.0"),
        ({"norm_epsilon": 2.0}, r"norm_epsilon must be in \[0, 1\), got 2.0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_configuration_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(30, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "yarn"}, "kind of rotary scaling must be one of linear, llama3, got 'yarn'"),
        ({"factor": 0.5}, "factor must be finite and at least 1, got 0.5"),
        ({"low_frequency_factor": 5.0}, "low_frequency_factor must be positive and below high_frequency_factor=4.0"),
        ({"original_positions": 0}, "original_positions must be at least 1, got 0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_scaling_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**{"kind": "llama3", "factor": 8.0} | options)


TOKENS = np.ones((2, 5), np.int32)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"tokens": np.ones((2, 41), np.int32)}, ValueError, r"n in \[1, max_positions=40\], got shape \(2, 41\)"),
        ({"segments": np.ones((2, 4), np.int32)}, ValueError, r"segments must have shape \(2, 5\), as tokens have"),
        ({"positions": np.ones((2, 5))}, TypeError, "positions must be integers, got float64"),
        ({"perturbation": np.ones((2, 5))}, ValueError, r"perturbation must have shape \(2, 5, 8\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_named(inputs, error, message):
    model, call = Decoder(SMALL), {"tokens": TOKENS} | inputs
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda key: model.init(key, **call), jax.random.key(0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": 4}, "0 <= first < last <= num_layers=3, got 0 and 4"),
        ({"first": 1}, r"outputs of layer first=1, got tokens \(int32\)"),
        ({"inputs": TOKENS[:, :4]}, r"got \(2, 4\) and \(2, 5\)"),
        ({"cache": empty_cache(SMALL, 3, 4)}, r"cache must hold \(3, 2, 2\) layers, texts and heads of width 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_call_of_decode_is_named(change, message):
    call = {"inputs": TOKENS, "cache": empty_cache(SMALL, 2, 4), "positions": TOKENS} | change
    with pytest.raises(ValueError, match=message):
        decode(SMALL, {}, **call)


@pytest.mark.parametrize(("batch", "capacity", "word"), [(0, 4, "batch"), (1, 41, "capacity must be in [1, max_pos")])
def test_a_bad_cache_is_named(batch, capacity, word):
    with pytest.raises(ValueError, match=re.escape(word)):
        empty_cache(SMALL, batch, capacity)
