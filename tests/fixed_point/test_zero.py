"""Zero as a fixed point, where a relative residual tells nothing, and the absolute tolerance."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.fixed_point import STATUS, ConvergenceWarning, unrolled

pytestmark = pytest.mark.usefixtures("unchecked")

MAX_STEPS = STATUS.index("reached max_steps")


def shrink(rate, z, x):
    return rate * z


def test_the_last_state_is_returned_on_the_way_to_zero():
    rates, start = jnp.array([0.9, 0.99, 0.999]), jnp.array([1.0, 0.4, -0.2])
    solve = lambda *args: uj.equilibrium(shrink, *args, solver="picard", tol=1e-5, max_steps=8000, batch_ndim=0)  # noqa: E731
    z, info = jax.jit(solve)(rates, start)
    assert np.linalg.norm(z) <= 6.7e-5
    assert info.converged
    assert info.residual <= 1e-5


@pytest.mark.parametrize(
    ("solver", "max_steps"),
    [("picard", 200), ("picard", 1000), ("damped", 400), ("damped", 1000), ("accelerated_gradient", 200), (None, 200)],
)
def test_a_contraction_to_zero_converges(solver, max_steps):
    """Half as far a step, `damped` needs twice the steps of `picard`."""
    options = {"solver": solver, "max_steps": max_steps, "batch_ndim": 1}
    z, info = jax.jit(lambda start: uj.equilibrium(shrink, 0.95, start, **options))(np.ones((2, 3), np.float32))
    assert np.all(info.converged)
    assert np.all(info.residual <= 1e-5)
    bound = 2e-6 if max_steps == 1000 or solver in (None, "accelerated_gradient") else 1e-4
    assert np.abs(z).max() < bound
    assert np.all(info.steps < 600)


def test_a_contraction_to_zero_that_is_cut_off_early_does_not_converge():
    options = {"max_steps": 50, "batch_ndim": 1, "on_failure": "accept", "solver": "picard"}
    _, info = uj.equilibrium(shrink, 0.95, jnp.ones((2, 3)), **options)
    assert np.all(info.status == MAX_STEPS)


@functools.cache
def midpoint(solver):
    return jax.jit(lambda A, y: uj.equilibrium(lambda A, y, x: A @ y, A, y, solver=solver, batch_ndim=0))


@pytest.mark.parametrize("solver", ["picard", "damped", "anderson", None])
@pytest.mark.parametrize("scale", [1 / 32, 1 / 16], ids=["in y", "in k"])
def test_an_implicit_midpoint_step_from_zero_takes_few_steps(solver, scale):
    """A test problem of Optimistix: y = y0 + dt A (y0 + y) / 2 with y0 = 0, dt = 1 / 16 and a Gaussian A."""
    A = np.random.default_rng(0).normal(size=(28, 28)).astype(np.float32)
    y, info = midpoint(solver)(scale * A, np.full(28, 0.5, np.float32))
    assert info.converged
    assert info.steps < 60
    assert np.abs(y).max() < 1e-6


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e4])
def test_a_small_fixed_point_is_not_taken_for_zero(start):
    """It is 1e-3 of each row's size at the last start, passed on a plateau of the relative residual."""
    step = lambda p, z, x: 0.9 * z + x  # noqa: E731
    x = jnp.array([[0.1], [1.0]])
    z, info = uj.equilibrium(step, None, jnp.full((2, 1), start), x, solver="picard", max_steps=400, batch_ndim=1)
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 10.0 * x, rtol=2e-4)


def test_an_absolute_tolerance_ends_the_solve():
    def solve(atol):
        options = {"solver": "picard", "atol": atol, "batch_ndim": 1, "on_failure": "accept"}
        return jax.jit(lambda start: uj.equilibrium(shrink, 0.95, start, **options))(np.ones((1, 3), np.float32))

    z, info = solve(1e-3)
    assert info.converged.all()
    assert info.residual[0] <= 1e-5
    assert 0.9e-3 < 0.05 * np.linalg.norm(z) / 0.95 <= 1.001e-3  # z is f of the state that was judged
    assert info.steps[0] < 100
    z, info = solve(0.0)  # all relative
    assert info.status[0] == MAX_STEPS
    np.testing.assert_allclose(info.residual[0], 1 / 0.95 - 1, rtol=1e-4)
    assert np.abs(z).max() < 1e-4  # the last state all the same


def test_both_tolerances_add():
    step = lambda p, z, x: 0.5 * z + 1.0  # noqa: E731
    _, info = uj.equilibrium(step, None, jnp.zeros((1, 1)), solver="picard", tol=1e-3, atol=2e-3, batch_ndim=1)
    assert info.steps[0] == 9  # |f(z) - z| = 2^-k, at most 2e-3 + 1e-3 * 2 from k = 8 on


@pytest.mark.parametrize("options", [{"adjoint": unrolled(100)}, {"atol": 1e-3}])
def test_every_kind_of_solve_is_judged_by_the_absolute_tolerance(options):
    _, info = uj.equilibrium(shrink, 0.9, jnp.ones((1, 3)), batch_ndim=1, **({"atol": 1e-3} | options))
    assert info.converged.all()


def test_a_factored_layer_takes_an_absolute_tolerance():
    layer = uj.opteq(4, 3, 2)
    params, x = jax.jit(layer.init)(jax.random.key(0)), jnp.ones((2, 2))
    solve = lambda params, y, x: [uj.equilibrium(layer, params, y, x, tol=1e-6, atol=atol)[1] for atol in (1e-1, None)]  # noqa: E731
    loose, tight = jax.jit(solve)(params, jnp.ones((2, 4)), x)
    assert np.all(loose.converged)
    assert np.all(loose.steps <= tight.steps)


def test_rows_on_their_way_to_zero_are_not_told_of_a_batch():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        state, _ = uj.equilibrium(shrink, 0.95, jnp.ones((2, 3)), solver="picard")
    assert jnp.all(jnp.abs(state) < 1e-3)


def test_gradients_at_zero_are_those_of_the_fixed_point():
    solve = lambda x: uj.equilibrium(lambda p, z, x: 0.5 * z + x, None, jnp.ones(3), x, batch_ndim=0)[0]  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.jacrev(solve))(jnp.zeros(3)), 2.0 * np.eye(3), rtol=1e-4)


@pytest.mark.parametrize("atol", [-1e-3, np.nan, np.inf])
def test_an_absolute_tolerance_out_of_range_is_an_error(atol):
    with pytest.raises(ValueError, match="atol must be"):
        uj.equilibrium(shrink, 0.5, jnp.ones(3), atol=atol)
