"""Primal and dual steps as one optax transformation: every order and formulation
against cvxpy."""

import jax.numpy as jnp
import numpy as np
import optax
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.constrained.calls import solve
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.constrained import growing_penalty
from unroll_jax.constrained.transformation import ORDERS

KINDS = {"sum": "equal", "bound": "at_most"}
SHAPES = {"sum": np.zeros(1, np.float32), "bound": np.zeros(2, np.float32)}


def test_multipliers_start_at_the_given_numbers():
    start = {"sum": np.array([-2.0]), "bound": 0.5}
    dual = uj.dual_ascent(optax.sgd(0.2), kinds=KINDS)
    optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=SHAPES, start=start)
    start_of = compiled(lambda x: uj.multipliers_of(optimizer.init(x)))
    prices = start_of(np.zeros(6))
    assert_array_equal(prices["sum"], [-2.0])
    assert_array_equal(prices["bound"], [0.5, 0.5])


# Of min |z - 2i|^2 subject to Re z = 1, |z|^2 <= 2.25 and |z|^2 <= 9: z, and the price
# of the bound that binds, by hand.
SOLUTION = 1.0 + 1.25**0.5 * 1j
PRICE = 2.0 / 1.25**0.5 - 1.0


@in_float64
def test_every_order_and_formulation_ends_at_the_known_solution():
    """Parameters are complex."""

    def problem(z):  # of JAX or NumPy
        sizes = abs(z) ** 2 - np.array([2.25, 9.0])
        return (abs(z - 2j) ** 2).sum(), {"sum": z.real - 1.0, "bound": sizes}

    def end(start, order, penalty):
        dual = uj.dual_ascent(optax.sgd(0.1), kinds=KINDS, penalty=penalty)
        primal = optax.sgd(0.05)
        optimizer = uj.primal_dual(primal, dual, violations=SHAPES, order=order)
        (z, state), _ = solve(optimizer, problem, start, 2000, order=order, kinds=KINDS)
        return z, uj.multipliers_of(state)

    cases = [(order, penalty) for order in ORDERS for penalty in (None, 1.0)]
    run = compiled(lambda start: [end(start, *case) for case in cases])
    for case, (z, prices) in zip(cases, run(np.full(1, 0.5 + 0.5j)), strict=True):
        name = str(case)
        assert_allclose(z, [SOLUTION], atol=1e-5, err_msg=name)
        assert_allclose(prices["sum"], [-2.0 - 2.0 * PRICE], atol=1e-5, err_msg=name)
        assert_allclose(prices["bound"], [PRICE, 0.0], atol=1e-5, err_msg=name)
        report = uj.constraint_report(
            problem(z)[1], prices, kinds=KINDS, tolerance=1e-5
        )
        assert report.feasible, name
        assert max(group.slackness for group in report.groups) < 1e-5, name


def test_strict_violations_move_the_multipliers_in_every_order():
    """The surrogate is met and the strict value is 3 everywhere: one step of rate 1
    from 0."""
    # Where the multiplier moves first, or both take a trial step, the surrogate's
    # gradient weighs 3 already.
    expected = {
        "primal_dual": -0.2,
        "dual_primal": -0.5,
        "extragradient": -0.1 * (1.6 + 3.0),
    }
    dual = uj.dual_ascent(optax.sgd(1.0))

    def problem(x):
        return jnp.sum(x**2), x - 5.0, jnp.full(1, 3.0)

    def step(x, order):
        optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=1, order=order)
        updates, state = optimizer.update(
            2.0 * x, optimizer.init(x), x, problem=problem
        )
        return updates, uj.multipliers_of(state)

    run = compiled(lambda x: {order: step(x, order) for order in expected})
    for order, (updates, prices) in run(np.ones(1, np.float32)).items():
        assert prices.tolist() == [3.0], order
        assert_allclose(updates, [expected[order]], rtol=1e-6, err_msg=order)


def test_rows_of_a_table_move_and_others_stay():
    """Four multipliers, of which rows 2 and 0 move, against two."""
    dual = uj.dual_ascent(optax.sgd(0.5), penalty=growing_penalty(1.0))
    rows = np.array([2, 0])
    x = np.float32([1.0, 3.0])
    least = np.float32([0.5, 1.0])
    problem = lambda x: (jnp.sum(x**2), x - least)

    def step(order, count, **given):
        optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=count, order=order)
        is_simultaneous = order == "simultaneous"
        given |= {"violations": x - least} if is_simultaneous else {"problem": problem}
        updates, state = optimizer.update(2.0 * x, optimizer.init(x), x, **given)
        return updates, (uj.multipliers_of(state), state.dual.penalty)

    @compiled
    def run():
        return {order: (step(order, 4, rows=rows), step(order, 2)) for order in ORDERS}

    for order, ((updates, table), (expected, few)) in run().items():
        assert_allclose(updates, expected, rtol=1e-6, err_msg=order)
        for leaf, moved, still in zip(table, few, (0.0, 1.0), strict=True):
            assert_allclose(leaf[rows], moved, rtol=1e-6, err_msg=order)
            assert np.all(moved > still), order
            assert leaf[1::2].tolist() == [still, still], order


def test_extragradient_keeps_moments_as_extra_adam_does():
    """Against ExtraAdam in NumPy: both updates go into the moments, both from the
    same parameters."""
    dual = uj.dual_ascent(optax.sgd(0.2), kinds="equal")
    optimizer = uj.primal_dual(
        optax.adam(0.1), dual, violations=jnp.zeros(()), order="extragradient"
    )

    def problem(x):
        return jnp.sum(x**2), x[0] + x[1] - 1.0

    start = np.array([1.0, -2.0])
    (x, state), _ = solve(optimizer, problem, start, 5, order="extragradient")
    decay = np.array([[0.9], [0.999]])
    moments = np.zeros((2, 2))

    def adam(gradient, count):
        nonlocal moments
        moments = decay * moments + (1.0 - decay) * np.stack([gradient, gradient**2])
        mean, square = moments / (1.0 - decay**count)
        return -0.1 * mean / (np.sqrt(square) + 1e-8)

    other = start
    price = 0.0
    for count in range(1, 11, 2):
        ahead = other + adam(2.0 * other + price, count)
        ahead_price = price + 0.2 * (other.sum() - 1.0)
        other = other + adam(2.0 * ahead + ahead_price, count + 1)
        price = price + 0.2 * (ahead.sum() - 1.0)
    assert_allclose(x, other, rtol=1e-5)
    assert_allclose(uj.multipliers_of(state), price, rtol=1e-5)
