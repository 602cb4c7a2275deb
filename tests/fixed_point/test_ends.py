"""Rows end separately: at round-off, at their best state, at 0, and at sizes from 1e-25 to 1e25."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import factored_layer, inputs, program, relative_error, skew_weights, tanh_step
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import SOLVERS
from unroll_jax.fixed_point.reports import CONVERGED, MAX_STEPS, NONFINITE, STALLED

pytestmark = pytest.mark.usefixtures("unchecked")

A = np.asarray(skew_weights(norm=0.8, dtype=jnp.float32))
ONES = np.ones((1, 3), np.float32)


def shrink(rate, z, x):
    return rate * z


def grow(p, z, x):
    return p * z + x


def test_every_example_stops_by_itself_whatever_the_batch():
    """An example needs the same steps in a batch of one and of 1,024; a whole-batch norm would run on."""
    x = inputs(1024, 8, dtype=jnp.float32)
    run = program(tanh_step, solver="picard")
    every, one = (run(A, 0.0 * rows, rows)[1] for rows in (x, x[:1]))
    assert np.all(every.converged)
    assert int(every.steps[0]) == int(one.steps[0])
    assert np.min(every.steps) < np.max(every.steps) < 100


@pytest.mark.parametrize("solver", ["picard", None])
def test_a_converged_example_is_frozen(solver):
    """An example that is at its fixed point comes back bit for bit, however long another one takes."""
    x = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    y, info = program(grow, solver=solver, tol=1e-6)(0.5, 0.0 * x, x)
    assert info.steps.tolist()[0] == 1 < info.steps.tolist()[1]
    assert not np.any(np.asarray(y)[0])


@pytest.mark.parametrize("solver", ["picard", "damped", "anderson"])
def test_stalled_at_round_off_is_an_outcome_of_its_own(solver):
    """A tolerance under float32's round-off ends long before the cap, and counts as converged."""
    x = inputs(8, 8, dtype=jnp.float32)
    _, info = program(tanh_step, solver=solver, tol=1e-12, max_steps=5000)(A, 0.0 * x, x)
    assert set(info.status.tolist()) <= {CONVERGED, STALLED}
    assert solver == "picard" or STALLED in info.status.tolist()  # Picard may land on it exactly
    assert int(np.max(info.steps)) < 300
    assert float(np.max(info.residual)) < 16 * np.finfo(np.float32).eps


@pytest.mark.parametrize("solver", ["picard", None])
def test_bfloat16_ends_at_its_round_off_and_not_before(solver):
    p, start, one = jnp.asarray(0.95, jnp.bfloat16), jnp.zeros((1, 3), jnp.bfloat16), jnp.ones((1, 3), jnp.bfloat16)
    z, info = program(grow, solver=solver)(p, start, one)
    assert np.all(info.converged)
    np.testing.assert_allclose(np.asarray(z, np.float32), 20.0, rtol=0.1)
    if solver:
        assert np.all(program(grow, solver=solver, max_steps=3)(p, start, one)[1].status == MAX_STEPS)


@pytest.mark.parametrize("solver", ["anderson", "picard", "damped"])
def test_a_map_without_a_fixed_point_does_not_converge(solver):
    run = program(lambda p, z, x: z + jax.nn.softplus(-z) + p, solver=solver)
    for drift, start in ((0.1, 0.0), (0.1, 3.0), (0.005, 0.0), (0.001, 0.0)):
        _, info = run(drift, np.full((2, 3), start, np.float32))
        assert not np.any(info.converged), (drift, start)
        assert np.all(info.residual > 1e-5)


def test_the_best_state_is_returned():
    """Started at the fixed point of a rotation that grows, every step is worse."""
    turn = 1.5 * np.array([[0.0, 1.0], [-1.0, 0.0]], np.float32)
    near = np.linalg.solve(np.eye(2) - turn.T, np.ones(2)).astype(np.float32) + np.array([1e-3, 0.0], np.float32)
    y, info = program(lambda p, z, x: z @ p + 1.0, solver="picard", max_steps=30)(turn, near[None])
    assert relative_error(y[0], near @ turn + 1.0) < 1e-6
    assert float(info.residual[0]) < 3e-3


@pytest.mark.parametrize("solver", [*SOLVERS, None])
def test_nan_in_is_nan_out_and_reaches_no_other_example(solver):
    """None is the small space of a factored layer; a NaN of the input or of a parameter."""
    x, factored = inputs(3, 8, dtype=jnp.float32), uj.OptEqParams(A, np.eye(8, dtype=np.float32), A[0])
    step, params = (tanh_step, A) if solver else (uj.opteq(8, 8, 8), factored)
    run = program(step, solver=solver, max_steps=30)
    clean, dirty = run(params, 0.0 * x, x)[0], run(params, 0.0 * x, x.at[1].set(np.nan))
    assert np.isnan(dirty[0][1]).all()
    assert dirty[1].status[1] == NONFINITE
    np.testing.assert_array_equal(dirty[0][::2], clean[::2])
    assert np.isnan(run(jax.tree.map(lambda leaf: np.nan * leaf, params), 0.0 * x, x)[0]).all()


@pytest.mark.parametrize("solver", ["picard", "accelerated_gradient", "anderson"])
def test_an_overflow_on_the_way_is_told_and_keeps_the_best_finite_state(solver):
    """exp leaves the range after some steps, the other map its domain; anderson returns to its best state."""
    start = np.full((1, 1), 0.5, np.float32)
    for step in (lambda p, z, x: jnp.exp(p * z), lambda p, z, x: jnp.where(z > p, jnp.nan, z + 1.0)):
        z, info = program(step, solver=solver)(2.0, start)
        assert info.status.tolist() == [NONFINITE]
        assert 1 < info.steps[0] < 10
        assert np.isfinite(z).all()


def test_an_overflow_of_a_factored_layer_is_told():
    layer, params = uj.opteq(3, 3, allow_expansive=True), uj.OptEqParams(1e4 * jnp.eye(3), None, jnp.ones(3))
    info = program(layer)(params, jnp.zeros((2, 3)))[1]
    assert info.status.tolist() == [NONFINITE] * 2


@pytest.mark.parametrize("solver", ["picard", "damped", "anderson", None])
def test_the_size_of_the_state_changes_neither_the_steps_nor_the_answer(solver):
    """None is a factored layer: relu is positively homogeneous. Squares of these sizes are outside float32's range."""
    if solver:
        layer, params = lambda p, z, x: z @ p + x, np.asarray(skew_weights(norm=0.95, dtype=jnp.float32))
    else:
        layer, params = factored_layer(8, 12)
    x, zeros = np.asarray(inputs(4, 8 if solver else 3, dtype=jnp.float32)), np.zeros((4, 8), np.float32)
    run = program(layer, solver=solver, tol=1e-5 if solver else 1e-6)
    usual, usual_info = run(params, zeros, x)
    direct = np.linalg.solve(np.eye(8) - params.T, x.T).T if solver else usual
    for size in (1e-25, 1e-15, 1.0, 1e15, 1e25):
        z, info = run(params, zeros, np.float32(size) * x)
        assert info.converged.all(), size
        assert np.abs(np.asarray(info.steps) - np.asarray(usual_info.steps)).max() <= (3 if solver else 2), size
        assert relative_error(np.asarray(z, np.float64) / size, direct) < (1e-3 if solver else 1e-5), size


def test_states_may_grow_from_tiny_ones_and_shrink_from_large_ones():
    """tanh(2 z) leaves the unstable 0 for 0.957504, the root of z = tanh(2 z)."""
    start = np.repeat(np.array([[1e-6], [1.0], [1e6]], np.float32), 3, axis=1)
    z, info = program(lambda p, z, x: jnp.tanh(p * z), solver="picard")(2.0, start)
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 0.95750402, rtol=1e-4)


@pytest.mark.parametrize("solver", ["picard", "damped", "accelerated_gradient", None])
def test_a_contraction_to_zero_converges(solver):
    """Half as far a step, `damped` needs twice the steps of `picard`."""
    start = np.ones((2, 3), np.float32)
    z, info = program(shrink, solver=solver, max_steps=1000)(0.95, start)
    assert np.all(info.converged)
    assert np.abs(z).max() < 2e-6
    assert np.all(info.steps < 600)
    if solver == "picard":
        assert np.all(program(shrink, solver=solver, max_steps=50)(0.95, start)[1].status == MAX_STEPS)


def test_a_small_fixed_point_is_not_taken_for_zero():
    x = np.array([[0.1], [1.0]], np.float32)
    run = program(grow, solver="picard", max_steps=400)
    for start in (1e-6, 1.0, 10.0):
        z, info = run(0.9, np.full((2, 1), start, np.float32), x)
        assert np.all(info.converged)
        np.testing.assert_allclose(z, 10.0 * x, rtol=2e-4)


def test_an_absolute_tolerance_ends_the_solve():
    z, info = program(shrink, solver="picard", atol=1e-3)(0.95, ONES)
    assert info.converged.all()
    assert 0.9e-3 < 0.05 * np.linalg.norm(z) / 0.95 <= 1.001e-3  # z is f of the state that was judged
    z, info = program(shrink, solver="picard", atol=0.0)(0.95, ONES)  # all relative
    assert info.status[0] == MAX_STEPS
    np.testing.assert_allclose(info.residual[0], 1 / 0.95 - 1, rtol=1e-4)
    assert np.abs(z).max() < 1e-4  # the last state all the same
    _, info = program(grow, solver="picard", tol=1e-3, atol=2e-3)(0.5, np.zeros((1, 1), np.float32), np.float32(1.0))
    assert info.steps[0] == 9  # |f(z) - z| = 2^-k, at most 2e-3 + 1e-3 * 2 from k = 8 on


def test_a_factored_layer_and_unrolled_steps_take_an_absolute_tolerance():
    layer = uj.opteq(4, 3, 2)
    params, x = jax.jit(layer.init)(jax.random.key(0)), jnp.ones((2, 2))
    loose, tight = (program(layer, tol=1e-6, atol=atol)(params, jnp.ones((2, 4)), x)[1] for atol in (1e-1, None))
    assert np.all(loose.converged)
    assert np.all(loose.steps <= tight.steps)
    assert program(shrink, atol=1e-3, adjoint=fp.unrolled(100))(0.9, ONES)[1].converged.all()
