"""Networks to compare with: the Neural ODE against SciPy's integrator, the plain
network against NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from numpy.testing import assert_allclose

from tests.energies.comparing import assert_derivative
from tests.energies.opteq_reference import conv_matrix
from tests.marks import in_float64, nightly
from tests.models.deep_opteq_by_hand import logits_by_hand
from tests.models.drawing import drawn, float64, normal
from tests.reference import compiled, jax_array
from unroll_jax.models import FeedForwardNetwork, NeuralODE


def field_matrices(weights, image):
    for name in ("layer_1", "layer_2"):
        layer = weights["field"][name]
        if image is None:
            yield layer["W"], layer["b"]
        else:
            yield conv_matrix(layer["W"], image), np.tile(layer["b"], math.prod(image))


ODE = {"activation": "tanh", "param_dtype": jnp.float64}


@nightly
@in_float64
@pytest.mark.parametrize(("image", "augment"), [(None, 0), ((3, 4), 2)])
def test_the_neural_ode_ends_where_scipy_says(image, augment):
    model = NeuralODE(
        3,
        convolutional=image is not None,
        widths=(5,),
        augment=augment,
        tol=1e-9,
        **ODE,
    )
    x = normal(2, *(image or ()), 2)
    params = drawn(model, x, scale=0.4)
    (logits, info), kept = compiled(
        lambda params: model.apply(params, x, mutable="intermediates")
    )(params)
    assert info is None
    (W1, b1), (W2, b2) = field_matrices(float64(params["params"]), image)
    channels = 2 + augment

    def slope(t, h):
        seen = np.concatenate(
            [h.reshape(-1, channels), np.full((h.size // channels, 1), t)], axis=1
        )
        return W2 @ np.tanh(W1 @ seen.ravel() + b1) + b2

    for row in range(2):
        start = np.pad(np.asarray(x)[row], [(0, 0)] * (x.ndim - 2) + [(0, augment)])
        solved = scipy.integrate.solve_ivp(
            slope, (0.0, 1.0), start.ravel(), rtol=1e-10, atol=1e-12
        )
        end = solved.y[:, -1].reshape(start.shape)
        assert np.linalg.norm(end - start) > 0.1
        assert_allclose(kept["intermediates"]["end"][0][row], end, atol=1e-7)
        assert_allclose(logits[row], logits_by_hand(params, end), atol=1e-7)


@nightly
@in_float64
def test_gradients_through_the_ode_are_those_of_finite_differences():
    model = NeuralODE(
        2, convolutional=False, widths=(4,), features=3, augment=1, tol=1e-10, **ODE
    )
    x = normal(3, 2)
    loss = lambda params: jnp.sum(model.apply(params, x)[0] ** 2)
    assert_derivative(loss, drawn(model, x, scale=0.4), rtol=1e-5)


def test_more_steps_than_allowed_are_an_error():
    model = NeuralODE(2, convolutional=False, tol=1e-6, max_steps=1)
    x = jax_array(np.ones((1, 3), np.float32))
    with pytest.raises(RuntimeError, match="maximum number of solver steps"):
        jax.block_until_ready(compiled(model.apply)(drawn(model, x, scale=3.0), x))


@in_float64
@pytest.mark.parametrize("image", [None, (3, 4)], ids=["vectors", "images"])
def test_the_plain_network_is_its_layers_one_after_the_other(image):
    model = FeedForwardNetwork(
        3,
        convolutional=image is not None,
        widths=(4, 5),
        features=3,
        activation="tanh",
        param_dtype=jnp.float64,
    )
    batches = ((), (2, 2))
    xs = [normal(*batch, *(image or ()), 2) for batch in batches]
    params = drawn(model, xs[0])
    weights = float64(params["params"])
    outputs = compiled(lambda params: [model.apply(params, x) for x in xs])(params)

    def by_hand(z):
        for name in ("features", "layer_1", "layer_2"):
            layer = next(iter(weights[name].values()))
            if image is None:
                z = np.tanh(z @ layer["kernel"] + layer["bias"])
            else:
                taps = conv_matrix(layer["kernel"], image) @ z.ravel()
                z = np.tanh(taps.reshape(*image, len(layer["bias"])) + layer["bias"])
        return logits_by_hand(params, z)

    for batch, x, (logits, info) in zip(batches, xs, outputs, strict=True):
        assert (logits.shape, info) == ((*batch, 3), None)
        for place in np.ndindex(*batch):
            expected = by_hand(np.asarray(x)[place])
            assert_allclose(
                np.asarray(logits)[place], expected, atol=1e-12, err_msg=str(batch)
            )
