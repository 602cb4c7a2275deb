"""Lagrangians of layer losses against NumPy, and where training on them ends against cvxpy."""

import itertools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests import reference
from tests.constrained.calls import solve
from unroll_jax.constrained import nu_pi, proportional_integral
from unroll_jax.constrained.lagrangian import optimal_slacks

pytestmark = pytest.mark.usefixtures("x64")
ALPHA, REFERENCE = (0.2, 0.3, 0.1), 4.0
# f_l(x) = k_l/2 |x - p_l|^2 + h_l. The curvatures grow: every f_l - (1 - alpha_l) f_{l-1} is convex.
CURVATURES = np.array([0.5, 1.0, 1.5, 2.0])
CENTRES = np.array([[1.4, 0.1], [0.3, 0.9], [0.4, 1.5], [-1.2, 0.9]])
OFFSETS, LOSSES = np.array([3.0, 1.2, 0.3, 0.1]), np.array([4.7, 3.0, 3.5, 1.2])
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
    """x* and lambda* by cvxpy: each constraint written out as the convex quadratic that it is."""
    x, slacks = cvxpy.Variable(2), cvxpy.Variable(4, nonneg=True)

    def loss(weights):
        square = 0.5 * sum(w * k for w, k in zip(weights, CURVATURES, strict=True))
        linear = sum(w * k * p for w, k, p in zip(weights, CURVATURES, CENTRES, strict=True))
        constant = sum(
            w * (0.5 * k * p @ p + h) for w, k, p, h in zip(weights, CURVATURES, CENTRES, OFFSETS, strict=True)
        )
        return square * cvxpy.sum_squares(x) - linear @ x + constant

    weights = np.eye(4)
    rows = [loss(weights[0]) - REFERENCE]
    rows += [loss(weights[i + 1] - (1.0 - ALPHA[i]) * weights[i]) for i in range(3)]
    bounds = [row <= (0.0 if resilience is None else slacks[i]) for i, row in enumerate(rows)]
    cost = loss(weights[3]) + (0.0 if resilience is None else 0.5 * resilience * cvxpy.sum_squares(slacks))
    cvxpy.Problem(cvxpy.Minimize(cost), bounds).solve()
    return x.value, np.array([np.ravel(bound.dual_value)[0] for bound in bounds]), slacks.value


def problem(x):
    losses = jnp.sum(0.5 * CURVATURES[:, None] * (x - CENTRES) ** 2, axis=1) + OFFSETS
    return losses[-1], CONSTRAINTS(losses)


@pytest.mark.parametrize("alpha", [0.22, (0.1, 0.5, 0.9)], ids=str)
def test_the_lagrangian_equals_its_definition_and_its_weights_are_those_written_out_by_hand(alpha):
    """w_l = [l = L] + lambda_l - (1 - alpha_{l+1}) lambda_{l+1}; no gradient flows to the multipliers."""
    constraints = uj.descent_constraints(alpha, reference=5.5)

    def value(losses, multipliers, normalise=False):
        return uj.lagrangian(losses[-1], constraints(losses), multipliers, normalise=normalise)

    value_and_grad = jax.value_and_grad(value, (0, 1))
    run = jax.jit(lambda *given: (*value_and_grad(*given), value(*given, normalise=True)))
    actual, (weights, in_multipliers), scaled = run(LOSSES, MULTIPLIERS)
    expected = LOSSES[-1] + MULTIPLIERS @ reference.violations(LOSSES, alpha, 5.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-14)
    np.testing.assert_allclose(scaled, expected / (1.0 + MULTIPLIERS.sum()), rtol=1e-14)
    np.testing.assert_allclose(weights, reference.layer_weights(MULTIPLIERS, alpha), rtol=1e-14)
    assert not np.any(in_multipliers)


def test_its_gradient_takes_one_backward_pass():
    """The layer runs backward as often for the Lagrangian of all layers as for only the last loss."""
    backward = 0

    @jax.custom_vjp
    def layer(weight, y):
        return jnp.tanh(weight * y)

    def reverse(saved, cotangent):
        nonlocal backward
        backward += 1
        weight, y = saved
        slope = cotangent * (1.0 - jnp.tanh(weight * y) ** 2)
        return jnp.sum(slope * y), slope * weight

    layer.defvjp(lambda weight, y: (layer(weight, y), (weight, y)), reverse)
    constraints = uj.descent_constraints(0.2, reference=1.0)

    def losses(weights):
        outputs = itertools.accumulate(weights, lambda y, weight: layer(weight, y), initial=jnp.linspace(0.1, 1.0, 5))
        return jnp.stack([jnp.mean(output**2) for output in outputs])

    def value(weights):
        layers = losses(weights)
        return uj.lagrangian(layers[-1], constraints(layers), MULTIPLIERS)

    weights = [0.9, 0.8, 0.7]
    gradient = jax.jit(jax.grad(value))(weights)
    assert backward == 3  # once for each layer
    jacobian = jax.jit(jax.jacobian(losses))(weights)
    by_layer = reference.layer_weights(MULTIPLIERS, 0.2)
    np.testing.assert_allclose(gradient, [by_layer @ np.asarray(column) for column in jacobian], rtol=1e-12)


def test_the_augmented_lagrangian_has_the_gradient_of_the_multipliers_to_come():
    """The gradient of the Lagrangian at m = [lambda + rho c]_+; its value is f_L + (|m|^2 - |lambda|^2) / (2 rho)."""
    constraints = uj.descent_constraints(0.22, reference=5.5)
    to_come = np.maximum(MULTIPLIERS + 0.7 * reference.violations(LOSSES, 0.22, 5.5), 0.0)

    @jax.jit
    @jax.value_and_grad
    def run(losses):
        return uj.augmented_lagrangian(losses[-1], constraints(losses), MULTIPLIERS, penalty=0.7)

    value, gradient = run(LOSSES)
    np.testing.assert_allclose(value, LOSSES[-1] + (to_come @ to_come - MULTIPLIERS @ MULTIPLIERS) / 1.4, rtol=1e-13)
    np.testing.assert_allclose(gradient, reference.layer_weights(to_come, 0.22), rtol=1e-13)


def test_the_augmented_lagrangian_of_equalities_equals_its_definition():
    violations, multipliers, rho = np.array([0.5, -2.0]), np.array([3.0, -1.0]), np.array([0.5, 4.0])
    value = uj.augmented_lagrangian(1.0, violations, multipliers, penalty=rho, kinds="equal")
    assert float(value) == pytest.approx(1.0 + multipliers @ violations + 0.5 * rho @ violations**2)


def test_the_method_of_multipliers_needs_few_dual_steps():
    """40 dual steps, each after the primal problem is solved; plain dual ascent at this rate swings without end."""
    dual = uj.dual_ascent(None, penalty=20.0)

    def outer(carry, _):
        x, duals = carry

        def descend(x, _):
            value = lambda x: uj.augmented_lagrangian(*problem(x), duals.multipliers, penalty=20.0)  # noqa: E731
            return x - 0.003 * jax.grad(value)(x), None

        x, _ = jax.lax.scan(descend, x, length=2000)
        return (x, dual.update(duals, problem(x)[1])), None

    (x, duals), _ = jax.jit(lambda start: jax.lax.scan(outer, start, length=40))((jnp.zeros(2), dual.init(4)))
    solution, multipliers, _ = known_solution(None)
    np.testing.assert_allclose(x, solution, atol=1e-4)
    np.testing.assert_allclose(duals.multipliers, multipliers, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "resilience", "normalise"),
    [*((name, None, False) for name in RUNS), ("sgd", BETA, False), ("sgd", None, True)],
)
def test_the_primal_dual_loop_ends_at_the_known_solution(name, resilience, normalise):
    """One gradient step on x, one dual step, in turns: as in training."""
    dual = uj.dual_ascent(RUNS[name], resilience=resilience)
    optimizer = uj.primal_dual(optax.sgd(0.05), dual, violations=4, order="primal_dual")
    (x, state), _ = solve(optimizer, problem, jnp.zeros(2), STEPS, order="primal_dual", normalise=normalise)
    solution, multipliers, slacks = known_solution(resilience)
    assert np.sum(multipliers > 0.05) >= 2  # active constraints
    assert np.sum(multipliers < 1e-6) >= 1  # and inactive ones
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(state.dual.multipliers, multipliers, atol=1e-3)
    if resilience is not None:
        np.testing.assert_allclose(optimal_slacks(state.dual.multipliers, resilience), slacks, atol=1e-3)


ADAM = optax.adam(optax.cosine_decay_schedule(0.01, STEPS))


@pytest.mark.parametrize(("optimizer", "restart"), [(ADAM, 0), (optax.sgd(0.05), 500)], ids=["adam", "restarts"])
def test_explicit_slacks_end_at_the_solution_of_the_decaying_form(optimizer, restart):
    """Slacks are parameters that optax keeps at 0 or above; a restart sets them to 0."""
    dual, descent = uj.dual_ascent(optax.sgd(0.02)), optax.chain(optimizer, optax.keep_params_nonnegative())

    def step(carry, number):
        x, duals, slacks, moments = carry

        def value(x, slacks):
            objective, violations = problem(x)
            multipliers = duals.multipliers
            return uj.resilient_lagrangian(objective, violations, slacks, multipliers, resilience=BETA), violations

        (slope, of_slacks), violations = jax.grad(value, (0, 1), has_aux=True)(x, slacks)
        updates, moments = descent.update(of_slacks, moments, slacks)
        slacks = optax.apply_updates(slacks, updates)
        if restart:
            slacks = jnp.where((number % restart == restart - 1) & (number < STEPS // 2), 0.0, slacks)
        return (x - 0.05 * slope, dual.update(duals, violations - slacks), slacks, moments), None

    start = (jnp.zeros(2), dual.init(4), jnp.zeros(4), descent.init(jnp.zeros(4)))
    (x, duals, slacks, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(STEPS)))(start)
    expected = known_solution(BETA)
    assert np.sum(expected[2] > 0.05) >= 2  # slack is used
    for actual, known in zip((x, duals.multipliers, slacks), expected, strict=True):
        np.testing.assert_allclose(actual, known, atol=1e-3)


def test_the_lagrangian_with_slacks_equals_its_definition():
    objective, violations = problem(jnp.ones(2))
    slacks = np.array([0.1, 0.0, 2.0, 0.3])

    def value(slacks, multipliers):
        return uj.resilient_lagrangian(objective, violations, slacks, multipliers, resilience=BETA)

    actual, (in_slacks, in_multipliers) = jax.jit(jax.value_and_grad(value, (0, 1)))(slacks, MULTIPLIERS)
    expected = objective + MULTIPLIERS @ (violations - slacks) + 0.5 * BETA * slacks @ slacks
    np.testing.assert_allclose(actual, expected, rtol=1e-14)
    np.testing.assert_allclose(in_slacks, BETA * slacks - MULTIPLIERS, rtol=1e-13, atol=1e-15)
    assert not np.any(in_multipliers)
