"""Monotone operator equilibria against NumPy: the weights as matrices, the
equilibria by plain damped iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies.opteq_reference import conv_matrix
from tests.fixed_point.problems import relative_error
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import monotone

pytestmark = in_float64
IMAGE = (4, 5)
MARGIN = 0.7
SIGMA = {"relu": lambda t: np.maximum(t, 0.0), "tanh": np.tanh}
OPTIONS = {"tol": 1e-11, "max_steps": 5000, "on_failure": "error"}


def params_of(kind, seed=0):
    """Random A and B, more skew than not: plain iteration of sigma(W z + x) would
    not converge."""
    shape = (6, 6) if kind == "dense" else (3, 3, 2, 2)
    return fp.MonotoneParams(
        *gaussian(2, *shape, seed=seed), np.float64(1.3), np.float64(2.5)
    )


def matrix_of(params):
    A, B, *scales = map(np.asarray, params)
    A, B = (
        scale * raw / np.linalg.norm(np.ravel(raw))
        for raw, scale in zip((A, B), scales, strict=True)
    )
    if A.ndim == 4:
        A, B = (conv_matrix(kernel, IMAGE, wraps=True) for kernel in (A, B))
    return (1.0 - MARGIN) * np.eye(len(A)) - A.T @ A + B - B.T


def weight_of(params):
    return fp.monotone_weight(
        params, margin=MARGIN, image_shape=IMAGE if params.A.ndim == 4 else None
    )


def inputs_for(kind, *batch, seed=1):
    shape = (6,) if kind == "dense" else (*IMAGE, 2)
    return gaussian(*batch, *shape, seed=seed)


def solve_by_scipy(W, x, sigma):
    solution = scipy.optimize.root(
        lambda z: z - sigma(W @ z + x), np.zeros(len(x)), method="hybr", tol=1e-13
    )
    assert np.linalg.norm(solution.x - sigma(W @ solution.x + x)) < 1e-11
    return solution.x


@pytest.mark.parametrize("kind", ["dense", "images"])
def test_the_weight_is_the_stated_matrix_with_its_margin(
    kind,
):
    params = params_of(kind)
    z = inputs_for(kind, 2)

    @compiled
    def products(params, z):
        W = weight_of(params)
        return monotone.monotone_product(W, z), monotone.monotone_product(
            monotone.monotone_resolvent(W, 0.6), z
        )

    matrix = matrix_of(params)
    one = np.eye(len(matrix))
    flat, image, solved = (leaf.reshape(2, -1) for leaf in (z, *products(params, z)))
    assert_allclose(image, flat @ matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(one - (matrix + matrix.T) / 2)[0] >= MARGIN - 1e-12
    assert np.linalg.norm(matrix - matrix.T) > 1.0
    inverse = np.linalg.inv(one + 0.6 * (one - matrix))
    assert_allclose(solved, flat @ inverse.T, atol=1e-12)


# An activation, a dtype, options, and how near the equilibrium must be; float32
# converges to its round-off.
CASES = [
    ("tanh", jnp.float64, {}, 1e-8),
    ("relu", jnp.float64, {"step_size": 0.05}, 1e-8),
    ("relu", jnp.float32, {"step_size": 0.5, "tol": 1e-6}, 2e-5),
]


@pytest.mark.parametrize("kind", ["dense", pytest.param("images", marks=nightly)])
def test_the_splitting_finds_the_equilibrium_that_scipy_finds(kind):
    params = params_of(kind)
    x = inputs_for(kind, 2)

    @compiled
    def run(params, x):
        results = []
        for name, dtype, options, _ in CASES:
            given, rows = jax.tree.map(
                lambda leaf, dtype=dtype: leaf.astype(dtype), (params, x)
            )
            W = weight_of(given)
            z, info = fp.monotone_equilibrium(
                W, rows, activation=name, **OPTIONS | options
            )
            results.append((z, info.steps, info.converged))
        return results

    matrix = matrix_of(params)
    for (name, dtype, _, tolerance), (z, steps, converged) in zip(
        CASES, run(params, x), strict=True
    ):
        assert (z.dtype, steps.shape) == (dtype, (2,))
        assert np.all(converged)
        expected = [solve_by_scipy(matrix, np.ravel(row), SIGMA[name]) for row in x]
        assert_allclose(np.reshape(z, (2, -1)), expected, atol=tolerance, err_msg=name)


@nightly
@pytest.mark.parametrize("kind", ["dense", "images"])
def test_gradients_are_those_of_an_unroll(kind):
    """The unroll is of damped plain steps, in which no splitting takes part."""
    params = params_of(kind)
    x = inputs_for(kind, 2)
    share = 0.5 * MARGIN / np.linalg.norm(np.eye(x[0].size) - matrix_of(params), 2) ** 2

    def unrolled(params, x):
        W = weight_of(params)

        def step(z, _):
            return (
                jax.nn.relu(z + 2 * share * (monotone.monotone_product(W, z) + x - z)),
                None,
            )

        return jax.lax.scan(step, jnp.zeros_like(x), length=1500)[0]

    def split(params, x):
        return fp.monotone_equilibrium(weight_of(params), x, **OPTIONS)[0]

    def slopes(find):
        return jax.grad(lambda *given: jnp.sum(jnp.sin(find(*given))), (0, 1))

    both = compiled(lambda *given: (slopes(split)(*given), slopes(unrolled)(*given)))
    assert relative_error(*both(params, x)) < 1e-7


def test_weights_of_zero_have_a_finite_gradient():
    shapes = jax.eval_shape(lambda: fp.monotone_init(jax.random.key(0), 3))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def total(params):
        W = fp.monotone_weight(params)
        return jnp.sum(W), W

    gradient, W = compiled(jax.grad(total, has_aux=True))(params)
    assert_array_equal(W, 0.0)
    assert all(np.isfinite(leaf).all() for leaf in gradient)
