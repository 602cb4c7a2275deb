"""Lagrangians of layer losses against NumPy, and where training on them ends against
cvxpy."""

import functools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.constrained.calls import solve
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.constrained import nu_pi, proportional_integral

pytestmark = in_float64
ALPHA = (0.2, 0.3, 0.1)
REFERENCE = 4.0
# f_l(x) = k_l/2 |x - p_l|^2 + h_l. The curvatures grow: every f_l - (1 - alpha_l)
# f_{l-1} is convex.
CURVATURES = np.array([0.5, 1.0, 1.5, 2.0])
CENTRES = np.array([[1.4, 0.1], [0.3, 0.9], [0.4, 1.5], [-1.2, 0.9]])
OFFSETS = np.array([3.0, 1.2, 0.3, 0.1])
LOSSES = np.array([4.7, 3.0, 3.5, 1.2])
MULTIPLIERS = np.array([0.3, 2.0, 0.0, 0.7])
BETA, STEPS = 0.5, 20_000
CONSTRAINTS = uj.descent_constraints(ALPHA, reference=REFERENCE)
RUNS = {
    "sgd": optax.sgd(0.02),
    "adam": optax.adam(optax.cosine_decay_schedule(0.02, STEPS)),
    "proportional_integral": proportional_integral(0.02, 0.2),
    "nu_pi": nu_pi(0.02, 0.2, nu=0.5),
}


def known_solution(resilience):
    """x* and lambda* by cvxpy: each constraint written out as the convex quadratic
    that it is."""
    x = cvxpy.Variable(2)
    slacks = cvxpy.Variable(4, nonneg=True)

    def loss(weights):
        pulls = weights * CURVATURES
        constant = 0.5 * pulls @ np.sum(CENTRES**2, axis=1) + weights @ OFFSETS
        square = 0.5 * np.sum(pulls) * cvxpy.sum_squares(x)
        return square - (pulls @ CENTRES) @ x + constant

    # f_0, and f_l - (1 - alpha_l) f_{l-1}
    bounded = np.eye(4) - np.diag(1.0 - np.array(ALPHA), -1)
    limits = slacks if resilience else np.zeros(4)
    rows = [loss(weights) for weights in bounded]
    rows[0] -= REFERENCE
    bounds = [row <= limit for row, limit in zip(rows, limits, strict=True)]
    cost = loss(np.eye(4)[3])
    if resilience:
        cost += 0.5 * resilience * cvxpy.sum_squares(slacks)
    cvxpy.Problem(cvxpy.Minimize(cost), bounds).solve()
    prices = [np.ravel(bound.dual_value)[0] for bound in bounds]
    return x.value, np.array(prices), slacks.value


def problem(x):
    losses = jnp.sum(0.5 * CURVATURES[:, None] * (x - CENTRES) ** 2, axis=1) + OFFSETS
    return losses[-1], CONSTRAINTS(losses)


def test_the_lagrangian_equals_its_definition():
    """w_l = [l = L] + lambda_l - (1 - alpha_{l+1}) lambda_{l+1}. No gradient flows
    to the multipliers."""
    alpha = (0.1, 0.5, 0.9)
    constraints = uj.descent_constraints(alpha, reference=5.5)

    def value(losses, multipliers, normalise=False):
        return uj.lagrangian(
            losses[-1], constraints(losses), multipliers, normalise=normalise
        )

    value_and_grad = jax.value_and_grad(value, (0, 1))

    @compiled
    def run(*given):
        return (*value_and_grad(*given), value(*given, normalise=True))

    actual, (weights, in_multipliers), scaled = run(LOSSES, MULTIPLIERS)
    expected = LOSSES[-1] + MULTIPLIERS @ reference.violations(LOSSES, alpha, 5.5)
    assert_allclose(actual, expected, rtol=1e-14)
    assert_allclose(scaled, expected / (1.0 + MULTIPLIERS.sum()), rtol=1e-14)
    assert_allclose(weights, reference.layer_weights(MULTIPLIERS, alpha), rtol=1e-14)
    assert not np.any(in_multipliers)


def test_the_augmented_lagrangian_has_gradients_of_next_multipliers():
    """The gradient of the Lagrangian at m = [lambda + rho c]_+. Its value is f_L +
    (|m|^2 - |lambda|^2) / (2 rho)."""
    constraints = uj.descent_constraints(0.22, reference=5.5)
    to_come = np.maximum(
        MULTIPLIERS + 0.7 * reference.violations(LOSSES, 0.22, 5.5), 0.0
    )

    @compiled
    @jax.value_and_grad
    def run(losses):
        return uj.lagrangian(losses[-1], constraints(losses), MULTIPLIERS, penalty=0.7)

    value, gradient = run(LOSSES)
    assert_allclose(
        value,
        LOSSES[-1] + (to_come @ to_come - MULTIPLIERS @ MULTIPLIERS) / 1.4,
        rtol=1e-13,
    )
    assert_allclose(gradient, reference.layer_weights(to_come, 0.22), rtol=1e-13)


def test_the_augmented_lagrangian_of_equalities_equals_its_definition():
    violations = np.array([0.5, -2.0])
    multipliers = np.array([3.0, -1.0])
    rho = np.array([0.5, 4.0])
    lagrangian = compiled(functools.partial(uj.lagrangian, 1.0, kinds="equal"))
    value = lagrangian(violations, multipliers, penalty=rho)
    assert float(value) == pytest.approx(
        1.0 + multipliers @ violations + 0.5 * rho @ violations**2
    )


def test_the_primal_dual_loop_ends_at_the_known_solution():
    """One gradient step on x, one dual step, in turns: as in training."""
    cases = [(name, None, False) for name in RUNS]
    cases += [("sgd", BETA, False), ("sgd", None, True)]
    primal = optax.sgd(0.05)

    def end(name, resilience, normalise):
        dual = uj.dual_ascent(RUNS[name], resilience=resilience)
        optimizer = uj.primal_dual(primal, dual, violations=4, order="primal_dual")
        options = {"order": "primal_dual", "normalise": normalise}
        (x, state), _ = solve(optimizer, problem, jnp.zeros(2), STEPS, **options)
        return x, state.dual.multipliers

    results = compiled(lambda: [end(*case) for case in cases])()
    for case, (x, found) in zip(cases, results, strict=True):
        _, resilience, _ = case
        name = str(case)
        solution, multipliers, slacks = known_solution(resilience)
        # active constraints and inactive ones
        assert np.sum(multipliers > 0.05) >= 2, name
        assert np.sum(multipliers < 1e-6) >= 1, name
        assert_allclose(x, solution, atol=1e-3, err_msg=name)
        assert_allclose(found, multipliers, atol=1e-3, err_msg=name)
        if resilience is not None:
            assert_allclose(found / resilience, slacks, atol=1e-3, err_msg=name)


def test_the_lagrangian_with_slacks_equals_its_definition():
    slacks = np.array([0.1, 0.0, 2.0, 0.3])

    def value(slacks, multipliers):
        at = problem(jnp.ones(2))
        return uj.lagrangian(*at, multipliers, slacks=slacks, resilience=BETA), at

    run = compiled(jax.value_and_grad(value, (0, 1), has_aux=True))
    (actual, (objective, violations)), (in_slacks, in_multipliers) = run(
        slacks, MULTIPLIERS
    )
    expected = (
        objective + MULTIPLIERS @ (violations - slacks) + 0.5 * BETA * slacks @ slacks
    )
    assert_allclose(actual, expected, rtol=1e-14)
    assert_allclose(in_slacks, BETA * slacks - MULTIPLIERS, rtol=1e-13, atol=1e-15)
    assert not np.any(in_multipliers)
