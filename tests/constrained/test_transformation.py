"""Primal and dual steps as one optax transformation: every order and formulation
against cvxpy."""

import functools

import chex
import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.constrained.calls import solve
from tests.marks import in_float64
from unroll_jax.constrained import growing_penalty, take_rows
from unroll_jax.constrained.transformation import ORDERS

KINDS = {"sum": "equal", "bound": "at_most"}
SHAPES = {"sum": jnp.zeros(2), "bound": jnp.zeros(3)}


@functools.cache
def program():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    slope = rng.normal(size=6)
    rows = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    a = rows[:2]
    g = rows[2:5]
    point = rng.normal(size=6)
    b = a @ point
    h = g @ point + np.array([-0.5, 0.0, 2.0])
    matrix = root @ root.T / 6.0 + np.eye(6)
    x = cvxpy.Variable(6)
    constraints = [a @ x == b, g @ x <= h]
    cvxpy.Problem(
        cvxpy.Minimize(0.5 * cvxpy.quad_form(x, matrix) + slope @ x), constraints
    ).solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)

    def problem(x):
        return 0.5 * x @ matrix @ x + slope @ x, {"sum": a @ x - b, "bound": g @ x - h}

    return (
        problem,
        x.value,
        {"sum": constraints[0].dual_value, "bound": constraints[1].dual_value},
    )


def test_multipliers_start_at_the_given_numbers():
    start = {"sum": np.array([1.0, -2.0]), "bound": 0.5}
    dual = uj.dual_ascent(optax.sgd(0.2), kinds=KINDS)
    optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=SHAPES, start=start)
    prices = uj.multipliers_of(optimizer.init(jnp.zeros(6)))
    assert_array_equal(prices["sum"], [1.0, -2.0])
    assert_array_equal(prices["bound"], [0.5, 0.5, 0.5])


@in_float64
@pytest.mark.parametrize("penalty", [None, 1.0], ids=["lagrangian", "augmented"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_and_formulation_ends_at_the_solution_of_cvxpy(order, penalty):
    problem, solution, prices = program()
    dual = uj.dual_ascent(optax.sgd(0.2), kinds=KINDS, penalty=penalty)
    optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=SHAPES, order=order)
    (x, state), _ = solve(
        optimizer, problem, jnp.zeros(6), 3000, order=order, kinds=KINDS
    )
    assert np.any(prices["bound"] > 0.01)
    assert_allclose(x, solution, atol=1e-5)
    for name, expected in prices.items():
        assert_allclose(
            uj.multipliers_of(state)[name], expected, atol=1e-5, err_msg=name
        )
    report = uj.constraint_report(
        problem(x)[1], uj.multipliers_of(state), kinds=KINDS, tolerance=1e-5
    )
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
    x = jnp.array([1.0, 3.0])
    problem = lambda x: (jnp.sum(x**2), x - jnp.array([0.5, 1.0]))
    is_simultaneous = order == "simultaneous"
    given = {"violations": problem(x)[1]} if is_simultaneous else {"problem": problem}

    def step(count, **given):
        optimizer = uj.primal_dual(optax.sgd(0.1), dual, violations=count, order=order)
        updates, state = optimizer.update(2.0 * x, optimizer.init(x), x, **given)
        return updates, (uj.multipliers_of(state), state.dual.penalty)

    run = jax.jit(lambda: [step(4, rows=rows, **given), step(2, **given)])
    (updates, table), (expected, few) = run()
    assert_allclose(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(take_rows(table, rows), few, rtol=1e-6)
    assert np.all(few[0] > 0.0)
    assert np.all(few[1] > 1.0)
    assert [leaf[1::2].tolist() for leaf in table] == [[0.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize("order", ORDERS)
def test_complex_parameters_end_at_the_solution_in_every_order(order):
    """min |z - 2i|^2 subject to Re z = 1 and |z| <= 1.5: z = 1 + sqrt(1.25) i."""

    def problem(z):
        return jnp.sum(jnp.abs(z - 2j) ** 2), {
            "real": z.real - 1.0,
            "size": jnp.abs(z) ** 2 - 2.25,
        }

    shapes = {"real": jnp.zeros(1), "size": jnp.zeros(1)}
    dual = uj.dual_ascent(optax.sgd(0.1), kinds={"real": "equal", "size": "at_most"})
    optimizer = uj.primal_dual(optax.sgd(0.05), dual, violations=shapes, order=order)
    (z, _), _ = solve(optimizer, problem, jnp.full(1, 0.5 + 0.5j), 2000, order=order)
    assert_allclose(z, [1.0 + 1.25**0.5 * 1j], atol=1e-4)


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
        optimizer, problem, jnp.array([1.0, -2.0]), 5, order="extragradient"
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
