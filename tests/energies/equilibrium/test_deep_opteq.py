"""Deep OptEq: its steps, its energy, and the properties of a single layer."""

import collections

import chex
import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.energies.opteq_layers import H, I, M, convolutional, dense
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian_like
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
DEEP = {
    "dense": lambda: [
        opteq(M, H),
        opteq(M, M, I, skip=0.6),
        opteq(M, 3, I, activation="tanh"),
    ],
    "conv": lambda: [opteq_conv(2, 3), opteq_conv(2, 5, 3, kernel_size=1, skip=0.6)],
}


@pytest.mark.parametrize(
    ("kind", "batch"),
    [("dense", (2, 3)), pytest.param("conv", (3,), marks=nightly)],
)
def test_a_deep_step_applies_every_layer(kind, batch):
    layers = DEEP[kind]()
    layer = deep_opteq(layers)
    _, _, z, x = {"dense": dense, "conv": convolutional}[kind](batch)

    shapes = jax.eval_shape(layer.init, jax.random.key(0))
    params = gaussian_like(shapes, scale=0.3, seed=6)

    @compiled
    def measure(params, z, x):
        expected = z
        for one, layer_params in zip(layers, params, strict=True):
            expected = one.step(layer_params, expected, x)
        return expected, layer.step(params, z, x), layer.energy(params, z, x)

    expected, stepped, energy = measure(params, z, x)
    assert_allclose(stepped, expected, rtol=1e-12, atol=1e-12)
    assert energy.shape == batch
    event = tuple(range(len(batch), z.ndim))
    assert_allclose(
        energy, 0.5 * np.sum((expected - np.asarray(z)) ** 2, axis=event), rtol=1e-12
    )


@pytest.mark.parametrize("make", [dense, convolutional])
def test_a_deep_opteq_of_one_layer_is_that_layer(make):
    """It is as symmetric as the layer, and several layers are not."""
    layer, params, z, x = make((3,))
    deep = deep_opteq(collections.deque([layer]))  # any sequence

    @compiled
    def both(params, z, x):
        alone = layer.step(params, z, x), layer.energy(params, z, x)
        factored = deep.factored and deep.factored((params,), x).matrix
        return (
            (deep.step((params,), z, x), deep.energy((params,), z, x)),
            alone,
            factored,
        )

    *pair, matrix = both(params, z, x)
    chex.assert_trees_all_equal(*pair)
    assert matrix is None or np.array_equal(matrix, params.W)
    assert (
        (layer.factored is None) == (deep.factored is None) == (make is convolutional)
    )
    assert deep.symmetric
    assert not deep_opteq([layer._replace(symmetric=False)]).symmetric
    assert not deep_opteq([opteq(2, 3), opteq(2, 3)]).symmetric
