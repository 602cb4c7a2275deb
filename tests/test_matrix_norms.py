"""Derivatives of the bound of matrices' norms."""

import jax
import numpy as np
import pytest

from unroll_jax import certificates


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=str)
def test_derivatives_of_the_bound_are_those_of_the_norm_of_complex_matrices_and_of_second_order(shape):
    rng = np.random.default_rng(3)
    A, along, across = (rng.normal(size=shape) + 1j * rng.normal(size=shape) for _ in range(3))
    norm = lambda s, t: np.linalg.norm(A + s * along + t * across, 2)  # noqa: E731
    bound = lambda s, t: certificates.matrix_norm_bound(A + s * along + t * across)  # noqa: E731
    first, mixed = jax.jit(lambda: (jax.grad(bound)(0.0, 0.0), jax.jacfwd(jax.grad(bound), 1)(0.0, 0.0)))()
    h = 1e-4
    np.testing.assert_allclose(first, (norm(h, 0) - norm(-h, 0)) / (2 * h), rtol=1e-6)
    expected = (norm(h, h) - norm(h, -h) - norm(-h, h) + norm(-h, -h)) / (4 * h * h)
    np.testing.assert_allclose(mixed, expected, rtol=1e-4)


@pytest.mark.usefixtures("x64")
def test_the_bound_of_an_orthonormal_matrix_has_a_derivative_that_prefers_no_direction():
    Q = np.linalg.qr(np.random.default_rng(4).normal(size=(5, 5)))[0]
    value, slope = jax.jit(jax.value_and_grad(certificates.matrix_norm_bound))(Q)
    np.testing.assert_allclose(slope, float(value) * Q / 5.0, atol=1e-12)
