"""The linear solvers against NumPy's direct solve, each row stopping by itself."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.fixed_point import ADJOINTS, linear

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


def direct(J, v):
    return np.linalg.solve(np.eye(J.shape[-1]) - J, v[..., None])[..., 0]


def solved(J, v, **solvers):
    """``name -> (w, info)`` of every ``(operator, v) -> (w, info)``, in one program and as NumPy arrays."""

    @jax.jit
    def run(J, v):
        solutions = {name: solve(operator(J), v) for name, solve in solvers.items()}
        return {name: (w, {**info._asdict(), "converged": info.converged}) for name, (w, info) in solutions.items()}

    solutions = jax.tree.map(np.asarray, run(J, v))
    return {name: (w, SimpleNamespace(**info)) for name, (w, info) in solutions.items()}


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_exact_adjoint_equals_a_direct_solve(symmetric):
    J, v = systems(symmetric=symmetric)
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    others = ("neumann", "one_step", "unrolled", "phantom", "reversible")
    adjoints = {name: ADJOINTS[name]() for name in ADJOINTS if name not in others}
    chosen = {name: adjoint for name, adjoint in adjoints.items() if adjoint.symmetric == symmetric}
    calls = {name: lambda o, v, adjoint=adjoint: adjoint.solve(o, v, 1e-11, 1000) for name, adjoint in chosen.items()}
    for name, (w, info) in solved(J, v, **calls).items():
        np.testing.assert_allclose(w, direct(J, v), rtol=1e-7, atol=1e-8, err_msg=name)
        residual = np.linalg.norm(v + np.einsum("bij,bj->bi", J, w) - w, axis=1)
        np.testing.assert_allclose(info.residual, residual, rtol=1e-2, atol=1e-14, err_msg=name)
        assert info.converged.all(), name


@pytest.mark.slow
def test_gmres_is_exact_within_as_many_steps_as_dimensions_and_with_any_restart():
    J, v = systems(symmetric=False, norm=0.6)
    options = {"tol": 1e-10, "max_steps": 400}
    calls = {str(k): lambda o, v, k=k: linear.gmres(o, v, restart=k, **options) for k in (1, 3, 12, 30)}
    for restart, (w, info) in solved(J, v, **calls).items():
        np.testing.assert_allclose(w, direct(J, v), rtol=1e-8, atol=1e-8, err_msg=restart)
        assert info.converged.all(), restart
        if int(restart) >= DIM:
            assert info.steps.max() <= DIM, restart


def test_gmres_begins_where_it_is_told_to():
    J, v = systems(symmetric=False)
    w = direct(J, v)
    calls = {"gmres": lambda o, v: linear.gmres(o, v, tol=1e-10, max_steps=100, start=jnp.asarray(w))}
    actual, info = solved(J, v, **calls)["gmres"]
    assert info.steps.tolist() == [0] * ROWS
    np.testing.assert_array_equal(actual, w)


def test_gmres_ends_where_its_space_is_complete():
    """v is an eigenvector: one step, and the zero columns after it get no weight."""
    J, v = 0.5 * np.eye(4)[None], np.eye(4)[:1]
    w, info = solved(J, v, gmres=lambda o, v: linear.gmres(o, v, tol=1e-12, max_steps=20))["gmres"]
    np.testing.assert_allclose(w, 2.0 * v, rtol=1e-14)
    assert info.steps.tolist() == [1]


def test_gmres_that_stagnates_ends_and_says_so():
    """I - J is a cyclic shift, on which GMRES does not move before it has every dimension."""
    J, v = (np.eye(8) - np.roll(np.eye(8), 1, 0))[None], np.eye(8)[:1]
    _, info = solved(J, v, gmres=lambda o, v: linear.gmres(o, v, tol=1e-8, max_steps=400, restart=4))["gmres"]
    assert not info.converged.any()
    assert info.steps.tolist() == [4]


def test_rows_stop_by_themselves_and_a_row_of_zeros_costs_nothing():
    J, v = systems(symmetric=True)
    J[1] *= 0.01
    v[0] = 0.0
    solvers = {"cg": linear.conjugate_gradient, "gmres": linear.gmres}
    calls = {name: lambda o, v, f=f: f(o, v, tol=1e-8, max_steps=400) for name, f in solvers.items()}
    for name, (w, info) in solved(J, v, **calls).items():
        assert not w[0].any(), name
        assert info.steps[0] == 0 < info.steps[1] < info.steps[2], name
        assert info.converged.all(), name


def test_neumann_equals_its_partial_sum():
    J, v = systems(symmetric=False)
    calls = {str(terms): lambda o, v, k=terms: linear.neumann(o, v, terms=k, tol=1e-8) for terms in (1, 2, 7)}
    for terms, (w, _) in solved(J, v, **calls).items():
        expected = sum(np.einsum("bij,bj->bi", np.linalg.matrix_power(J, k), v) for k in range(int(terms)))
        np.testing.assert_allclose(w, expected, rtol=1e-12, err_msg=terms)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_norms_neither_underflow_nor_overflow(scale):
    from unroll_jax.fixed_point.flat_states import norm

    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32) * np.float32(scale**2)
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


def test_conjugate_residuals_take_over_where_the_series_grows_or_is_slow():
    """Rows that contract well, slowly and not at all, a growing rotation among them, and a window of 3 directions."""
    J, v = systems(symmetric=False)
    turn = np.kron(np.eye(DIM // 2), [[0.0, -1.0], [1.0, 0.0]])
    J = np.stack([0.3 * J[0], J[1], 3.0 * turn, -4.0 * np.eye(DIM), 1.5 * turn + 0.5 * np.eye(DIM)])
    solve = ADJOINTS["neumann_gcr"]
    ways = {"wide": lambda o, v: solve().solve(o, v, 1e-9, 300), "short": lambda o, v: solve(3).solve(o, v, 1e-9, 300)}
    for w, info in solved(J, v, **ways).values():
        np.testing.assert_allclose(w, direct(J, v), rtol=1e-7, atol=1e-8)
        true = np.linalg.norm(v - (w - np.einsum("bij,bj->bi", J, w)), axis=1) / np.linalg.norm(v, axis=1)
        np.testing.assert_allclose(info.residual, true, rtol=0.1, atol=1e-12)
        assert info.converged.all()
    (_, info) = solved(J, v, cut=lambda o, v: solve().solve(o, v, 1e-9, 12))["cut"]
    assert info.converged.tolist() == [True, False, True, True, True]
    assert (info.steps <= 12).all()
