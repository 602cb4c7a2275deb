"""Initialisers of the models."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
from numpy.testing import assert_allclose, assert_array_equal

from tests.marks import in_float64
from unroll_jax.models import dct, scaled_identity

KEY = jax.random.key(0)


def cosine_basis(size):
    return scipy.fft.dct(np.eye(size), axis=0, norm="ortho")


@in_float64
def test_dct_is_the_cosine_transform():
    for size in (1, 3):
        assert_allclose(
            dct(0.3)(KEY, (size, size), jnp.float64),
            0.3 * cosine_basis(size),
            atol=1e-14,
        )


@in_float64
def test_dct_of_square_images_is_two_dimensional():
    basis = np.asarray(dct()(KEY, (16, 16), jnp.float64))
    rows = {
        tuple(row) for row in np.kron(cosine_basis(4), cosine_basis(4)).round(12) + 0.0
    }
    assert {tuple(row) for row in basis.round(12) + 0.0} == rows
    # the mean comes first
    assert_allclose(basis[0], np.full(16, 0.25), atol=1e-14)
    assert_array_equal(
        dct()(KEY, (3, 4, 16), jnp.float64), np.tile(basis[:4], (3, 1, 1))
    )


def test_scaled_identity_is_repeated_over_a_stack():
    stack = scaled_identity(0.9)(KEY, (3, 4, 4), jnp.bfloat16)
    assert stack.dtype == jnp.bfloat16
    expected = np.broadcast_to(float(jnp.bfloat16(0.9)) * np.eye(4), (3, 4, 4))
    assert_array_equal(np.asarray(stack, np.float64), expected)
