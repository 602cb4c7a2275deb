"""The Lagrangian as one weighted sum of layer losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests import reference
from tests.constrained.of_losses import augmented_lagrangian, lagrangian
from tests.convex_problem import ALPHA, REFERENCE, known_solution, layer_losses

LOSSES = np.array([4.7, 3.0, 3.5, 1.2])
MULTIPLIERS = np.array([0.3, 2.0, 0.0, 0.7])
SCHEDULES = pytest.mark.parametrize("alpha", [0.22, (0.1, 0.5, 0.9)], ids=str)


@pytest.mark.usefixtures("x64")
@SCHEDULES
def test_the_lagrangian_equals_its_definition(alpha):
    constraints = uj.descent_constraints(alpha, reference=5.5)
    run = jax.jit(lambda *given: [lagrangian(*given, constraints, normalise=how) for how in (False, True)])
    value, scaled = run(LOSSES, MULTIPLIERS)
    expected = LOSSES[-1] + MULTIPLIERS @ reference.violations(LOSSES, alpha, 5.5)
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    np.testing.assert_allclose(scaled, expected / (1.0 + MULTIPLIERS.sum()), rtol=1e-14)


@pytest.mark.usefixtures("x64")
@SCHEDULES
def test_its_weights_are_those_written_out_by_hand(alpha):
    """w_l = [l = L] + lambda_l - (1 - alpha_{l+1}) lambda_{l+1}; without a reference lambda_0 = 0."""
    with_reference, without = uj.descent_constraints(alpha, reference=5.5), uj.descent_constraints(alpha)

    @jax.jit
    def run(losses, multipliers):
        gradient = jax.grad(lagrangian)(losses, multipliers, with_reference)
        weights = uj.layer_weights(multipliers, with_reference, 3), uj.layer_weights(multipliers[1:], without, 3)
        return gradient, *weights

    gradient, actual, weights_without = run(LOSSES, MULTIPLIERS)
    np.testing.assert_allclose(actual, reference.layer_weights(MULTIPLIERS, alpha), rtol=1e-14)
    np.testing.assert_allclose(gradient, actual, rtol=1e-14)
    np.testing.assert_allclose(weights_without, reference.layer_weights([0.0, *MULTIPLIERS[1:]], alpha), rtol=1e-14)


def test_no_gradient_flows_to_the_multipliers():
    constraints = uj.descent_constraints(0.2)
    gradient = jax.jit(lambda *given: jax.grad(lagrangian, 1)(*given, constraints))
    assert not np.any(gradient(LOSSES.astype(np.float32), MULTIPLIERS[1:].astype(np.float32)))


def test_its_gradient_takes_one_backward_pass():
    """The layer runs backward as often for the Lagrangian of all layers as for the last loss alone."""
    backward = 0

    @jax.custom_vjp
    def layer(weight, y):
        return jnp.tanh(weight * y)

    def forward(weight, y):
        return layer(weight, y), (weight, y)

    def reverse(saved, cotangent):
        nonlocal backward
        backward += 1
        weight, y = saved
        slope = cotangent * (1.0 - jnp.tanh(weight * y) ** 2)
        return jnp.sum(slope * y), slope * weight

    layer.defvjp(forward, reverse)
    y, multipliers = jnp.asarray(np.linspace(0.1, 1.0, 5), jnp.float32), jnp.asarray(np.ones(3, np.float32))

    def losses(weights):
        outputs = [y]
        for weight in weights:
            outputs.append(layer(weight, outputs[-1]))
        return jnp.stack([jnp.mean(output**2) for output in outputs])

    constraints, weights = uj.descent_constraints(0.2), [np.float32(weight) for weight in (0.9, 0.8, 0.7)]
    gradient = jax.jit(jax.grad(lambda w: lagrangian(losses(w), multipliers, constraints)))(weights)
    assert backward == 3  # once a layer
    jacobian = jax.jit(jax.jacobian(losses))(weights)
    by_layer = uj.layer_weights(multipliers, constraints, 3)
    np.testing.assert_allclose(gradient, [np.asarray(by_layer) @ np.asarray(column) for column in jacobian], rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_the_augmented_lagrangian_has_the_gradient_of_the_multipliers_to_come():
    """That of the Lagrangian at m = [lambda + rho c]_+; its value is f_L + (|m|^2 - |lambda|^2) / (2 rho)."""
    constraints = uj.descent_constraints(0.22, reference=5.5)
    violations = reference.violations(LOSSES, 0.22, 5.5)
    to_come = np.maximum(MULTIPLIERS + 0.7 * violations, 0.0)
    value_and_grad = jax.value_and_grad(augmented_lagrangian)
    run = jax.jit(lambda *given: value_and_grad(*given, constraints, penalty=0.7))
    value, gradient = run(LOSSES, MULTIPLIERS)
    np.testing.assert_allclose(value, LOSSES[-1] + (to_come @ to_come - MULTIPLIERS @ MULTIPLIERS) / 1.4, rtol=1e-13)
    np.testing.assert_allclose(gradient, reference.layer_weights(to_come, 0.22), rtol=1e-13)


@pytest.mark.usefixtures("x64")
def test_the_method_of_multipliers_needs_few_dual_steps():
    """40 dual steps, each after the primal problem is solved; plain dual ascent at this rate swings without end."""
    constraints, rho = uj.descent_constraints(ALPHA, reference=REFERENCE), 20.0
    dual = uj.dual_ascent(optax.sgd(rho))

    def outer(carry, _):
        x, duals = carry
        objective = lambda x: augmented_lagrangian(layer_losses(x), duals.multipliers, constraints, penalty=rho)  # noqa: E731
        x, _ = jax.lax.scan(lambda x, _: (x - 0.003 * jax.grad(objective)(x), None), x, length=2000)
        return (x, dual.update(duals, constraints(layer_losses(x)))), None

    (x, duals), _ = jax.jit(lambda start: jax.lax.scan(outer, start, length=40))((jnp.zeros(2), dual.init(4)))
    solution, multipliers, _ = known_solution(None)
    np.testing.assert_allclose(x, solution, atol=1e-4)
    np.testing.assert_allclose(duals.multipliers, multipliers, atol=1e-3)
