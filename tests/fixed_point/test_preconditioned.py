"""The systems of factored layers, and the inverses that help with them, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, relative_error
from unroll_jax.fixed_point.preconditioned import inverse, prepare, product, solve

pytestmark = pytest.mark.usefixtures("x64")

SHAPES = {"narrow": (8, 24), "square": (20, 20), "wide": (30, 20), "wider": (48, 12)}


def weights(width, dim, square=0.999, seed=0):
    """W whose squared singular values are evenly spaced up to ``square``."""
    left, _, right = np.linalg.svd(np.random.default_rng(seed).normal(size=(width, dim)), full_matrices=False)
    return left * np.sqrt(square * np.linspace(1.0, 0.0, len(right), endpoint=False)) @ right


@pytest.mark.parametrize("size", [1, 16, 17, 130])
def test_the_inverse_is_that_of_numpy(size):
    W = weights(size, size)
    matrix = np.eye(size) - W @ W.T
    np.testing.assert_allclose(jax.jit(inverse)(matrix), np.linalg.inv(matrix), rtol=1e-9, atol=1e-10)


def test_the_inverse_of_a_matrix_that_is_not_positive_definite_is_not_finite():
    assert not np.isfinite(jax.jit(inverse)(np.diag([1.0, -1.0, 1.0]))).all()


@jax.jit
def twice(W, root, right):
    q, steps, shared = solve(W, root, right, prepare(W, right), tol=1e-11, max_steps=500)
    again, fewer, shared = solve(W, root, right, shared, tol=1e-11, max_steps=500)
    return q, again, steps, fewer, product(W, shared)(right)


# A single example shares nothing; G is made for a "wide" W where 40 examples pay for it, and never for a "wider" one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "rows"),
    [("narrow", 1), ("wider", 1), ("narrow", 40), ("square", 3), ("wide", 3), ("wide", 40), ("wider", 40)],
)
def test_every_shape_equals_a_direct_solve_and_so_does_a_second_solve_with_what_is_shared(shape, rows):
    W = weights(*SHAPES[shape])
    for active in (0.4, 1.0):
        draw = np.random.default_rng(1)
        root = (draw.uniform(size=(rows, len(W))) <= active) * np.sqrt(draw.uniform(0.9, 1.0, (rows, len(W))))
        right = draw.normal(size=root.shape)
        q, again, steps, fewer, image = (np.asarray(leaf) for leaf in twice(W, root, right))
        systems = np.eye(len(W)) - root[:, :, None] * (W @ W.T) * root[:, None]
        expected = np.linalg.solve(systems, right[..., None])[..., 0]
        np.testing.assert_allclose(q, expected, rtol=1e-7, atol=1e-8, err_msg=str(active))
        np.testing.assert_allclose(again, expected, rtol=1e-7, atol=1e-8, err_msg=str(active))
        np.testing.assert_allclose(image, right @ W @ W.T, rtol=1e-9, atol=1e-10)
        assert fewer.max() <= 2 * steps.max() + 4, active


@pytest.mark.parametrize("width", [120, 300])
def test_where_the_same_units_are_active_in_all_examples_a_few_steps_are_enough(width):
    """In all that go on: as many more end at once, which do not count."""
    W, right = weights(width, 120), np.random.default_rng(1).normal(size=(32, width))
    root = np.repeat(np.asarray(inputs(1, width, seed=2)) * 1e-3 + 0.99, 32, axis=0)
    root[16:], right[16:] = 1.0, 0.0

    @jax.jit
    def both(W, root, right):
        solutions = [solve(W, root, right, shared, tol=1e-9, max_steps=1000) for shared in (None, prepare(W, right))]
        return solutions[0][1], solutions[1][1], solutions[1][2].made

    plain, steps, made = both(W, root, right)
    assert made
    assert int(np.max(steps)) <= 24 + 3 < 50 < int(np.max(plain))


def test_an_example_that_is_indefinite_does_not_spoil_another():
    W, right = weights(20, 20, square=1.5), np.asarray(inputs(2, 20))
    root = np.stack([np.ones(20), np.full(20, 0.8)])
    run = jax.jit(lambda W, root, right: solve(W, root, right, prepare(W, right), tol=1e-10, max_steps=200)[0])
    q = np.asarray(run(W, root, right))
    np.testing.assert_allclose(q[1], np.linalg.solve(np.eye(20) - 0.64 * W @ W.T, right[1]), rtol=1e-7)
    assert np.isfinite(q).all()


@pytest.mark.slow
def test_the_gradient_under_vmap_is_that_of_each_batch():
    layer, xs = uj.opteq(12, 12, 3), inputs(2, 5, 3, seed=2)

    def gradient(params, x):
        find = lambda x: uj.equilibrium(layer, params, jnp.zeros((5, 12)), x, tol=1e-11, on_failure="error")[0]  # noqa: E731
        return jax.grad(lambda x: jnp.sum(jnp.sin(find(x))))(x)

    @jax.jit
    def both(params, xs):
        return jax.vmap(gradient, (None, 0))(params, xs), jax.lax.map(lambda x: gradient(params, x), xs)

    params = uj.OptEqParams(*(jnp.asarray(leaf) for leaf in (weights(12, 12), inputs(12, 3), np.full(12, 2.0))))
    assert relative_error(*both(params, xs)) < 1e-8
