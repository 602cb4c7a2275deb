"""Inner products of tokens against NumPy and autodiff of the plain product, and sizes
near the ends of the range."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from tests.reference import compiled, gaussian, jax_array
from unroll_jax.certificates import matrix_norm_bound, spectral_norm
from unroll_jax.numerics import gram, over, powers_of_two


def test_gram_is_all_inner_products_with_derivatives():
    tokens, moved = gaussian(2, 2, 5, 4).astype(np.float32)
    weights = gaussian(2, 5, 5, seed=2).astype(np.float32)

    def derivatives(product, tokens, moved):
        slope = jax.grad(lambda z: jnp.sum(jnp.sin(product(z)) * weights))
        along = jax.grad(lambda z: jnp.vdot(slope(z), moved))
        return (*jax.jvp(slope, (tokens,), (moved,)), along(tokens))

    @compiled
    def both(*points):
        plain = lambda z: z @ z.mT
        return gram(points[0]), [derivatives(each, *points) for each in (gram, plain)]

    products, (ours, expected) = both(tokens, moved)
    assert_allclose(products, tokens @ tokens.mT, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_gram_takes_one_product_forward_and_one_backward():
    slope = jax.jit(jax.grad(lambda z: jnp.sum(gram(z) ** 3)))
    text = slope.lower(np.ones((2, 5, 4), np.float32)).as_text()
    assert text.count("dot_general") == 2


def test_gram_of_bfloat16_accumulates_in_the_dtype_asked_for():
    tokens = jax_array(gaussian(5, 400), jnp.bfloat16)

    @compiled
    def run(z):
        total = lambda z: jnp.sum(gram(z, jnp.float32))
        return gram(z, jnp.float32), jax.grad(total)(z)

    actual, slope = run(tokens)
    wide = np.asarray(tokens, np.float32)
    assert (actual.dtype, slope.dtype) == (jnp.float32, jnp.bfloat16)
    assert_allclose(actual, wide @ wide.T, rtol=1e-5, atol=1e-4)


def test_powers_of_two_are_those_of_frexp():
    sizes = jax_array(
        [0.0, 1.0, 0.99, 3.0, 4.0, 1.2e-38, 1e-30, 3.4e38, np.inf, np.nan], jnp.float32
    )
    exponents = np.array([0, 1, 0, 2, 3, -125, -99, 126, 126, 126])
    down, up = compiled(powers_of_two)(sizes)
    assert_array_equal(up, 2.0**exponents)
    assert_array_equal(down, 2.0**-exponents)


def test_sizes_at_the_end_of_the_range_work():
    """Compiled code multiplies by the reciprocal of such a size, which is subnormal,
    and so taken for 0."""
    sizes = np.float32([0.0, 1e-37, 1.0, 8e37, 9e37, 3e38])
    ones = np.ones((6, 3), np.float32)
    A = np.float32(3e38) * np.eye(4, dtype=np.float32)
    A[1, 1] = 1e38

    @compiled
    def run(sizes, A):
        norms = (
            matrix_norm_bound(A),
            spectral_norm(lambda v: (A / 3e19) @ v, jnp.zeros(4)),
        )
        return over(sizes[:, None] * ones, sizes[:, None]), norms

    divided, (bound, largest) = run(sizes, A)
    assert_allclose(divided, ones * (sizes > 0)[:, None], rtol=1e-6)
    assert_allclose(bound, 3e38, rtol=1e-2)
    assert_allclose(largest, 1e19, rtol=1e-5)  # by products with its square
    assert np.isnan(compiled(over)(ones, np.float32([[np.nan]] * 6))).all()
