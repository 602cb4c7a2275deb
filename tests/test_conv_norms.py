"""The certified norm of a convolution: its range, and its gradient, which is that of the largest frequency alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax import certificates

IMAGE = (5, 4)


@pytest.mark.usefixtures("x64")
def test_the_gradient_of_a_convolution_s_bound_is_that_of_its_largest_frequency():
    """Against differences of the largest singular value of the symbol, in float64 NumPy."""
    rng = np.random.default_rng(3)
    kernel, direction = rng.normal(size=(2, 3, 3, 4, 5))

    def largest(kernel):
        symbol = np.fft.fft2(kernel, s=(IMAGE[0] + 2, IMAGE[1] + 2), axes=(0, 1))
        return np.linalg.svd(symbol, compute_uv=False).max()

    gradient = jax.jit(jax.grad(lambda W: certificates.weight_norm_bound(W, IMAGE)))(jnp.asarray(kernel))
    slope = (largest(kernel + 1e-6 * direction) - largest(kernel - 1e-6 * direction)) / 2e-6
    assert np.vdot(gradient, direction) == pytest.approx(slope, rel=5e-3)


@pytest.mark.parametrize("exponent", [-30, -15, 0, 15, 30])
def test_bounds_hold_for_weights_whose_squares_leave_the_range_of_float32(exponent):
    rng = np.random.default_rng(4)
    kernel = rng.normal(size=(3, 3, 4, 5)).astype(np.float32)
    largest = np.linalg.svd(np.fft.fft2(kernel, s=(7, 6), axes=(0, 1)), compute_uv=False).max()
    scaled = jnp.asarray(kernel * np.float32(10.0**exponent))
    bound = float(jax.jit(lambda W: certificates.weight_norm_bound(W, IMAGE))(scaled)) / 10.0**exponent
    assert largest * (1.0 - 1e-5) <= bound <= 1.01 * largest
