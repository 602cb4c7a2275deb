"""The systems of factored layers, and the inverses that help with them, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import inputs, relative_error
from unroll_jax.fixed_point.inversion import inverse
from unroll_jax.fixed_point.preconditioned import prepare, product, solve

pytestmark = pytest.mark.usefixtures("x64")

SHAPES = {"narrow": (8, 24), "square": (20, 20), "wide": (30, 20), "wider": (48, 12)}


def weights(width, dim, square=0.999, seed=0):
    """W whose squared singular values are evenly spaced up to ``square``."""
    left, _, right = np.linalg.svd(np.random.default_rng(seed).normal(size=(width, dim)), full_matrices=False)
    return left * np.sqrt(square * np.linspace(1.0, 0.0, len(right), endpoint=False)) @ right


@pytest.mark.parametrize("size", [1, 5, 16, 17, 64, 100, 130, 200])
def test_the_inverse_is_that_of_numpy(size):
    W = weights(size, size)
    matrix = np.eye(size) - W @ W.T
    np.testing.assert_allclose(jax.jit(inverse)(matrix), np.linalg.inv(matrix), rtol=1e-9, atol=1e-10)


def test_the_inverse_of_a_matrix_that_is_not_positive_definite_is_not_finite():
    assert not jnp.isfinite(jax.jit(inverse)(jnp.diag(jnp.array([1.0, -1.0, 1.0])))).all()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("active", [0.4, 1.0])
def test_every_shape_equals_a_direct_solve_and_so_does_a_second_solve_with_what_is_shared(shape, rows, active):
    W = weights(*SHAPES[shape])
    draw = np.random.default_rng(1)
    root = (draw.uniform(size=(rows, len(W))) <= active) * np.sqrt(draw.uniform(0.9, 1.0, (rows, len(W))))
    right = draw.normal(size=root.shape)

    @jax.jit
    def twice(W, root, right):
        q, steps, shared = solve(W, root, right, prepare(W, rows), tol=1e-11, max_steps=500)
        again, fewer, shared = solve(W, root, right, shared, tol=1e-11, max_steps=500)
        return q, again, steps, fewer, product(W, shared)(right)

    q, again, steps, fewer, image = twice(W, root, right)
    systems = np.eye(len(W)) - root[:, :, None] * (W @ W.T) * root[:, None]
    expected = np.linalg.solve(systems, right[..., None])[..., 0]
    np.testing.assert_allclose(q, expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(again, expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(image, right @ W @ W.T, rtol=1e-9, atol=1e-10)
    assert int(fewer.max()) <= 2 * int(steps.max()) + 4


def test_where_the_same_units_are_active_in_all_examples_a_few_steps_are_enough():
    W, right = weights(120, 120), np.random.default_rng(1).normal(size=(16, 120))
    root, right = jnp.repeat(inputs(1, 120, seed=2) * 1e-3 + 0.99, 16, axis=0), jnp.asarray(right)
    run = lambda shared: solve(jnp.asarray(W), root, right, shared, tol=1e-9, max_steps=1000)  # noqa: E731
    _, plain, _ = jax.jit(lambda: run(None))()
    _, steps, shared = jax.jit(lambda: run(prepare(jnp.asarray(W), 16)))()
    assert shared.made
    assert int(steps.max()) <= 24 + 3 < 50 < int(plain.max())


def test_an_example_that_is_indefinite_does_not_spoil_another():
    W = weights(20, 20, square=1.5)
    root, right = jnp.stack([jnp.ones(20), jnp.full(20, 0.8)]), inputs(2, 20)
    q, *_ = jax.jit(lambda W: solve(W, root, right, prepare(W, 2), tol=1e-10, max_steps=200))(jnp.asarray(W))
    np.testing.assert_allclose(q[1], np.linalg.solve(np.eye(20) - 0.64 * W @ W.T, right[1]), rtol=1e-7)
    assert jnp.isfinite(q).all()


def test_the_gradient_under_vmap_is_that_of_each_batch():
    W, U = weights(12, 12), np.asarray(inputs(12, 3))
    layer, x = uj.opteq(12, 12, 3), inputs(2, 5, 3, seed=2)
    params = layer.init(jax.random.key(0))._replace(W=jnp.asarray(W), U=jnp.asarray(U), b=jnp.full(12, 2.0))

    def gradient(x):
        y = lambda x: uj.equilibrium(layer, params, jnp.zeros((5, 12)), x, tol=1e-11, on_failure="error")[0]  # noqa: E731
        return jax.grad(lambda x: jnp.sum(jnp.sin(y(x))))(x)

    mapped, single = jax.jit(jax.vmap(gradient))(x), jax.jit(gradient)
    assert relative_error(mapped, jnp.stack([single(rows) for rows in x])) < 1e-8
