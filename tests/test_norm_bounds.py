"""Bounds of norms, their derivatives, and weights that are kept to them, against NumPy's singular values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.errors import assert_names
from unroll_jax import certificates
from unroll_jax.certificates import spectral_normalise

pytestmark = pytest.mark.usefixtures("x64")
IMAGE = (5, 4)


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


def test_the_bound_of_an_orthonormal_matrix_has_a_derivative_that_prefers_no_direction():
    Q = np.linalg.qr(np.random.default_rng(4).normal(size=(5, 5)))[0]
    value, slope = jax.jit(jax.value_and_grad(certificates.matrix_norm_bound))(Q)
    np.testing.assert_allclose(slope, float(value) * Q / 5.0, atol=1e-12)


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


def largest_of_symbol(kernel):
    return np.linalg.svd(np.fft.fft2(kernel, s=(IMAGE[0] + 2, IMAGE[1] + 2), axes=(0, 1)), compute_uv=False).max()


def test_the_gradient_of_a_convolution_s_bound_is_that_of_its_largest_frequency():
    kernel, direction = np.random.default_rng(3).normal(size=(2, 3, 3, 4, 5))
    gradient = jax.jit(jax.grad(lambda W: certificates.weight_norm_bound(W, IMAGE)))(kernel)
    slope = (largest_of_symbol(kernel + 1e-6 * direction) - largest_of_symbol(kernel - 1e-6 * direction)) / 2e-6
    assert np.vdot(gradient, direction) == pytest.approx(slope, rel=5e-3)


def test_bounds_hold_for_weights_whose_squares_leave_the_range_of_float32():
    kernel = np.random.default_rng(4).normal(size=(3, 3, 4, 5)).astype(np.float32)
    bound, largest = jax.jit(lambda W: certificates.weight_norm_bound(W, IMAGE)), largest_of_symbol(kernel)
    for exponent in (-30, -15, 0, 15, 30):
        scaled = float(bound(kernel * np.float32(10.0**exponent))) / 10.0**exponent
        assert largest * (1.0 - 1e-5) <= scaled <= 1.01 * largest, exponent


def norm(W):
    return np.linalg.norm(np.asarray(W), 2)


def test_matrices_of_a_pytree_at_the_paths_chosen_keep_to_the_bound_and_other_leaves_are_left_alone():
    draw = np.random.default_rng(0)
    recurrent = {"kernel": draw.normal(size=(8, 8)), "bias": draw.normal(size=8)}
    params = {"recurrent": recurrent, "inject": draw.normal(size=(3, 8)), "small": 1e-2 * draw.normal(size=(4, 4))}
    params |= {"activation": jnp.tanh, "name": "cell"}
    scaled = spectral_normalise(params, bound=0.7)
    for W, kept in ((recurrent["kernel"], scaled["recurrent"]["kernel"]), (params["inject"], scaled["inject"])):
        assert 0.699 <= norm(kept) <= 0.7 * (1.0 + 1e-12)
        np.testing.assert_allclose(kept, W * 0.7 / norm(W), rtol=1e-3)  # in its direction
    np.testing.assert_array_equal(scaled["small"], params["small"])
    np.testing.assert_array_equal(scaled["recurrent"]["bias"], recurrent["bias"])
    assert (scaled["activation"], scaled["name"]) == (jnp.tanh, "cell")
    chosen = spectral_normalise(params, bound=0.7, where=lambda path: "recurrent" in path)
    assert norm(chosen["recurrent"]["kernel"]) <= 0.7 * (1.0 + 1e-12)
    np.testing.assert_array_equal(chosen["inject"], params["inject"])
    with pytest.raises(TypeError, match=r"matrices at paths that where chooses, got dict with .*'activation'"):
        spectral_normalise(params, where=lambda path: "nowhere" in path)
    assert_names(ValueError, spectral_normalise, {"params": {"W": np.ones((3, 3, 2, 2))}, "image_shape": None})
