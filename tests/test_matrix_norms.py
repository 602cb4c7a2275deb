"""Derivatives of the bound of matrices' norms."""

import functools

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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("squarings", [2, 5])
def test_where_singular_values_are_near_each_other_the_derivative_is_the_one_that_is_stated(squarings):
    rng, sigma = np.random.default_rng(5), np.array([1.0, 0.99, 0.95, 0.6])
    left, right = (np.linalg.qr(rng.normal(size=(size, 4)))[0] for size in (6, 4))
    A = 3.0 * (left * sigma) @ right.T
    bound = functools.partial(certificates.matrix_norm_bound, num_squarings=squarings)
    value, slope = jax.jit(jax.value_and_grad(bound))(A)
    order, ours = 2 ** (squarings + 2), 2 ** (squarings + 1) + 2
    schatten = 3.0 * np.sum(sigma**order) ** (1 / order)
    np.testing.assert_allclose(value, schatten, rtol=1e-12)
    expected, exact = (schatten / 3.0 * (left * (sigma ** (q - 1) / np.sum(sigma**q))) @ right.T for q in (ours, order))
    np.testing.assert_allclose(slope, expected, rtol=1e-10, atol=1e-13)
    assert np.max(np.abs(expected - exact)) > 0.01, "the two would be told apart"
    np.testing.assert_allclose(np.sum(slope * A), schatten, rtol=1e-12)
