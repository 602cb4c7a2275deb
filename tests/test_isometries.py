"""Isometric parts against their matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies.comparing import assert_derivative
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax import certificates

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
IMAGE = (4, 6, 3)
MAPS = {
    "space to depth": lambda z: certificates.space_to_depth(z, 2),
    "pooling": lambda z: certificates.pool(z, 2),
    "zero channels": lambda z: certificates.pad_channels(z, 5),
}


def test_parts_are_linear_maps_with_orthonormal_rows_or_columns():
    images = gaussian(2, 3, *IMAGE)

    @compiled
    def run(images):
        one = images[0, 0]
        return {
            name: (part(images), jax.jacobian(part)(one)) for name, part in MAPS.items()
        }

    for name, (moved, jacobian) in run(images).items():
        matrix = jacobian.reshape(-1, np.prod(IMAGE))
        assert (len(matrix) < len(matrix.T)) == (name == "pooling")
        assert_allclose(np.linalg.svd(matrix)[1], 1.0, atol=1e-14, err_msg=name)
        assert moved.shape[:2] == (2, 3)
        expected = images.reshape(6, -1) @ matrix.T
        assert_allclose(moved.reshape(6, -1), expected, atol=1e-13, err_msg=name)


def test_blocks_become_channels_row_by_row():
    images = np.arange(4 * 6 * 3.0).reshape(IMAGE)
    moved, pooled = compiled(
        lambda z: (certificates.space_to_depth(z, 2), certificates.pool(z, 2))
    )(images)
    assert_array_equal(moved[1, 2], images[2:4, 4:6].reshape(-1))
    assert_allclose(pooled[1, 2], images[2:4, 4:6].mean((0, 1)) * 2)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_orthonormal_matrices_span_what_the_weights_span_and_differentiate(shape):
    weight = gaussian(*shape, seed=1)
    Q = compiled(certificates.orthonormal)(weight)
    assert_allclose(np.linalg.svd(Q)[1], 1.0, atol=1e-13)
    assert_allclose(Q @ Q.T @ weight @ Q.T @ Q, weight, atol=1e-12)
    total = lambda weight: jnp.sum(jnp.sin(certificates.orthonormal(weight)))
    assert_derivative(total, weight, rtol=1e-6)
    narrow = jax.ShapeDtypeStruct((6, 4), jnp.bfloat16)
    assert jax.eval_shape(certificates.orthonormal, narrow).dtype == jnp.bfloat16


def test_unit_columns_keep_directions_and_zeros():
    weight = gaussian(5, 4, seed=3) * np.logspace(-20, 20, 4)
    weight[:, 1] = 0.0

    @compiled
    def run(W):
        total = lambda W: jnp.sum(certificates.unit_columns(W))
        return certificates.unit_columns(W), jax.grad(total)(W)

    unit, slope = run(weight)
    sizes = np.linalg.norm(weight, axis=0)
    assert_allclose(unit * sizes, weight, rtol=1e-13)
    assert_allclose(np.linalg.norm(unit, axis=0), [1.0, 0.0, 1.0, 1.0], rtol=1e-13)
    assert np.all(np.isfinite(slope))
