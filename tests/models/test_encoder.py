"""The encoder: what it computes, and that padding is nothing to it."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models import encoder_reference
from unroll_jax.models import ACTIVATIONS, Encoder, EncoderConfig

SMALL = EncoderConfig(vocabulary_size=30, dim=8, num_layers=3, num_heads=2, hidden_dim=12, max_positions=10)
KINDS = {
    "bert": SMALL,
    "distilbert": EncoderConfig(30, dim=8, num_layers=2, num_heads=4, hidden_dim=12, max_positions=10, token_types=0),
    "roberta": EncoderConfig(
        30, 8, 2, 2, 12, max_positions=10, position_offset=2, token_types=1, norm_epsilon=1e-5, padding_token=1
    ),
}


def random_params(model, key):
    """Away from initial values, where biases are zero, norms do nothing and layers hardly do."""
    shapes = jax.eval_shape(model.init, key, jnp.zeros((1, 1), jnp.int32))
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(key, len(leaves))
    drawn = [0.6 * jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def numpy_params(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])


def random_tokens(key, shape, config=SMALL):
    return jax.random.randint(key, shape, 2, config.vocabulary_size)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_equal_the_reference(kind, getkey):
    config = KINDS[kind]
    model = Encoder(config, param_dtype=jnp.float64)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (7,))
    inputs = {
        "token_types": jax.random.randint(getkey(), (7,), 0, max(config.token_types, 1)),
        "perturbation": jax.random.normal(getkey(), (7, config.dim)),
    }
    outputs = jax.jit(model.apply)(params, tokens, **inputs)
    expected = encoder_reference.outputs(numpy_params(params), tokens, config, **jax.tree.map(np.asarray, inputs))
    assert outputs.shape == (config.num_layers + 1, 7, config.dim)
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_the_one_of_its_name(activation):
    x = np.linspace(-6.0, 6.0, 101)
    np.testing.assert_allclose(ACTIVATIONS[activation](x), encoder_reference.ACTIVATIONS[activation](x), atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference(getkey):
    model = Encoder(SMALL, param_dtype=jnp.float64, remat=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    params, direction = (random_params(model, getkey()) for _ in range(2))
    tokens, weight = random_tokens(getkey(), (5,)), np.random.default_rng(0).normal(size=(4, 5, 8))
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(weight * model.apply(params, tokens))))(params)
    along = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: leaf + distance * d, numpy_params(params), numpy_params(direction))
        return np.sum(weight * encoder_reference.outputs(moved, tokens, SMALL))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-5), rtol=1e-7)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_neither_outputs_nor_gradients(kind, getkey):
    config = KINDS[kind]
    model = Encoder(config, param_dtype=jnp.float64)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (1, 4))
    noise, weight = (jax.random.normal(getkey(), (1, 4, config.dim)) for _ in range(2))

    def loss(params, tokens, mask, types, noise, weight):
        outputs = model.apply(params, tokens, mask, token_types=types, perturbation=noise)
        return jnp.sum(jnp.where(mask[..., None], jnp.sin(outputs) * weight, 0.0)), outputs

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    types = jax.random.randint(getkey(), (1, 4), 0, max(config.token_types, 1))
    (_, outputs), gradient = run(params, tokens, jnp.ones((1, 4), bool), types, noise, weight)

    for where in ([0, 1, 2, 3], [5, 6, 7, 8], [0, 2, 3, 8]):  # on the right, on the left, between

        def padded(values, filling):
            longer = np.full((1, 9, *values.shape[2:]), filling, values.dtype)
            longer[:, where] = values  # noqa: B023
            return jnp.asarray(longer)

        # What stands at the padding is anything: even a perturbation without a value, and a token that there is not.
        mask, kinds = padded(np.ones((1, 4), bool), False), padded(types, 99)
        for filling in (17, -1, config.vocabulary_size):
            longer = (padded(tokens, filling), mask, kinds, padded(noise, np.nan), padded(weight, 3.0))
            (_, found), found_gradient = run(params, *longer)
            np.testing.assert_allclose(found[:, :, jnp.array(where)], outputs, rtol=1e-12, atol=1e-12)
            chex.assert_trees_all_close(found_gradient, gradient, rtol=1e-10, atol=1e-11)


def test_without_a_mask_all_tokens_are_real_but_those_of_padding(getkey):
    model = Encoder(KINDS["roberta"])
    params, tokens = random_params(model, getkey()), np.array(random_tokens(getkey(), (2, 6)))
    mask = np.arange(6) < np.array([[6], [4]])
    tokens, mask, run = jnp.asarray(np.where(mask, tokens, 1)), jnp.asarray(mask), jax.jit(model.apply)
    chex.assert_trees_all_equal(run(params, tokens), run(params, tokens, mask))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_leading_axes_are_batches(getkey, batch):
    model = Encoder(SMALL)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (*batch, 5))
    outputs = jax.jit(model.apply)(params, tokens)
    assert outputs.shape == (4, *batch, 5, 8)
    for place in np.ndindex(*batch):
        expected = encoder_reference.outputs(numpy_params(params), tokens[place], SMALL)
        np.testing.assert_allclose(outputs[(slice(None), *place)], expected, rtol=1e-4, atol=1e-4)


def test_a_perturbation_is_one_of_the_word_embeddings(getkey):
    model = Encoder(SMALL)
    params, tokens = random_params(model, getkey()), random_tokens(getkey(), (2, 5))
    shift = jax.random.normal(getkey(), (30, 8))
    moved = jax.tree.map(lambda leaf: leaf, params)
    moved["params"]["embeddings"]["word"]["embedding"] += shift
    found = jax.jit(model.apply)(params, tokens, perturbation=shift[tokens])
    chex.assert_trees_all_close(found, jax.jit(model.apply)(moved, tokens), rtol=1e-4, atol=1e-4)


def test_a_row_of_padding_alone_has_finite_outputs_and_gradients(getkey):
    model = Encoder(SMALL)
    params, tokens = random_params(model, getkey()), jnp.zeros((2, 5), jnp.int32).at[0].set(3)
    outputs, gradient = jax.jit(jax.value_and_grad(lambda p: jnp.sum(model.apply(p, tokens) ** 2)))(params)
    assert all(jnp.isfinite(leaf).all() for leaf in (outputs, *jax.tree.leaves(gradient)))


def test_record_is_evaluated_at_every_layer_in_the_place_of_its_output(getkey):
    model = Encoder(SMALL)
    params, tokens, target = random_params(model, getkey()), random_tokens(getkey(), (2, 5)), jnp.ones((2, 5, 8))
    record = lambda y: {"loss": jnp.mean((y - target) ** 2), "largest": jnp.max(y)}  # noqa: E731
    recorded = jax.jit(lambda params: model.apply(params, tokens, record=record))(params)
    outputs = jax.jit(model.apply)(params, tokens)
    chex.assert_trees_all_close(recorded["loss"], jnp.stack([record(y)["loss"] for y in outputs]), rtol=1e-5)
    chex.assert_trees_all_close(recorded["largest"], jnp.max(outputs, axis=(1, 2, 3)), rtol=1e-6)


def test_bfloat16_layers_keep_float32_parameters_outputs_and_records(getkey):
    narrow, wide, seen = Encoder(SMALL, dtype=jnp.bfloat16), Encoder(SMALL), []
    tokens = random_tokens(getkey(), (2, 5))
    params = narrow.init(getkey(), tokens)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    traced = jax.jit(lambda params: narrow.apply(params, tokens, record=lambda y: seen.append(y.dtype) or y))
    outputs = traced(params)
    assert {outputs.dtype, *seen} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(outputs, jax.jit(wide.apply)(params, tokens), atol=0.05)
    products = re.findall(r"dot_general.*: \((.*)\) ->", jax.jit(narrow.apply).lower(params, tokens).as_text())
    assert len(products) == 6
    assert all("xf32" not in factors for factors in products)


@pytest.mark.parametrize("unroll", [2, 3, 5])
def test_unrolling_the_scan_changes_nothing_but_the_program(getkey, unroll):
    tokens = jnp.array([[5, 6, 7], [8, 9, 0]])
    plain, unrolled = Encoder(SMALL), Encoder(SMALL, unroll=unroll)
    params = jax.jit(plain.init)(getkey(), tokens)

    def total(model, params):
        return jnp.sum(model.apply(params, tokens)[:, 0] ** 3)

    slopes = jax.jit(jax.value_and_grad(total, argnums=1), static_argnums=0)
    chex.assert_trees_all_close(slopes(unrolled, params), slopes(plain, params), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="unroll must be at least 1 and an integer, got 0"):
        Encoder(SMALL, unroll=0).apply(params, tokens)


@pytest.mark.parametrize("remat", [True, jax.checkpoint_policies.dots_with_no_batch_dims_saveable])
def test_remat_keeps_the_gradients_and_saves_memory(getkey, remat):
    config, memory, gradients = EncoderConfig(30, 16, 12, 2, 32, 64), [], []
    tokens, params = random_tokens(getkey(), (8, 64)), None
    for choice in (False, remat):
        model = Encoder(config, remat=choice)
        params = model.init(jax.random.key(0), tokens) if params is None else params
        # Not the square: norms leave none of its gradient but rounding errors.
        loss = lambda params: jnp.sum(model.apply(params, tokens, record=lambda y: jnp.sum(jnp.sin(y))))  # noqa: B023, E731
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients.append(compiled(params))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    chex.assert_trees_all_close(*gradients, rtol=1e-3, atol=1e-3)
    assert memory[1] < 0.6 * memory[0]


def test_the_program_does_not_grow_with_depth(getkey):
    sizes = []
    for depth in (2, 12):
        model = Encoder(EncoderConfig(30, 8, depth, 2, 12))
        tokens = random_tokens(getkey(), (2, 5))
        params = jax.eval_shape(model.init, getkey(), tokens)
        loss = lambda params: jnp.sum(model.apply(params, tokens))  # noqa: B023, E731
        sizes.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = "))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be at least 1 and an integer, got 0"),
        ({"num_heads": 5}, "num_heads must divide dim=768, got 5"),
        ({"token_types": -1}, "token_types must be at least 0 and an integer, got -1"),
        ({"activation": "mish"}, r"activation must be one of .*'gelu_tanh'.*got 'mish'"),
        ({"norm_epsilon": 2.0}, r"norm_epsilon must be in \[0, 1\), got 2.0"),
        ({"padding_token": 30}, r"padding_token must be in \[0, vocabulary_size=30\), got 30"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_configuration_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(30, **options)


TOKENS = jnp.ones((2, 5), jnp.int32)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"tokens": jnp.ones((2, 11), jnp.int32)}, ValueError, r"n in \[1, max_positions=10\], got shape \(2, 11\)"),
        ({"tokens": jnp.ones((2, 0), jnp.int32)}, ValueError, r"n at least 1, got shape \(2, 0\)"),
        ({"tokens": jnp.ones((2, 5))}, TypeError, "tokens must have a dtype of kind integer, got float32"),
        ({"mask": jnp.ones((2, 4), bool)}, ValueError, r"mask must have shape \(2, 5\), as tokens say, got \(2, 4\)"),
        ({"mask": jnp.ones((2, 5), jnp.int32)}, TypeError, "mask must have a dtype of kind bool, got int32"),
        ({"token_types": jnp.ones(5, jnp.int32)}, ValueError, r"token_types must have shape \(2, 5\)"),
        ({"perturbation": jnp.ones((2, 5))}, ValueError, r"perturbation must have shape \(2, 5, 8\)"),
        ({"perturbation": jnp.ones((2, 5, 8), int)}, TypeError, "perturbation must have a dtype of kind floating"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_named(inputs, error, message):
    model, call = Encoder(SMALL), {"tokens": TOKENS} | inputs
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda call: model.init(jax.random.key(0), **call), call)
