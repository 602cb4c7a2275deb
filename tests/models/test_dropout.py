"""Dropout: none by default, zeros and scaled values at its places, a key for each
row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64, nightly
from tests.models import (
    decoder_reference,
    encoder_reference,
    test_decoder,
    test_encoder,
    test_vit,
)
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled
from unroll_jax.models import Classifier, Decoder, Encoder, ViT
from unroll_jax.models.dropout import dropout
from unroll_jax.models.encoder_layer import EncoderLayer
from unroll_jax.models.language.decoder_parts import (
    causal_mask,
    decoder_layer,
    rotation,
)

RATE = 0.3
FRAMES = test_vit.CASES["residual"]
MODELS = {
    "decoder": (Decoder, test_decoder.SMALL, test_decoder.random_tokens(3, 5)),
    "encoder": (Encoder, test_encoder.SMALL, test_encoder.random_tokens(3, 5)),
    "vit": (ViT, FRAMES, test_vit.frames(3)),
}
SLOW = [pytest.param(name, marks=nightly) for name in ("encoder", "vit")]
every_model = pytest.mark.parametrize("name", ["decoder", *SLOW])


@every_model
def test_without_a_key_or_rate_nothing_is_dropped(
    name,
):
    make, config, x = MODELS[name]
    params = drawn(make(config), x)

    def program(rate, **options):
        model = make(config, dropout=rate)
        return str(jax.make_jaxpr(lambda p: model.apply(p, x, **options))(params))

    key = jax.random.key(0)
    plain = str(jax.make_jaxpr(lambda p: make(config).apply(p, x))(params))
    assert program(RATE) == plain
    assert program(0.0, dropout_key=key) == plain
    assert program(RATE, dropout_key=key) != plain


@every_model
def test_a_row_drops_by_its_key_whatever_its_batch(name):
    make, config, x = MODELS[name]
    model = make(config, dropout=RATE)
    params = drawn(model, x)
    x = np.asarray(x)
    seeds = np.array([5, 6, 5])

    @compiled
    def run(x, seeds):
        keys = jax.vmap(jax.random.key)(seeds)
        return [model.apply(params, x, dropout_key=key) for key in (keys, keys[0])]

    states, _ = run(x, seeds)
    same, _ = run(x[::-1], seeds[::-1])
    assert_allclose(same[:, ::-1], states, rtol=1e-5, atol=1e-6)
    other, _ = run(x, np.array([5, 7, 5]))
    differs = np.abs(other - states).max((0, 2, 3)) > 1e-3
    assert differs.tolist() == [False, True, False]
    # one key for all rows draws each of them for itself
    _, rows = run(np.broadcast_to(x[:1], x.shape), seeds)
    assert np.abs(rows[-1, 0] - rows[-1, 1]).max() > 1e-3
    assert np.isfinite(rows).all()


def test_values_are_dropped_at_the_rate_and_others_scaled():
    values = np.ones((4, 50, 100), np.float32)

    @compiled
    def run(values):
        drop = dropout(jax.random.key(0), RATE, values.shape)
        return drop(0, values), drop(1, values), drop(0, values.astype(jnp.bfloat16))

    first, second, half = run(values)
    assert_allclose(np.unique(first), [0.0, 1 / (1 - RATE)], rtol=1e-6)
    error = np.sqrt(RATE / (1 - RATE) / values.size)  # of the mean
    assert abs(first.mean() - 1.0) < 5 * error
    share = ((first == 0) & (second == 0)).mean()
    assert abs(share - RATE**2) < 5 * np.sqrt(RATE**2 / values.size)
    # columns and rows are drawn alike
    assert (first == 0).mean((0, 1)).std() < 0.05
    assert half.dtype == jnp.bfloat16
    assert_array_equal(half == 0, first == 0)


@in_float64
def test_layers_drop_the_outputs_of_both_parts():
    factors = np.random.default_rng(0).integers(0, 2, (2, 5, 8)) * 1.5
    y = normal(5, 8)

    def drop(part, values):
        return values * jnp.asarray(factors[part])

    config = test_encoder.SMALL
    for norm_first, reference in (
        (False, encoder_reference.layer),
        (True, encoder_reference.layer_norm_first),
    ):
        layer = EncoderLayer(config, jnp.float64, jnp.float64, norm_first)
        params = drawn(layer, y, None)
        actual = compiled(lambda p, layer=layer: layer.apply(p, y, None, drop))(params)
        weights = float64(params)["params"]
        expected = reference(weights, np.asarray(y), config, factors)
        assert_allclose(actual, expected, rtol=1e-10, atol=1e-11)

    config = test_decoder.SMALL
    model = Decoder(config, param_dtype=jnp.float64)
    params = test_decoder.random_params(model)["params"]["layers"]
    weights = decoder_reference.of_layer(params, 1)

    @compiled
    def run(weights):
        angles = rotation(config, jnp.arange(5), jnp.float64)
        mask = causal_mask(jnp.zeros(5, jnp.int32))
        return decoder_layer(config, weights, y, angles, mask, drop)

    expected = decoder_reference.layer(
        float64(weights), np.asarray(y), config, np.arange(5), factors
    )
    assert_allclose(run(weights), expected, rtol=1e-10, atol=1e-11)


@nightly
def test_every_layer_drops_by_its_own_draw():
    """With a feed-forward part of 0, a layer adds the dropped output of attention."""
    model = Decoder(test_decoder.SMALL, dropout=RATE)
    tokens = test_decoder.random_tokens(64, 9)
    params = test_decoder.random_params(model)
    down = params["params"]["layers"]["down"]
    params["params"]["layers"]["down"] = jax.tree.map(jnp.zeros_like, down)
    key = jax.random.key(0)
    states = compiled(lambda p: model.apply(p, tokens, dropout_key=key))(params)
    is_dropped = np.asarray(states[1:] == states[:-1])
    assert is_dropped.shape == (3, 64, 9, 8)
    assert_allclose(is_dropped.mean((1, 2, 3)), RATE, atol=0.04)
    assert_allclose((is_dropped[0] & is_dropped[1]).mean(), RATE**2, atol=0.03)


@nightly
def test_a_classifier_passes_the_key_to_its_encoder():
    config = test_encoder.SMALL
    tokens = test_encoder.random_tokens(3, 5)
    model = Classifier(Encoder(config, dropout=RATE), 4)
    params = drawn(model, tokens)

    @compiled
    def run(key):
        return model.apply(params, tokens, dropout_key=key)

    first, same, other = (run(jax.random.key(seed)) for seed in (0, 0, 1))
    assert_array_equal(first, same)
    assert np.abs(np.asarray(first - other))[1:].max() > 1e-3
    assert_array_equal(first[0], other[0])
