"""The linear solvers against NumPy's direct solve, each row stopping by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.fixed_point import ADJOINTS, krylov, linear

pytestmark = pytest.mark.usefixtures("x64")

ROWS, DIM = 5, 12


def systems(*, symmetric, norm=0.95):
    draw = np.random.default_rng(0)
    J = draw.normal(size=(ROWS, DIM, DIM))
    J = (J + J.transpose(0, 2, 1)) / 2 if symmetric else np.triu(J) + 0.2 * np.tril(J, -1)
    norms = np.linalg.norm(J, 2, axis=(1, 2))[:, None, None]
    return norm * J / norms, draw.normal(size=(ROWS, DIM))


def operator(J):
    return lambda w: jnp.einsum("bij,bj->bi", J, w)


@pytest.mark.parametrize("name", [n for n in ADJOINTS if n not in ("neumann", "one_step", "unrolled")])
def test_every_exact_adjoint_equals_a_direct_solve(name):
    adjoint = ADJOINTS[name]()
    J, v = systems(symmetric=adjoint.symmetric)
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    w, info = jax.jit(lambda J, v: adjoint.solve(operator(J), v, 1e-11, 1000))(J, v)
    np.testing.assert_allclose(w, np.linalg.solve(np.eye(DIM) - J, v[..., None])[..., 0], rtol=1e-7, atol=1e-8)
    residual = np.linalg.norm(v + np.einsum("bij,bj->bi", J, w) - w, axis=1)
    np.testing.assert_allclose(info.residual, residual, rtol=1e-2, atol=1e-14)
    assert info.converged.all()


@pytest.mark.parametrize("restart", [1, 3, 12, 30])
def test_gmres_is_exact_within_as_many_steps_as_dimensions_and_with_any_restart(restart):
    J, v = systems(symmetric=False, norm=0.6)
    w, info = jax.jit(lambda J, v: krylov.gmres(operator(J), v, tol=1e-10, max_steps=400, restart=restart))(J, v)
    np.testing.assert_allclose(w, np.linalg.solve(np.eye(DIM) - J, v[..., None])[..., 0], rtol=1e-8, atol=1e-8)
    assert info.converged.all()
    if restart >= DIM:
        assert int(info.steps.max()) <= DIM


def test_gmres_ends_where_its_space_is_complete():
    """v is an eigenvector: one step, and the zero columns after it get no weight."""
    J, v = 0.5 * np.eye(4)[None], np.eye(4)[:1]
    w, info = krylov.gmres(operator(J), jnp.asarray(v), tol=1e-12, max_steps=20)
    np.testing.assert_allclose(w, 2.0 * v, rtol=1e-14)
    assert info.steps.tolist() == [1]


def test_gmres_that_stagnates_ends_and_says_so():
    """I - J is a cyclic shift, on which GMRES does not move before it has every dimension."""
    J = (np.eye(8) - np.roll(np.eye(8), 1, 0))[None]
    _, info = krylov.gmres(operator(J), jnp.eye(8)[:1], tol=1e-8, max_steps=400, restart=4)
    assert not info.converged.any()
    assert int(info.steps[0]) == 4


@pytest.mark.parametrize("solve", [linear.conjugate_gradient, linear.bicgstab, krylov.gmres])
def test_rows_stop_by_themselves_and_a_row_of_zeros_costs_nothing(solve):
    J, v = systems(symmetric=True)
    J[1] *= 0.01
    v[0] = 0.0
    w, info = solve(operator(J), jnp.asarray(v), tol=1e-8, max_steps=400)
    assert not w[0].any()
    assert int(info.steps[0]) == 0 < int(info.steps[1]) < int(info.steps[2])
    assert info.converged.all()


def test_bicgstab_starts_again_where_it_breaks_down():
    """I - J = a quarter turn: the first shadow residual is orthogonal to its image."""
    J = (np.eye(2) - np.array([[0.1, 1.0], [-1.0, 0.1]]))[None]
    v = jnp.array([[1.0, 0.0]])
    w, info = linear.bicgstab(operator(J), v, tol=1e-9, max_steps=100)
    np.testing.assert_allclose(w[0], np.linalg.solve(np.eye(2) - J[0], v[0]), rtol=1e-7)
    assert info.converged.all()


@pytest.mark.parametrize("terms", [1, 2, 7])
def test_neumann_equals_its_partial_sum(terms):
    J, v = systems(symmetric=False)
    w, _ = linear.neumann(operator(J), jnp.asarray(v), terms=terms, tol=1e-8)
    expected = sum(np.einsum("bij,bj->bi", np.linalg.matrix_power(J, k), v) for k in range(terms))
    np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_norms_neither_underflow_nor_overflow(scale):
    from unroll_jax.fixed_point.problem import norm

    rows = scale**2 * jnp.array([[3.0, 4.0], [0.0, 0.0]], jnp.float32)
    np.testing.assert_allclose(jax.jit(norm)(rows), np.array([5.0, 0.0]) * scale**2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_conjugate_gradients_told_to_go_on_for_ever_end_at_round_off(dtype):
    """The recurrence falls long after the true residual has stopped, until its squares cannot be divided any more."""
    size = 128
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))
    J = ((basis * np.linspace(0.0, 0.999, size)) @ basis.T).astype(dtype)
    v = np.random.default_rng(2).normal(size=(ROWS, size)).astype(dtype)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    w, info = jax.jit(lambda J, v: ADJOINTS["conjugate_gradient"]().solve(lambda w: w @ J, v, 1e-300, 9000))(J, v)
    truth = np.linalg.solve(np.eye(size) - J.astype(np.float64), v.T).T
    assert int(info.steps.max()) < 9000
    assert np.abs(w - truth).max() <= 1e4 * np.finfo(dtype).eps * np.abs(truth).max()
