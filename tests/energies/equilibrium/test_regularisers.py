"""Regularisers of equilibria and the layer each appends."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.energies.dust_reference import soft
from tests.energies.opteq_layers import convolutional, dense
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_objective import (
    deep_opteq_objective,
    opteq_objective,
)
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams
from unroll_jax.energies.equilibrium.regularisers import (
    REGULARISERS,
    absolute,
    decorrelation,
    half_square,
    inverse_square,
    regularised,
)

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


def correlations(Z):
    """|D Z Z^T D - I|_F^2 / 2 written out, Z with a row per feature."""
    D = np.diag(1.0 / np.linalg.norm(Z, axis=1))
    return 0.5 * np.linalg.norm(D @ Z @ Z.T @ D - np.eye(len(Z))) ** 2


VALUES = {
    "half_square": (half_square(0.7), lambda z: 0.35 * np.sum(z**2)),
    "absolute": (absolute(0.7), lambda z: 0.7 * np.sum(np.abs(z))),
    "inverse_square": (
        inverse_square(0.7, epsilon=0.5),
        lambda z: 0.7 / (np.sum(z**2) + 0.5),
    ),
    "decorrelation": (decorrelation(0.7), lambda z: 0.7 * correlations(z.T)),
}


def test_every_regulariser_is_tested():
    assert VALUES.keys() == REGULARISERS.keys()


@pytest.mark.parametrize("name", VALUES)
def test_values_equal_their_definitions_and_smoothness_bounds_the_curvature(name):
    regulariser, expected = VALUES[name]
    rng = np.random.default_rng(0)
    lowest = np.inf

    @compiled
    def measure(z):
        value, slope = jax.value_and_grad(regulariser.value)(z)
        of_flat = lambda flat: regulariser.value(flat.reshape(z.shape))
        return value, slope, jax.hessian(of_flat)(z.ravel())

    for size in (0.0, 0.1, 1.0, 3.0):
        z = size * rng.normal(size=(6, 4)) + (
            1e-9 if name == "decorrelation" and size == 0.0 else 0.0
        )
        value, _, curvature = measure(z)
        assert_allclose(value, expected(z), rtol=1e-12)
        spectrum = np.linalg.eigvalsh(curvature)
        lowest = min(lowest, spectrum[0])
        if regulariser.smoothness is not None:
            assert np.max(np.abs(spectrum)) <= regulariser.smoothness * (1.0 + 1e-12)
            if size == 0.0:
                assert np.max(np.abs(spectrum)) == pytest.approx(regulariser.smoothness)
    assert (lowest >= -1e-12) == regulariser.convex
    if name == "decorrelation":  # features that are 0 in the whole batch do no harm
        z[:, 2] = 0.0
        value, slope, _ = measure(z)
        assert_allclose(value, expected(z[:, [0, 1, 3]]), rtol=1e-12)
        assert np.all(np.isfinite(slope))


# The layer that each appends at step size s, in NumPy: rows of z are examples.
APPENDED = {
    ("half_square", "prox"): lambda z, s: z / (1.0 + 0.7 * s),
    ("absolute", "prox"): lambda z, s: soft(z, 0.7 * s),
    ("half_square", "gradient"): lambda z, s: z - 0.7 * s * z,
    ("inverse_square", "gradient"): lambda z, s: (
        z + 1.4 * s * z / (np.sum(z**2, axis=-1, keepdims=True) + 0.5) ** 2
    ),
}


@pytest.mark.parametrize(
    ("draw", "batch", "size"), [(dense, (), 0.4), (convolutional, (2, 3), 2.0)]
)
def test_an_appended_layer_is_a_prox_or_gradient_step(draw, batch, size):
    layer, params, z, x = draw(batch)
    coupled = regularised(layer, decorrelation(), step_size=0.4, form="gradient")

    @compiled
    def run(params, z, x):
        plain = layer.step(params, z, x)
        stepped = {}
        for name, form in APPENDED:
            wrapped = regularised(layer, VALUES[name][0], step_size=size, form=form)
            stepped[name, form] = wrapped.step(params, z, x)
        slope = jax.grad(
            lambda z: decorrelation().value(z.reshape(int(np.prod(batch)), -1))
        )(plain)
        return plain, stepped, (coupled.step(params, z, x), plain - 0.4 * slope)

    plain, stepped, of_coupled = run(params, z, x)
    rows = plain.reshape(*batch, -1)
    for name, actual in stepped.items():
        expected = APPENDED[name](rows, size).reshape(z.shape)
        assert_allclose(actual, expected, rtol=1e-12, atol=1e-15, err_msg=str(name))
    assert_allclose(*of_coupled, rtol=1e-12, atol=1e-15)
    assert jax.eval_shape(coupled.energy, params, z, x).shape == batch


def test_a_regularised_step_raises_only_nonconvex_residuals():
    layer, params, z, x = dense((100,))
    convex = [
        regularised(layer, half_square(), step_size=1.9, form=form)
        for form in ("prox", "gradient")
    ]
    other = regularised(
        opteq(4, 4, activation="identity"),
        inverse_square(epsilon=0.1),
        step_size=1.0,
        form="gradient",
    )
    of_other = OptEqParams(np.eye(4), None, np.zeros(4)), np.full(4, 1e-3), None

    @compiled
    def energies(*points):
        layers = zip((*convex, other), points, strict=True)
        return [
            (
                layer.energy(params, z, x),
                layer.energy(params, layer.step(params, z, x), x),
            )
            for layer, (params, z, x) in layers
        ]

    *of_convex, (before, after) = energies((params, z, x), (params, z, x), of_other)
    assert float(after) > float(before)
    for before, after in of_convex:
        assert before.shape == (100,)
        assert np.all(after <= before)
        assert np.mean(after < before) > 0.9


def test_the_objective_of_a_convolution_is_that_of_its_matrix():
    """Images of one pixel: a convolution is then a matrix, its kernel's middle."""
    rng = np.random.default_rng(4)
    params = OptEqParams(0.1 * rng.normal(size=(3, 3, 2, 3)), None, np.zeros(3))
    z = rng.normal(size=(5, 1, 1, 2))

    @compiled
    def objectives(params, z):
        as_matrix = params._replace(W=params.W[1, 1].T)
        images = opteq_objective(params, z, skip=0.5)
        pixels = opteq_objective(as_matrix, z[:, 0, 0], skip=0.5)
        return images, pixels, deep_opteq_objective((params, params), (z, z), skip=0.5)

    images, pixels, deep = objectives(params, z)
    assert_allclose(images, pixels, rtol=1e-12)
    assert_allclose(deep, 2.0 * images, rtol=1e-12)
    assert jax.eval_shape(
        deep_opteq([opteq_conv(2, 3)]).energy, (params,), z
    ).shape == (5,)
