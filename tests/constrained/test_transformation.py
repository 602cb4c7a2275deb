"""Primal and dual steps as one optax transformation: every order and formulation
against cvxpy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.constrained.calls import solve
from tests.marks import in_float64
from tests.reference import compiled, jax_array
from unroll_jax.constrained import growing_penalty, take_rows
from unroll_jax.constrained.transformation import ORDERS

KINDS = {"sum": "equal", "bound": "at_most"}
SHAPES = {"sum": np.zeros(1, np.float32), "bound": np.zeros(2, np.float32)}


def test_multipliers_start_at_the_given_numbers():
    start = {"sum": np.array([-2.0]), "bound": 0.5}
    dual = uj.dual_ascent(optax.sgd(0.2), kinds=KINDS)
    optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=SHAPES, start=start)
    prices = uj.multipliers_of(optimizer.init(jnp.zeros(6)))
    assert_array_equal(prices["sum"], [-2.0])
    assert_array_equal(prices["bound"], [0.5, 0.5])


# Of min |z - 2i|^2 subject to Re z = 1, |z|^2 <= 2.25 and |z|^2 <= 9: z, and the price
# of the bound that binds, by hand.
SOLUTION = 1.0 + 1.25**0.5 * 1j
PRICE = 2.0 / 1.25**0.5 - 1.0


@in_float64
@pytest.mark.parametrize("penalty", [None, 1.0], ids=["lagrangian", "augmented"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_and_formulation_ends_at_the_known_solution(order, penalty):
    """Parameters are complex."""

    def problem(z):
        sizes = jnp.abs(z) ** 2 - np.array([2.25, 9.0])
        return jnp.sum(jnp.abs(z - 2j) ** 2), {"sum": z.real - 1.0, "bound": sizes}

    dual = uj.dual_ascent(optax.sgd(0.1), kinds=KINDS, penalty=penalty)
    optimizer = uj.primal_dual(optax.sgd(0.05), dual, violations=SHAPES, order=order)
    start = np.full(1, 0.5 + 0.5j)
    (z, state), _ = solve(optimizer, problem, start, 2000, order=order, kinds=KINDS)
    prices = uj.multipliers_of(state)
    assert_allclose(z, [SOLUTION], atol=1e-5)
    assert_allclose(prices["sum"], [-2.0 - 2.0 * PRICE], atol=1e-5)
    assert_allclose(prices["bound"], [PRICE, 0.0], atol=1e-5)
    violations = compiled(problem)(z)[1]
    report = uj.constraint_report(violations, prices, kinds=KINDS, tolerance=1e-5)
    assert report.feasible
    assert max(group.slackness for group in report.groups) < 1e-5


@pytest.mark.parametrize("order", ORDERS[1:])
def test_strict_violations_move_the_multipliers_in_every_order(order):
    """The surrogate is met and the strict value is 3 everywhere: one step of rate 1
    from 0."""
    optimizer = uj.primal_dual(
        optax.sgd(0.1), uj.dual_ascent(optax.sgd(1.0)), violations=1, order=order
    )

    def problem(x):
        return jnp.sum(x**2), x - 5.0, jnp.full(1, 3.0)

    @jax.jit
    def run(x):
        return optimizer.update(2.0 * x, optimizer.init(x), x, problem=problem)

    updates, state = run(np.ones(1, np.float32))
    assert uj.multipliers_of(state).tolist() == [3.0]
    # Where the multiplier moves first, or both take a trial step, the surrogate's
    # gradient weighs 3 already.
    expected = {
        "primal_dual": -0.2,
        "dual_primal": -0.5,
        "extragradient": -0.1 * (1.6 + 3.0),
    }
    assert_allclose(updates, [expected[order]], rtol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_a_table_move_and_others_stay(order):
    """Four multipliers, of which rows 2 and 0 move, against two."""
    dual = uj.dual_ascent(optax.sgd(0.5), penalty=growing_penalty(1.0))
    rows = np.array([2, 0])
    x = np.float32([1.0, 3.0])
    least = np.float32([0.5, 1.0])
    problem = lambda x: (jnp.sum(x**2), x - least)
    is_simultaneous = order == "simultaneous"
    given = {"violations": x - least} if is_simultaneous else {"problem": problem}

    def step(count, **given):
        optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=count, order=order)
        updates, state = optimizer.update(2.0 * x, optimizer.init(x), x, **given)
        return updates, (uj.multipliers_of(state), state.dual.penalty)

    @compiled
    def run():
        updates, table = step(4, rows=rows, **given)
        return updates, table, take_rows(table, rows), step(2, **given)

    updates, table, taken, (expected, few) = run()
    assert_allclose(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(taken, few, rtol=1e-6)
    assert np.all(few[0] > 0.0)
    assert np.all(few[1] > 1.0)
    assert [leaf[1::2].tolist() for leaf in table] == [[0.0, 0.0], [1.0, 1.0]]


def test_extragradient_keeps_moments_as_extra_adam_does():
    """Against ExtraAdam in NumPy: both updates go into the moments, both from the
    same parameters."""
    dual = uj.dual_ascent(optax.sgd(0.2), kinds="equal")
    optimizer = uj.primal_dual(
        optax.adam(0.1), dual, violations=jnp.zeros(()), order="extragradient"
    )

    def problem(x):
        return jnp.sum(x**2), x[0] + x[1] - 1.0

    (x, state), _ = solve(
        optimizer, problem, jax_array([1.0, -2.0]), 5, order="extragradient"
    )
    other, price, mean, square, count = (
        np.array([1.0, -2.0]),
        0.0,
        np.zeros(2),
        np.zeros(2),
        0,
    )

    def adam(gradient):
        nonlocal mean, square, count
        count += 1
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        return (
            -0.1
            * (mean / (1 - 0.9**count))
            / (np.sqrt(square / (1 - 0.999**count)) + 1e-8)
        )

    for _ in range(5):
        ahead = other + adam(2 * other + price)
        ahead_price = price + 0.2 * (other.sum() - 1.0)
        other = other + adam(2 * ahead + ahead_price)
        price = price + 0.2 * (ahead.sum() - 1.0)
    assert_allclose(x, other, rtol=1e-5)
    assert_allclose(uj.multipliers_of(state), price, rtol=1e-5)
