"""The encoder: its outputs, which padding does not change."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.marks import in_float64, nightly
from tests.models import encoder_reference
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled, jax_array
from unroll_jax.models import Encoder, EncoderConfig
from unroll_jax.models.encoder_layer import ACTIVATIONS

SMALL = EncoderConfig(
    vocabulary_size=30,
    dim=8,
    num_layers=3,
    num_heads=2,
    hidden_dim=12,
    max_positions=10,
)
KINDS = {
    "bert": SMALL,
    "distilbert": dataclasses.replace(SMALL, num_layers=2, num_heads=4, token_types=0),
    "roberta": dataclasses.replace(
        SMALL,
        num_layers=2,
        position_offset=2,
        token_types=1,
        norm_epsilon=1e-5,
        padding_token=1,
    ),
}


def random_params(model, seed=0):
    return drawn(model, jax.ShapeDtypeStruct((1, 1), jnp.int32), scale=0.6, seed=seed)


def random_tokens(*shape, config=SMALL):
    rng = np.random.default_rng(2)
    return jax_array(rng.integers(2, config.vocabulary_size, shape), np.int32)


@in_float64
@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_equal_the_reference(kind):
    config = KINDS[kind]
    model = Encoder(
        config, param_dtype=jnp.float64, unroll=None if kind == "distilbert" else 1
    )
    params = random_params(model)
    tokens = random_tokens(7)
    inputs = {
        "token_types": np.random.default_rng(3).integers(
            0, max(config.token_types, 1), 7
        ),
        "perturbation": np.asarray(normal(7, config.dim)),
    }
    outputs = compiled(model.apply)(params, tokens, **inputs)
    expected = encoder_reference.outputs(
        float64(params)["params"], tokens, config, **inputs
    )
    assert outputs.shape == (config.num_layers + 1, 7, config.dim)
    assert_allclose(outputs, expected, rtol=1e-10, atol=1e-11)


@in_float64
def test_every_activation_is_the_one_of_its_name():
    x = np.linspace(-6.0, 6.0, 101)
    values = compiled(
        lambda x: {name: activation(x) for name, activation in ACTIVATIONS.items()}
    )(x)
    for name, value in values.items():
        assert_allclose(
            value, encoder_reference.ACTIVATIONS[name](x), atol=1e-14, err_msg=name
        )


def test_without_a_mask_only_padding_is_absent():
    model = Encoder(KINDS["roberta"], unroll=1)
    mask = jax_array(np.arange(6) < np.array([[6], [4]]))
    tokens = jax_array(np.where(mask, random_tokens(2, 6), 1))

    @compiled
    def both(params):
        return (model.apply(params, tokens), model.apply(params, tokens, mask))

    chex.assert_trees_all_equal(*both(random_params(model)))


@nightly
def test_a_row_of_padding_alone_has_finite_outputs_and_gradients():
    model = Encoder(SMALL, unroll=1)
    tokens = jax_array([[3] * 5, [0] * 5])
    results = compiled(
        jax.value_and_grad(lambda p: jnp.sum(model.apply(p, tokens) ** 2))
    )(random_params(model))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
