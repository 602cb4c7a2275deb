"""Segmenters: a class for every pixel of images of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from numpy.testing import assert_allclose

from tests.energies import opteq_reference as reference
from tests.fixed_point.problems import relative_error
from tests.marks import in_float64, nightly
from tests.models.deep_opteq_by_hand import start
from tests.models.drawing import drawn, normal
from tests.reference import compiled
from unroll_jax.models import (
    BehindStem,
    DeepOptEqSegmenter,
    FeedForwardNetwork,
    FullyConvolutionalNetwork,
)

SMALL = {"num_classes": 3, "widths": (4, 3), "stem": (3, 5)}


def segmenter(**options):
    return DeepOptEqSegmenter(**{**SMALL, "channels": 4, **options})


def strided(image, layer):
    """A convolution of stride 2 and ReLU. Padding as TensorFlow's SAME starts at the
    second of an even number of pixels."""
    height, width = image.shape[:2]
    taps = reference.conv_matrix(layer["kernel"], (height, width)) @ image.ravel()
    every = taps.reshape(height, width, -1)
    half = every[1 - height % 2 :: 2, 1 - width % 2 :: 2]
    return np.maximum(half + layer["bias"], 0.0)


def behind_stem(image, weights):
    for place in (0, 1):
        image = strided(image, weights["stem"][f"Features_{place}"]["Conv_0"])
    return image


def upsampled(logits, shape):
    """Bilinear, by SciPy: pixel centres at (i + 1/2) / scale - 1/2, edges repeated."""
    places = [
        (np.arange(n) + 0.5) * m / n - 0.5
        for n, m in zip(shape, logits.shape[:2], strict=True)
    ]
    grid = np.meshgrid(*places, indexing="ij")
    return np.stack(
        [
            scipy.ndimage.map_coordinates(logits[..., k], grid, order=1, mode="nearest")
            for k in range(logits.shape[-1])
        ],
        axis=-1,
    )


@nightly
@in_float64
def test_the_segmenter_is_stem_equilibrium_head_and_interpolation():
    model = segmenter(
        param_dtype=jnp.float64, tol=1e-12, max_steps=500, on_failure="error"
    )
    x = normal(1, 2, 9, 11, 2)
    params = start(model, x, size=0.5, scale=0.3)

    @jax.jit
    def run(params, x, alone):
        return model.apply(params, x, mutable="intermediates"), model.apply(
            params, alone
        )[0]

    ((logits, info), kept), single = run(params, x, np.asarray(x)[0, 1])
    assert (logits.shape, info.converged.shape) == ((1, 2, 9, 11, 3), (1, 2))
    assert_allclose(single, np.asarray(logits)[0, 1], atol=1e-9)
    weights = jax.tree.map(np.asarray, params["params"])
    head = weights["head"]["Dense_0"]
    for place in np.ndindex(1, 2):
        features = behind_stem(np.asarray(x)[place], weights)
        assert features.shape == (3, 3, 5)
        z = np.asarray(kept["intermediates"]["equilibrium"][0])[place]
        moved = z.ravel()
        for layer in (weights["layer_1"], weights["layer_2"]):
            W, U = (reference.conv_matrix(layer[name], (3, 3)) for name in "WU")
            moved = reference.step(
                moved, W, U, np.tile(layer["b"], 9), features.ravel()
            )
        assert_allclose(z.ravel(), moved, atol=1e-9)
        expected = upsampled(z @ head["kernel"] + head["bias"], (9, 11))
        assert_allclose(np.asarray(logits)[place], expected, atol=1e-8)


@in_float64
def test_the_fully_convolutional_network_chains_its_layers():
    model = FullyConvolutionalNetwork(**SMALL, param_dtype=jnp.float64)
    x = normal(2, 8, 6, 2)
    params = drawn(model, x)
    logits, info = jax.jit(model.apply)(params, x)
    assert (logits.shape, info) == ((2, 8, 6, 3), None)
    weights = jax.tree.map(np.asarray, params["params"])
    hidden = behind_stem(np.asarray(x)[1], weights)
    for name in ("layer_1", "layer_2"):
        layer = weights[name]["Conv_0"]
        moved = reference.conv_matrix(layer["kernel"], (2, 2)) @ hidden.ravel()
        hidden = np.maximum(moved.reshape(2, 2, -1) + layer["bias"], 0.0)
    head = weights["head"]["Dense_0"]
    expected = upsampled(hidden @ head["kernel"] + head["bias"], (8, 6))
    assert_allclose(np.asarray(logits)[1], expected, atol=1e-12)


@in_float64
def test_a_classifier_behind_a_stem_sees_features_of_the_stem():
    network = FeedForwardNetwork(3, widths=(4,), param_dtype=jnp.float64)
    model = BehindStem(network, (3, 5), jnp.float64)
    x = normal(2, 9, 11, 2)
    params = drawn(model, x)
    weights = jax.tree.map(np.asarray, params["params"])
    features = behind_stem(np.asarray(x)[0], weights)
    (inside,) = [weights[name] for name in weights if name != "stem"]

    @compiled
    def run(params, features):
        return (
            model.apply(params, x),
            network.apply({"params": inside}, features),
        )

    (logits, info), (expected, _) = run(params, features[None])
    assert (logits.shape, info) == ((2, 3), None)
    assert_allclose(np.asarray(logits)[:1], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("wide", "shape"),
    [
        (FeedForwardNetwork(3, convolutional=False, widths=(8,)), (2, 4)),
        pytest.param(segmenter(), (1, 8, 8, 2), marks=nightly),
    ],
)
def test_bfloat16_states_keep_float32_parameters_and_logits(wide, shape):
    narrow = wide.clone(dtype=jnp.bfloat16)
    x = normal(*shape, dtype=jnp.float32)
    params = compiled(narrow.init)(jax.random.key(0), x)

    @jax.jit
    def run(params):
        return (
            narrow.apply(params, x, mutable="intermediates"),
            wide.apply(params, x),
        )

    ((logits, info), kept), (expected, _) = run(params)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, logits))} == {
        jnp.dtype(jnp.float32)
    }
    assert 0.0 < relative_error(logits, expected) < 0.02
    assert info is None or np.all(info.converged)
    assert info is None or kept["intermediates"]["equilibrium"][0].dtype == jnp.bfloat16
