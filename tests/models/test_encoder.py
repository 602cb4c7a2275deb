"""The encoder: what it computes, and that padding is nothing to it."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models import encoder_reference
from tests.models.drawing import drawn, float64, normal
from unroll_jax.models import Encoder, EncoderConfig
from unroll_jax.models.encoder_layer import ACTIVATIONS

SMALL = EncoderConfig(vocabulary_size=30, dim=8, num_layers=3, num_heads=2, hidden_dim=12, max_positions=10)
KINDS = {
    "bert": SMALL,
    "distilbert": EncoderConfig(30, dim=8, num_layers=2, num_heads=4, hidden_dim=12, max_positions=10, token_types=0),
    "roberta": EncoderConfig(
        30, 8, 2, 2, 12, max_positions=10, position_offset=2, token_types=1, norm_epsilon=1e-5, padding_token=1
    ),
}


def random_params(model, seed=0):
    return drawn(model, jax.ShapeDtypeStruct((1, 1), jnp.int32), scale=0.6, seed=seed)


def random_tokens(*shape, config=SMALL):
    return jnp.asarray(np.random.default_rng(2).integers(2, config.vocabulary_size, shape), jnp.int32)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_equal_the_reference(kind):
    config = KINDS[kind]
    model = Encoder(config, param_dtype=jnp.float64)
    params, tokens = random_params(model), random_tokens(7)
    inputs = {
        "token_types": np.random.default_rng(3).integers(0, max(config.token_types, 1), 7),
        "perturbation": np.asarray(normal(7, config.dim)),
    }
    outputs = jax.jit(model.apply)(params, tokens, **inputs)
    expected = encoder_reference.outputs(float64(params)["params"], tokens, config, **inputs)
    assert outputs.shape == (config.num_layers + 1, 7, config.dim)
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("x64")
def test_every_activation_is_the_one_of_its_name():
    x = np.linspace(-6.0, 6.0, 101)
    values = jax.jit(lambda x: {name: activation(x) for name, activation in ACTIVATIONS.items()})(x)
    for name, value in values.items():
        np.testing.assert_allclose(value, encoder_reference.ACTIVATIONS[name](x), atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    model = Encoder(SMALL, param_dtype=jnp.float64, remat=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    params, direction = (random_params(model, seed) for seed in (0, 1))
    tokens, weight = random_tokens(5), np.random.default_rng(0).normal(size=(4, 5, 8))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, tokens))))(params)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: leaf + distance * d, float64(params), float64(direction))
        return np.sum(weight * encoder_reference.outputs(moved["params"], tokens, SMALL))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_padding_changes_neither_outputs_nor_gradients(kind):
    """Of real tokens with and without kinds; "distilbert" has but less than these."""
    config = KINDS[kind]
    model = Encoder(config, param_dtype=jnp.float64)
    params, tokens = random_params(model), np.asarray(random_tokens(1, 4))
    noise, weight = (np.asarray(normal(1, 4, config.dim, seed=seed)) for seed in (1, 2))

    def loss(params, tokens, mask, types, noise, weight):
        outputs = model.apply(params, tokens, mask, token_types=types, perturbation=noise)
        return jnp.sum(jnp.where(mask[..., None], jnp.sin(outputs) * weight, 0.0)), outputs

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    types = np.random.default_rng(3).integers(0, max(config.token_types, 1), (1, 4))
    (_, outputs), gradient = run(params, tokens, np.ones((1, 4), bool), types, noise, weight)

    for where in ([0, 1, 2, 3], [5, 6, 7, 8], [0, 2, 3, 8]):  # on the right, on the left, between

        def padded(values, filling):
            longer = np.full((1, 9, *values.shape[2:]), filling, values.dtype)
            longer[:, where] = values  # noqa: B023
            return longer

        # What stands at the padding is anything: even a perturbation without a value, and a token that there is not.
        mask, kinds = padded(np.ones((1, 4), bool), False), padded(types, 99)
        for filling in (17, -1, config.vocabulary_size):
            longer = (padded(tokens, filling), mask, kinds, padded(noise, np.nan), padded(weight, 3.0))
            (_, padded_outputs), padded_gradient = run(params, *longer)
            np.testing.assert_allclose(np.asarray(padded_outputs)[:, :, where], outputs, rtol=1e-12, atol=1e-12)
            chex.assert_trees_all_close(padded_gradient, gradient, rtol=1e-10, atol=1e-11)


def test_without_a_mask_all_tokens_are_real_but_those_of_padding():
    model = Encoder(KINDS["roberta"])
    mask = jnp.asarray(np.arange(6) < np.array([[6], [4]]))
    tokens = jnp.asarray(np.where(mask, random_tokens(2, 6), 1))
    both = jax.jit(lambda params: (model.apply(params, tokens), model.apply(params, tokens, mask)))
    chex.assert_trees_all_equal(*both(random_params(model)))


def test_leading_axes_are_batches():
    """Of the other ranks the tests here have texts alone and batches of them."""
    model = Encoder(SMALL)
    params, tokens = random_params(model), random_tokens(2, 3, 5)
    outputs = jax.jit(model.apply)(params, tokens)
    assert outputs.shape == (4, 2, 3, 5, 8)
    for place in np.ndindex(2, 3):
        expected = encoder_reference.outputs(float64(params)["params"], tokens[place], SMALL)
        np.testing.assert_allclose(np.asarray(outputs)[(slice(None), *place)], expected, rtol=1e-4, atol=1e-4)


def test_a_perturbation_is_one_of_the_word_embeddings():
    model = Encoder(SMALL)
    tokens, shift = random_tokens(2, 5), normal(30, 8, dtype=jnp.float32)

    @jax.jit
    def both(params):
        perturbed = model.apply(params, tokens, perturbation=shift[tokens])
        params["params"]["embeddings"]["word"]["embedding"] += shift
        return perturbed, model.apply(params, tokens)

    chex.assert_trees_all_close(*both(random_params(model)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_row_of_padding_alone_has_finite_outputs_and_gradients():
    model, tokens = Encoder(SMALL), jnp.array([[3] * 5, [0] * 5])
    results = jax.jit(jax.value_and_grad(lambda p: jnp.sum(model.apply(p, tokens) ** 2)))(random_params(model))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))


def test_record_is_evaluated_at_every_layer_in_the_place_of_its_output():
    model, tokens = Encoder(SMALL), random_tokens(2, 5)
    record = lambda y: {"loss": jnp.mean((y - 1.0) ** 2), "largest": jnp.max(y)}  # noqa: E731
    run = jax.jit(lambda params: (model.apply(params, tokens, record=record), model.apply(params, tokens)))
    recorded, outputs = run(random_params(model))
    outputs = np.asarray(outputs)
    np.testing.assert_allclose(recorded["loss"], np.mean((outputs - 1.0) ** 2, axis=(1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(recorded["largest"], np.max(outputs, axis=(1, 2, 3)), rtol=1e-6)


@pytest.mark.slow
def test_bfloat16_layers_keep_float32_parameters_outputs_and_records():
    narrow, wide, seen = Encoder(SMALL, dtype=jnp.bfloat16), Encoder(SMALL), []
    tokens = random_tokens(2, 5)
    params = jax.jit(narrow.init)(jax.random.key(0), tokens)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    record = lambda y: seen.append(y.dtype) or y  # noqa: E731
    run = jax.jit(lambda params: (narrow.apply(params, tokens, record=record), wide.apply(params, tokens)))
    outputs, expected = run(params)
    assert {outputs.dtype, *seen} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(outputs, expected, atol=0.05)
    products = re.findall(r"dot_general.*: \((.*)\) ->", jax.jit(narrow.apply).lower(params, tokens).as_text())
    assert len(products) in (6, 18)  # of the layer in a loop, or of three layers written out
    assert all("xf32" not in factors for factors in products)


@pytest.mark.slow
def test_unrolling_the_scan_changes_nothing_but_the_program():
    """By fewer layers than there are, which leaves one over, and by more."""
    tokens, params = jnp.array([[5, 6, 7], [8, 9, 0]]), drawn(Encoder(SMALL), jnp.array([[5]]), scale=0.2)

    def total(params, unroll):
        return jnp.sum(Encoder(SMALL, unroll=unroll).apply(params, tokens)[:, 0] ** 3)

    run = jax.jit(lambda params: ([jax.value_and_grad(total)(params, unroll) for unroll in (1, 2)], total(params, 5)))
    (plain, unrolled), above = run(params)
    chex.assert_trees_all_close(unrolled, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(above, plain[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="unroll must be at least 1, got 0"):
        jax.eval_shape(Encoder(SMALL, unroll=0).apply, params, tokens)


@pytest.mark.slow
def test_remat_keeps_the_gradients_and_saves_memory():
    config, tokens = EncoderConfig(30, 16, 12, 2, 32, 64), random_tokens(8, 64)
    choices = (False, True, jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    params, memory, gradients = drawn(Encoder(config), tokens, scale=0.2), [], []
    for choice in choices:
        model = Encoder(config, remat=choice)
        # Not the square: norms leave none of its gradient but rounding errors.
        loss = lambda params: jnp.sum(model.apply(params, tokens, record=lambda y: jnp.sum(jnp.sin(y))))  # noqa: B023, E731
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients.append(compiled(params))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    for gradient, size in zip(gradients[1:], memory[1:], strict=True):
        chex.assert_trees_all_close(gradient, gradients[0], rtol=1e-3, atol=1e-3)
        assert size < 0.6 * memory[0]


def test_the_program_does_not_grow_with_depth():
    sizes, tokens = [], random_tokens(2, 5)
    for depth in (2, 12):
        model = Encoder(EncoderConfig(30, 8, depth, 2, 12))
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)
        loss = lambda params: jnp.sum(model.apply(params, tokens))  # noqa: B023, E731
        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"num_heads": 5}, "num_heads must divide dim=768, got 5"),
        ({"token_types": -1}, "token_types must be at least 0, got -1"),
        ({"activation": "mish"}, r"activation must be one of .*'gelu_tanh'.*got 'mish'"),
        ({"norm_epsilon": 2.0}, r"norm_epsilon must be in \[0, 1\), got 2.0"),
        ({"padding_token": 30}, r"padding_token must be in \[0, vocabulary_size=30\), got 30"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_configuration_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(30, **options)


TOKENS = np.ones((2, 5), np.int32)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"tokens": np.ones((2, 11), np.int32)}, ValueError, r"n in \[1, max_positions=10\], got shape \(2, 11\)"),
        ({"tokens": np.ones((2, 0), np.int32)}, ValueError, r"n at least 1, got shape \(2, 0\)"),
        ({"tokens": np.ones((2, 5), np.float32)}, TypeError, "tokens must be integers, got float32"),
        ({"mask": np.ones((2, 4), bool)}, ValueError, r"mask must have shape \(2, 5\), as tokens have, got \(2, 4\)"),
        ({"mask": np.ones((2, 5), np.int32)}, TypeError, "mask must be boolean, got int32"),
        ({"token_types": np.ones(5, np.int32)}, ValueError, r"token_types must have shape \(2, 5\)"),
        ({"perturbation": np.ones((2, 5))}, ValueError, r"perturbation must have shape \(2, 5, 8\)"),
        ({"perturbation": np.ones((2, 5, 8), int)}, TypeError, "perturbation must have a floating dtype"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_named(inputs, error, message):
    model, call = Encoder(SMALL), {"tokens": TOKENS} | inputs
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda call: model.init(jax.random.key(0), **call), call)
