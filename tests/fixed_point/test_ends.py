"""Rows end separately: at round-off, at their best state, at 0, and at sizes from
1e-25 to 1e25."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.fixed_point.problems import (
    factored_layer,
    inputs,
    program,
    programs,
    relative_error,
    skew_weights,
    solve,
    tanh_step,
)
from tests.marks import types_unchecked
from tests.reference import compiled
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import SOLVERS
from unroll_jax.fixed_point.status import CONVERGED, MAX_STEPS, NONFINITE, STALLED

pytestmark = types_unchecked
A = np.asarray(skew_weights(norm=0.8, dtype=jnp.float32))
ONES = np.ones((1, 3), np.float32)


def grow(p, z, x):
    return p * z + x


@functools.cache
def growing():
    solvers = ["picard", "damped", "accelerated_gradient", None]
    return programs(grow, solvers, max_steps=1000)


def rows(values):
    """Two rows of three numbers. 61 zeros, which stay, make rows of 64."""
    three = np.broadcast_to(np.float32(values), (2, 3))
    return np.pad(three, ((0, 0), (0, 61)))


DRIFT, EXP, LEAVES, TANH, JUMP = KINDS = range(5)


@functools.cache
def by_kind():
    """Maps of rows by their kind: one that goes on for ever, exp, one that leaves
    its domain, tanh, and one that jumps to p and drifts on."""

    def step(p, z, kind):
        images = (
            z + jax.nn.softplus(-z) + p,
            jnp.exp(p * z),
            jnp.where(z > p, jnp.nan, z + 1.0),
            jnp.tanh(p * z),
            jnp.where(z < 5.0, z + 1.0, jnp.where(z < 1e-2 * p, p, z + 1e-6 * p)),
        )
        return jnp.select([kind == number for number in KINDS], images)

    return programs(step, ["anderson", "picard", "damped", "accelerated_gradient"])


def column(values):
    return np.broadcast_to(np.float32(values), 3)[:, None]


def solve_kinds(p, start, kinds):
    """The ends of three rows, by solver."""
    return by_kind()(p, column(start), column(kinds).astype(int))


@functools.cache
def stalling():
    """With a tolerance under float32's round-off."""
    return programs(tanh_step, SOLVERS, tol=1e-12, max_steps=5000)


@functools.cache
def factored():
    """A factored layer, its arguments, and the program of its solve."""
    layer, params = factored_layer(8, 12)
    arguments = (
        params,
        np.zeros((4, 8), np.float32),
        np.asarray(inputs(4, 3, dtype=jnp.float32)),
    )
    return layer, arguments, program(layer, tol=1e-6)


def test_converged_examples_stay_and_small_fixed_points_are_not_zero():
    """An example that is at its fixed point comes back bit for bit, however long
    another one takes."""
    x = rows([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    for solver, (y, info) in growing()(0.5, 0.0 * x, x).items():
        assert info.steps[0] == 1 < info.steps[1], solver
        assert not np.any(y[0]), solver
    ones = rows(1.0)
    x = rows([[0.1], [1.0]])
    for start in map(np.float32, (1e-6, 1.0, 10.0)):
        for solver, (z, info) in growing()(0.9, start * ones, x).items():
            assert np.all(info.converged), (solver, start)
            assert_allclose(z, 10.0 * x, rtol=2e-4, err_msg=solver)
    for solver, (z, info) in growing()(0.95, ones, 0.0 * x).items():
        assert np.all(info.converged), solver
        assert np.abs(z).max() < 2e-6, solver
        # of `damped`, half as far a step, twice as many
        assert np.all(info.steps < 600), solver


def test_stalled_at_round_off_is_an_outcome_of_its_own():
    """A tolerance under float32's round-off ends long before the cap, and counts as
    converged."""
    x = np.asarray(inputs(8, 8, dtype=jnp.float32))
    ends = stalling()(A, 0.0 * x, x)
    for solver in ("picard", "damped", "anderson"):
        info = ends[solver][1]
        statuses = set(info.status.tolist())
        assert statuses <= {CONVERGED, STALLED}, solver
        # Picard may land on it exactly
        assert solver == "picard" or STALLED in statuses, solver
        assert np.all(info.steps < 300), solver
        assert np.all(info.residual < 16 * np.finfo(np.float32).eps), solver


def test_bfloat16_ends_at_its_round_off_and_not_before():
    ones = ONES.astype(jnp.bfloat16)
    given = 0.95, np.zeros_like(ones), ones
    for solver, (z, info) in programs(grow, ["picard", None])(*given).items():
        assert np.all(info.converged), solver
        assert_allclose(np.asarray(z, np.float32), 20.0, rtol=0.1, err_msg=solver)
    _, info = program(grow, solver="picard", max_steps=3)(*given)
    assert np.all(info.status == MAX_STEPS)


def test_a_solve_that_was_cut_off_has_not_stalled():
    """After ten steps of z' = .95 z + 1 the residual is below 16 epsilons.

    The epsilon of a small leaf does not count for a large one.
    """
    step = lambda p, z, x: jax.tree.map(lambda leaf: 0.95 * leaf + 1.0, z)
    ways = [{"solver": name, "max_steps": 10} for name in ("picard", "damped")]
    ways += [{"solver": "averaged", "max_steps": 10}, {"adjoint": fp.unrolled(10)}]
    # all stop by one rule
    cases = [("bfloat16", "bfloat16", way) for way in ways]
    cases += [("float16", "float16", ways[0]), ("float32", "bfloat16", ways[0])]

    @compiled
    def run():
        ends = []
        for wide, narrow, way in cases:
            start = jnp.zeros((1, 30), wide), jnp.zeros((1, 1), narrow)
            ends.append(solve(step, **way)((), start))
        return ends

    for case, (z, info) in zip(cases, run(), strict=True):
        assert info.status.tolist() == [MAX_STEPS], case
        assert float(z[0][0, 0]) < 10.0, case  # of 20


def test_states_of_every_size_are_solved_in_the_same_steps():
    """f(z) - z of 1e-36 is subnormal, which compiled code takes for 0."""
    ones = rows(1.0)
    usual = growing()(0.5, 0.0 * ones, ones)
    for size in map(np.float32, (1e-36, 1e-30, 1e36)):
        for solver, (z, info) in growing()(0.5, 0.0 * ones, size * ones).items():
            assert info.status.tolist() == [CONVERGED] * 2, (solver, size)
            assert info.steps[0] == usual[solver][1].steps[0], (solver, size)
            error = relative_error(np.asarray(z, np.float64) / size, 2.0 * ones)
            assert error < 3e-5, (solver, size)


def test_a_map_without_a_fixed_point_does_not_converge():
    for drift, start in ((0.1, 0.0), (0.1, 3.0), (0.005, 0.0), (0.001, 0.0)):
        for solver, (_, info) in solve_kinds(drift, start, DRIFT).items():
            assert not np.any(info.converged), (solver, drift, start)
            assert np.all(info.residual > 1e-5), (solver, drift, start)


def test_the_best_state_is_returned():
    """Started at the fixed point of a rotation that grows, every step is worse."""
    turn = np.float32([[0.0, 1.5], [-1.5, 0.0]])
    fixed = np.linalg.solve(np.eye(2) - turn.T, np.ones(2))
    near = np.float32(fixed + np.array([1e-3, 0.0]))
    run = program(lambda p, z, x: z @ p + 1.0, solver="picard", max_steps=30)
    y, info = run(turn, near[None])
    assert relative_error(y[0], near @ turn + 1.0) < 1e-6
    assert info.residual[0] < 3e-3


def test_nan_in_is_nan_out_and_reaches_no_other_example():
    """A NaN of the input, of a parameter or, at the default tolerance, of the start; by
    every solver and in the small space of a factored layer.
    """
    _, small, of_layer = factored()
    x = np.asarray(inputs(8, 8, dtype=jnp.float32))
    for run, (params, start, given) in (
        (stalling(), (A, 0.0 * x, x)),
        (lambda *each: {"factored": of_layer(*each)}, small),
        (
            lambda p, kinds, start: solve_kinds(p, start[:, 0], kinds),
            (2.0, TANH, column(0.5)),
        ),
    ):
        dirty = given.copy()
        no_params = jax.tree.map(lambda leaf: np.nan * np.asarray(leaf), params)
        dirty[1] = np.nan
        clean = run(params, start, given)
        broken = run(no_params, start, given)
        for solver, (z, info) in run(params, start, dirty).items():
            assert np.isnan(z[1]).all(), solver
            assert info.status[1] == NONFINITE, solver
            assert_array_equal(
                np.delete(z, 1, 0), np.delete(clean[solver][0], 1, 0), err_msg=solver
            )
            assert np.isnan(broken[solver][0]).all(), solver


def test_an_overflow_is_told_and_keeps_the_best_state():
    """In two rows exp leaves the range after some steps, in one a map its domain.
    Anderson returns to its best."""
    ends = solve_kinds(2.0, 0.5, [EXP, LEAVES, EXP])
    for solver, (z, info) in ends.items():
        assert info.status.tolist() == [NONFINITE] * 3, solver
        assert np.all((info.steps > 1) & (info.steps < 10)), solver
        assert np.isfinite(z).all(), solver
    _, (params, start, given), run = factored()
    params = params._replace(W=1e4 * params.W, b=np.ones(12, np.float32))
    assert run(params, start, given)[1].status.tolist() == [NONFINITE] * 4
    bare = params._replace(U=None)
    assert program(uj.opteq(8, 12))(bare, start)[1].status.tolist() == [NONFINITE] * 4


def test_states_that_grow_out_of_range_are_no_fixed_points():
    """The reciprocal of its size is subnormal there, and so taken for 0. Of 64
    entries the norm overflows."""
    starts = rows(1.0), np.ones((2, 64), np.float32)
    for x, p in itertools.product(starts, (1.5, 3.0, -2.0, 10.0, 1e6)):
        for solver, (z, info) in growing()(p, 0.0 * x, x).items():
            near = np.abs((1.0 - p) * np.asarray(z, np.float64) - x).max() < 1e-3
            assert near or not np.any(info.converged), (solver, p)


def test_states_that_jump_and_drift_on_do_not_converge():
    """Its square in units of the jump is 0. The drift is a millionth of the state, less
    than the tolerance allows of a state that has not grown."""

    for size in map(np.float32, (1e10, 1e18, 1e22, 1e30, 1e37)):
        for solver, (_, info) in solve_kinds(size, 0.0, JUMP).items():
            assert info.status.tolist() == [MAX_STEPS] * 3, (solver, size)


def test_factored_layers_solve_states_of_any_size_alike():
    """With relu it is positively homogeneous. Squares of these sizes are outside
    float32's range."""
    _, (params, zeros, given), run = factored()
    usual, of_usual = run(params, zeros, given)
    for size in map(np.float32, (1e-25, 1e-15, 1e15, 1e25)):
        z, info = run(params, zeros, size * given)
        assert info.converged.all(), size
        assert np.abs(info.steps - of_usual.steps).max() <= 2, size
        assert relative_error(np.asarray(z, np.float64) / size, usual) < 1e-5, size


def test_states_may_grow_or_shrink_by_any_factor():
    """tanh(2 z) leaves the unstable 0 for 0.957504, the root of z = tanh(2 z)."""
    z, info = solve_kinds(2.0, [1e-6, 1.0, 1e6], TANH)["picard"]
    assert np.all(info.converged)
    assert_allclose(z, 0.95750402, rtol=1e-4)


def test_an_absolute_tolerance_ends_the_solve():
    """Of a step, of unrolled steps and of a factored layer."""
    layer, arguments, of_layer = factored()
    one = np.ones((1, 1), np.float32)

    @compiled
    def run(ones, arguments):
        def plain(*given, **options):
            return solve(grow, solver="picard", **options)(*given)

        return {
            "absolute": plain(0.95, ones, 0.0, atol=1e-3),
            "relative": plain(0.95, ones, 0.0, atol=0.0),
            "both": plain(0.5, 0.0 * one, one, tol=1e-3, atol=2e-3),
            "unrolled": plain(0.9, ones, 0.0, atol=1e-3, adjoint=fp.unrolled(100)),
            "loose": solve(layer, tol=1e-6, atol=1e-1)(*arguments),
        }

    ends = run(ONES, arguments)
    for name in ("absolute", "unrolled", "loose"):
        assert ends[name][1].converged.all(), name
    # z is f of the state that was judged.
    assert 0.9e-3 < 0.05 * np.linalg.norm(ends["absolute"][0]) / 0.95 <= 1.001e-3
    z, info = ends["relative"]
    assert info.status[0] == MAX_STEPS
    assert_allclose(info.residual[0], 1 / 0.95 - 1, rtol=1e-4)
    assert np.abs(z).max() < 1e-4  # the last state all the same
    # |f(z) - z| = 2^-k, at most 2e-3 + 1e-3 * 2 from k = 8 on
    assert ends["both"][1].steps[0] == 9
    assert np.all(ends["loose"][1].steps < of_layer(*arguments)[1].steps)
