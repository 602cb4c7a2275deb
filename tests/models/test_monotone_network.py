"""The monotone operator network: its equilibrium in NumPy. Gradients are in
tests/fixed_point/test_splitting.py."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from tests.energies.opteq_reference import conv_matrix
from tests.marks import in_float64
from tests.models.drawing import drawn, normal
from tests.reference import compiled
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point.monotone import monotone_product
from unroll_jax.models import MonotoneOperatorNetwork

EXACT = {
    "param_dtype": jnp.float64,
    "tol": 1e-12,
    "max_steps": 5000,
    "on_failure": "error",
}


def start(model, x):
    params = drawn(model, x)
    for name in ("A_scale", "B_scale"):
        params["params"]["operator"][name] = jnp.asarray(1.0, model.param_dtype)
    return params


@in_float64
def test_vectors_are_classified_by_the_equilibrium_that_numpy_iterates_to():
    model = MonotoneOperatorNetwork(
        3, convolutional=False, channels=5, margin=0.6, **EXACT
    )
    batches = ((), (2, 2))
    xs = [normal(*batch, 4) for batch in batches]
    params = start(model, xs[0])
    outputs = jax.jit(
        lambda params: [model.apply(params, x, mutable="intermediates") for x in xs]
    )(params)
    weights = jax.tree.map(np.asarray, params["params"])
    A, B = (
        weights["operator"][name] / np.linalg.norm(weights["operator"][name])
        for name in "AB"
    )
    W = 0.4 * np.eye(5) - A.T @ A + B - B.T
    head = weights["head"]["Dense_0"]
    for batch, x, ((logits, info), kept) in zip(batches, xs, outputs, strict=True):
        assert (logits.shape, info.converged.shape) == ((*batch, 3), batch)
        z = np.zeros((*batch, 5))
        drive = np.asarray(x) @ weights["input"]["kernel"] + weights["input"]["bias"]
        for _ in range(2000):  # forward-backward with a step far below 2 m / |I - W|^2
            z = np.maximum(z + 0.1 * (z @ W.T + drive - z), 0.0)
        assert_allclose(
            kept["intermediates"]["equilibrium"][0], z, atol=1e-9, err_msg=str(batch)
        )
        assert_allclose(
            logits, z @ head["kernel"] + head["bias"], atol=1e-9, err_msg=str(batch)
        )


@in_float64
def test_images_are_padded_and_pooled_by_windows_around_their_equilibrium():
    model = MonotoneOperatorNetwork(3, channels=2, pool=3, **EXACT)
    x = normal(2, 4, 6, 1)
    params = start(model, x)

    @compiled
    def run(params):
        (logits, _), kept = model.apply(params, x, mutable="intermediates")
        z = kept["intermediates"]["equilibrium"][0]
        W = fp.monotone_weight(
            fp.MonotoneParams(**params["params"]["operator"]), image_shape=(6, 8)
        )
        return logits, z, monotone_product(W, z)

    logits, z, product = (np.asarray(leaf) for leaf in run(params))
    assert z.shape == (2, 6, 8, 2)
    weights = jax.tree.map(np.asarray, params["params"])
    # The equilibrium's equation, with U x + b as a convolution of the padded image.
    padded = np.pad(np.asarray(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = conv_matrix(weights["input"]["kernel"], (6, 8))
    drive = (padded.reshape(2, -1) @ taps.T).reshape(z.shape)
    assert_allclose(
        z, np.maximum(product + drive + weights["input"]["bias"], 0.0), atol=1e-9
    )
    # two columns have no window
    pooled = z[:, :6, :6].reshape(2, 2, 3, 2, 3, 2).mean((2, 4)).reshape(2, -1)
    head = weights["head"]["Dense_0"]
    assert_allclose(logits, pooled @ head["kernel"] + head["bias"], atol=1e-12)
