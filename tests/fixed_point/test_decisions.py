"""The decisions of the loop, one by one: to accelerate, to check late, to give up, to
return to the best state, and to end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.fixed_point import problems
from tests.fixed_point.problems import finish
from tests.marks import types_unchecked
from tests.reference import compiled, gaussian
from unroll_jax import fixed_point as fp
from unroll_jax.fixed_point import decisions, loop
from unroll_jax.fixed_point.decisions import ACCELERATED, ENDED, GIVEN_UP, PLAIN
from unroll_jax.fixed_point.status import MAX_STEPS
from unroll_jax.fixed_point.stopping import StopRule

pytestmark = types_unchecked
RULE = StopRule(1e-5, 200, float(np.finfo(np.float32).eps))
WIDTH = 48


@functools.cache
def programs(max_steps, kinked):
    """One block of the loop, and its first carry, for z' = z A + x or `kink`."""
    rule = RULE._replace(max_steps=max_steps)
    solver = fp.anderson()

    def block(A, x, carry):
        apply = kink if kinked else lambda z: z @ A + x
        return loop._run_block(apply, solver, rule, carry)

    return compiled(block), compiled(lambda z: loop._start(z, solver, rule))


def follow(A, x, z, *, max_steps=200, kinked=False):
    """The carries of the loop, the first and the last among them."""
    block, start = programs(max_steps, kinked)
    carries = [start(np.float32(z))]
    while schedule(carries[-1]).phase != ENDED:
        carries.append(block(np.float32(A), np.float32(x), carries[-1]))
    return carries


def schedule(carry):
    return decisions.Schedule(*np.asarray(carry.schedule).tolist())


def phases(carries):
    return [schedule(carry).phase for carry in carries]


def blocks(carries):
    return [schedule(carry).block for carry in carries[:-1]]


def solution(A, x):
    return np.linalg.solve(np.eye(len(A)) - A.T, x.T).T


def drawn(*shape):
    return gaussian(*shape, seed=5)


def spectrum(least, most):
    return problems.spectrum(least, most, WIDTH)


def test_rows_that_contract_quickly_take_plain_steps_to_the_end():
    """They are checked after the first step, then every four, and sooner near the
    end."""
    A = spectrum(-0.5, 0.5)
    x = drawn(2, WIDTH)
    carries = follow(A, x, 0.0 * x)
    assert set(phases(carries[:-1])) == {PLAIN}
    several = decisions.CHECK_INTERVAL
    assert blocks(carries)[:4] == [1, several, several, several]
    assert 1 in blocks(carries)[4:]
    assert_allclose(carries[-1].z, solution(A, x), atol=1e-3)
    assert max(carries[-1].residual) <= RULE.tol


@pytest.mark.parametrize(
    ("A", "error"),
    [(spectrum(0.85, 0.95), 1.0), (-1.2 * np.eye(WIDTH), 1e-2)],
    ids=["slow", "rises"],
)
def test_rows_that_are_slow_or_rise_accelerate_after_their_block(A, error):
    x = drawn(2, WIDTH)
    carries = follow(A, x, solution(A, x) + error * drawn(2, WIDTH))
    assert phases(carries)[:3] == [PLAIN, PLAIN, ACCELERATED]
    assert schedule(carries[2]).number == 1 + decisions.CHECK_INTERVAL
    assert set(blocks(carries)[2:]) == {1}
    assert_allclose(carries[-1].z, solution(A, x), rtol=2e-3, atol=1e-3)


def test_a_slow_row_stays_plain_if_few_steps_remain():
    """.95^32 is about .2: enough for the last digit, and not for three."""
    A = 0.95 * np.eye(WIDTH)
    x = drawn(2, WIDTH)
    for error, accelerates in ((1e-3, False), (1e-1, True)):
        carries = follow(A, x, (1.0 + error) * 20.0 * x)
        assert (ACCELERATED in phases(carries)) == accelerates, error


def test_acceleration_that_gains_nothing_is_given_up_for_good():
    """Of a rotation in many planes, five differences tell little."""
    A = 0.9 * np.linalg.qr(drawn(WIDTH, WIDTH))[0]
    x = drawn(2, WIDTH)
    carries = follow(A, x, 0.0 * x)
    seen = phases(carries)
    begin = seen.index(GIVEN_UP)
    assert seen.count(ACCELERATED) % decisions.TRIAL_STEPS == 0
    assert set(seen[begin:-1]) == {GIVEN_UP}
    assert_allclose(carries[-1].z, solution(A, x), atol=1e-3)


def test_accelerated_solves_take_no_more_evaluations_than_allowed():
    calls = []

    @compiled
    def solve(A, x, most):
        def apply(z):
            jax.debug.callback(lambda: calls.append(1))
            return z @ A + x

        rule = RULE._replace(max_steps=most)
        return loop.iterate(apply, 0.0 * x, fp.anderson(), rule)[1]

    x = drawn(2, WIDTH)
    rotation = 0.99 * np.linalg.qr(drawn(WIDTH, WIDTH))[0]  # which is given up
    for A in (spectrum(0.9, 0.999), rotation):
        for most in range(1, 24):
            calls.clear()
            info = finish(solve(A, x, most))
            assert len(calls) == most
            assert info.steps.tolist() == [most] * 2
            assert info.status.tolist() == [MAX_STEPS] * 2


def test_a_row_that_is_lost_as_acceleration_is_given_up_returns():
    """From a state a thousand times as large, plain steps would raise the scale."""
    A = 0.9 * np.linalg.qr(drawn(WIDTH, WIDTH))[0]
    x = drawn(2, WIDTH)
    carries = follow(A, x, 0.0 * x)
    last = carries[phases(carries).index(GIVEN_UP) - 1]
    lost = last._replace(z=last.z * np.float32([[1.0], [1e3]]))
    block, _ = programs(200, kinked=False)
    after = block(np.float32(A), np.float32(x), lost)
    assert schedule(after).phase == GIVEN_UP
    assert_allclose(after.z[0], last.z[0] @ A + x[0], rtol=1e-4, atol=1e-4)
    assert_array_equal(after.z[1], last.best.z[1])


def test_the_next_phase_follows_from_one_check():
    """Rows: the last phase, a trial's end, then active, slow, gains; the next phase."""
    rows = [
        (PLAIN, 0, True, False, False, PLAIN),
        (PLAIN, 0, True, True, False, ACCELERATED),
        (ACCELERATED, 0, True, True, False, ACCELERATED),
        (ACCELERATED, 1, True, True, True, ACCELERATED),
        (ACCELERATED, 1, True, True, False, GIVEN_UP),
        (GIVEN_UP, 0, True, True, False, GIVEN_UP),
        (ACCELERATED, 1, False, True, False, ENDED),
    ]
    phase, is_trial_end, *flags, after = map(np.array, zip(*rows, strict=True))
    last = decisions.Schedule(phase, 1, 20, 10, is_trial_end)
    assert_array_equal(compiled(decisions.next_phase)(last, *flags), after)


def test_a_trial_gains_below_half_of_what_plain_steps_leave():
    """Plain steps of .9 leave .9^10 = .35 of a gap of 2, of which half is .349."""
    gap, base = np.float32([0.34, 0.36]), np.float32(2.0)
    gained = compiled(decisions.has_gained)(gap, base, np.float32(0.9))
    assert gained.tolist() == [True, False]


def test_a_row_returns_beyond_twice_its_least_gap():
    """Plain steps that triple the gap allow six times. NaN is beyond all, and a row
    without a best state or that has just returned goes on."""
    rows = [
        (1.9, 0.5, 1.0, 3, False),
        (2.1, 0.5, 1.0, 3, True),
        (5.9, 3.0, 1.0, 3, False),
        (6.1, 3.0, 1.0, 3, True),
        (np.nan, 0.5, 1.0, 3, True),
        (2.1, 0.5, 1.0, 0, False),
        (2.1, 0.5, np.inf, 3, False),
    ]
    *arguments, expected = map(np.array, zip(*rows, strict=True))
    returns = compiled(decisions.must_return)(*arguments)
    assert_array_equal(returns, expected)


def kink(z):
    """A nearly constant drift to 3, and a fixed point behind it, at 4."""
    return z + jnp.where(z < 3.0, 0.1 - 1e-3 * z, 0.097 * (4.0 - z))


def test_rows_led_astray_return_to_their_best_state_once():
    """The drift seems to end at 100, where f(z) - z is a hundred times as large."""
    carries = follow(np.eye(1), np.zeros((1, 1)), np.zeros((1, 1)), kinked=True)
    ages = [int(carry.best.age[0]) for carry in carries]
    updates = [schedule(carry).updates for carry in carries]
    returned = [k for k, age in enumerate(ages) if age == 0 and updates[k] > 0]
    assert returned
    for k in returned:
        assert_array_equal(carries[k].z, carries[k].best.z)
        assert ages[k + 1] == updates[k + 1] - updates[k]
    assert float(carries[-1].residual[0]) <= RULE.tol
    assert_allclose(carries[-1].z, 4.0, atol=1e-3)
