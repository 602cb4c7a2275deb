"""Networks to compare with: the Neural ODE against SciPy's integrator, the plain network against NumPy."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from tests.energies.opteq_reference import conv_matrix
from tests.fixed_point.problems import relative_error
from unroll_jax.models import DeepOptEq, FeedForwardNetwork, NeuralODE
from unroll_jax.models.neural_ode import integrate


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def head_of(own, z):
    return z @ own["head"]["Dense_0"]["kernel"] + own["head"]["Dense_0"]["bias"]


def moved(params, key):
    """Away from biases of 0."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [leaf + 0.3 * jax.random.normal(own, leaf.shape) for leaf, own in zip(leaves, keys, strict=True)]
    )


def field_matrices(own, image):
    """The layers of the vector field as matrices on flattened states, time a channel of the first, and their biases."""
    layers = [own["field"][f"layer_{place}"] for place in range(1, len(own["field"]) + 1)]
    if image is None:
        return [(layer["W"], layer["b"]) for layer in layers]
    pixels = image[0] * image[1]
    return [(conv_matrix(layer["W"], image), np.tile(layer["b"], pixels)) for layer in layers]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("augment", [0, 2])
@pytest.mark.parametrize("image", [None, (3, 4)], ids=["vectors", "images"])
def test_the_neural_ode_ends_where_scipy_says(image, augment, getkey):
    model = NeuralODE(
        3,
        convolutional=image is not None,
        widths=(5,),
        augment=augment,
        activation="tanh",
        tol=1e-9,
        param_dtype=jnp.float64,
    )
    x = jax.random.normal(getkey(), (2, *(image or ()), 2))
    params = moved(jax.jit(model.init)(getkey(), x), getkey())
    (logits, info), kept = jax.jit(lambda params: model.apply(params, x, mutable="intermediates"))(params)
    assert info is None
    own = float64(params["params"])
    (W1, b1), (W2, b2) = field_matrices(own, image)
    channels = 2 + augment

    def slope(t, h):
        seen = np.concatenate([h.reshape(-1, channels), np.full((h.size // channels, 1), t)], axis=1)
        return W2 @ np.tanh(W1 @ seen.ravel() + b1) + b2

    for row in range(2):
        start = np.pad(np.asarray(x[row]), [(0, 0)] * (x.ndim - 2) + [(0, augment)])
        solved = scipy.integrate.solve_ivp(slope, (0.0, 1.0), start.ravel(), rtol=1e-10, atol=1e-12)
        end = solved.y[:, -1].reshape(start.shape)
        assert np.linalg.norm(end - start) > 0.1
        np.testing.assert_allclose(kept["intermediates"]["end"][0][row], end, atol=1e-7)
        np.testing.assert_allclose(logits[row], head_of(own, end.mean((0, 1)) if image else end), atol=1e-7)


def test_a_trajectory_that_one_step_finds_takes_one(getkey):
    calls = []

    def field(t, h, slope):
        jax.debug.callback(lambda _: calls.append(None), t)
        return slope

    start, slope = jax.random.normal(getkey(), (2, 2, 5))
    end = jax.jit(lambda start: integrate(field, start, slope, tol=1e-3, max_steps=10))(start)
    jax.effects_barrier()
    np.testing.assert_allclose(end, start + slope, rtol=1e-6)
    assert len(calls) <= 8  # Tsit5 has 7 stages; before the first step diffrax evaluates once


@pytest.mark.usefixtures("x64")
def test_gradients_through_the_ode_are_those_of_finite_differences(getkey):
    model = NeuralODE(
        2,
        convolutional=False,
        widths=(4,),
        features=3,
        augment=1,
        activation="tanh",
        tol=1e-10,
        param_dtype=jnp.float64,
    )
    x = jax.random.normal(getkey(), (3, 2))
    params = moved(jax.jit(model.init)(getkey(), x), getkey())
    direction = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(1.0, leaf.size + 1)).reshape(leaf.shape), params)
    loss = jax.jit(lambda params: jnp.sum(model.apply(params, x)[0] ** 2))
    slope = sum(
        jnp.vdot(a, b)
        for a, b in zip(jax.tree.leaves(jax.jit(jax.grad(loss))(params)), jax.tree.leaves(direction), strict=True)
    )
    ends = [loss(jax.tree.map(lambda p, d, sign=sign: p + sign * 1e-5 * d, params, direction)) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_more_steps_than_allowed_are_an_error(getkey):
    model, x = NeuralODE(2, convolutional=False, tol=1e-6, max_steps=1), jnp.ones((1, 3))
    params = jax.tree.map(lambda leaf: 5.0 * leaf, model.init(getkey(), x))
    with pytest.raises(RuntimeError, match="maximum number of solver steps"):
        jax.block_until_ready(model.apply(params, x))


def test_without_diffrax_the_neural_ode_says_what_to_install(getkey, monkeypatch):
    model, x = NeuralODE(2, convolutional=False), jnp.ones((1, 3))
    params = model.init(getkey(), x)
    monkeypatch.setitem(sys.modules, "diffrax", None)
    with pytest.raises(ImportError, match=r"NeuralODE needs diffrax.*pip install 'unroll_jax\[train\]'"):
        model.apply(params, x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("image", [None, (3, 4)], ids=["vectors", "images"])
def test_the_plain_network_is_its_layers_one_after_the_other(image, batch, getkey):
    model = FeedForwardNetwork(
        3, convolutional=image is not None, widths=(4, 5), features=3, activation="tanh", param_dtype=jnp.float64
    )
    x = jax.random.normal(getkey(), (*batch, *(image or ()), 2))
    params = moved(jax.jit(model.init)(getkey(), x), getkey())
    logits, info = jax.jit(model.apply)(params, x)
    assert (logits.shape, info) == ((*batch, 3), None)
    own = float64(params["params"])
    for place in np.ndindex(*batch):
        z = np.asarray(x[place])
        for name in ("features", "layer_1", "layer_2"):
            layer = next(iter(own[name].values()))
            channels = len(layer["bias"])
            if image is None:
                z = np.tanh(z @ layer["kernel"] + layer["bias"])
            else:
                z = np.tanh((conv_matrix(layer["kernel"], image) @ z.ravel()).reshape(*image, channels) + layer["bias"])
        np.testing.assert_allclose(logits[place], head_of(own, z.mean((0, 1)) if image else z), atol=1e-12)


def test_bfloat16_layers_keep_float32_parameters_and_logits(getkey):
    x = jax.random.normal(getkey(), (2, 4))
    narrow, wide = (
        FeedForwardNetwork(3, convolutional=False, widths=(8,), dtype=dtype) for dtype in (jnp.bfloat16, None)
    )
    params = narrow.init(getkey(), x)
    logits = narrow.apply(params, x)[0]
    assert {leaf.dtype for leaf in jax.tree.leaves((params, logits))} == {jnp.dtype("float32")}
    assert 0.0 < relative_error(logits, wide.apply(params, x)[0]) < 0.02


def test_features_and_head_are_those_of_deep_opteq(getkey):
    x = jnp.ones((1, 4, 4, 1))
    options = {"num_classes": 3, "features": 5}
    plain, deep = FeedForwardNetwork(widths=(6,), **options), DeepOptEq(channels=6, widths=(4,), **options)
    shapes = [jax.tree.map(jnp.shape, jax.eval_shape(model.init, getkey(), x))["params"] for model in (plain, deep)]
    for part in ("features", "head"):
        assert shapes[0][part] == shapes[1][part]


PLAIN = {"num_classes": 3, "convolutional": False}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (FeedForwardNetwork(**{**PLAIN, "num_classes": 0}), jnp.ones((2, 4)), ValueError, "num_classes must be at"),
        (FeedForwardNetwork(**PLAIN, widths=(0,)), jnp.ones((2, 4)), ValueError, r"widths must be .*got \(0,\)"),
        (FeedForwardNetwork(**PLAIN, features=-1), jnp.ones((2, 4)), ValueError, "features must be at least 1"),
        (FeedForwardNetwork(**PLAIN, activation="gelu"), jnp.ones((2, 4)), ValueError, "activation must be one of"),
        (FeedForwardNetwork(3), jnp.ones((2, 4)), ValueError, r"x must be \(\*batch, height, width, channels\)"),
        (FeedForwardNetwork(**PLAIN), jnp.ones((2, 4), bool), TypeError, "x must have a floating dtype, got bool"),
        (NeuralODE(**PLAIN, augment=-1), jnp.ones((2, 4)), ValueError, "augment must be at least 0"),
        (NeuralODE(**PLAIN, tol=0.0), jnp.ones((2, 4)), ValueError, "tol must be in"),
        (NeuralODE(**PLAIN, max_steps=0), jnp.ones((2, 4)), ValueError, "max_steps must be at least 1"),
        (NeuralODE(**PLAIN), jnp.ones(()), ValueError, r"x must be \(\*batch, features\)"),
        (NeuralODE(**PLAIN), jnp.ones((2, 4), jnp.int8), TypeError, "x must have a floating dtype, got int8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_argument_is_named(model, x, error, message):
    with pytest.raises(error, match=message):
        jax.eval_shape(model.init, jax.random.key(0), x)
