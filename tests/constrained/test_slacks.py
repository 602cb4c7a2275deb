"""Explicit slacks against cvxpy, whose solution the form that decays the multipliers has too."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests.constrained.of_losses import resilient_lagrangian
from tests.convex_problem import ALPHA, REFERENCE, known_solution, layer_losses

BETA, STEPS = 0.5, 20_000
CONSTRAINTS = uj.descent_constraints(ALPHA, reference=REFERENCE)


def explicit(slack_optimizer, *, restart_every=None, normalise=False):
    """x, multipliers and slacks at the end of training with slacks as variables of autodiff."""
    dual, slack = uj.dual_ascent(optax.sgd(0.02)), uj.slack_descent(slack_optimizer)

    def objective(x, slacks, multipliers):
        losses = layer_losses(x)
        value = resilient_lagrangian(losses, slacks, multipliers, CONSTRAINTS, resilience=BETA, normalise=normalise)
        return value, CONSTRAINTS(losses)

    def step(carry, number):
        x, duals, slacks = carry
        gradients, violations = jax.grad(objective, (0, 1), has_aux=True)(x, slacks.slacks, duals.multipliers)
        x, moved = x - 0.05 * gradients[0], slack.update(slacks, gradients[1])
        if restart_every is not None:
            moved = slack.restart(moved, when=(number % restart_every == restart_every - 1) & (number < STEPS // 2))
        return (x, dual.update(duals, violations - moved.slacks), moved), None

    start = (jnp.zeros(2), dual.init(4), slack.init(4))
    (x, duals, slacks), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(STEPS)))(start)
    return x, duals.multipliers, slacks.slacks


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (optax.sgd(0.05), {}),
        (optax.adam(optax.cosine_decay_schedule(0.01, STEPS)), {}),
        (optax.sgd(0.05), {"restart_every": 500}),
        (optax.sgd(0.05), {"normalise": True}),
    ],
    ids=["sgd", "adam", "restarts", "normalised"],
)
def test_explicit_slacks_end_at_the_solution_of_the_decaying_form(optimizer, options):
    solution = known_solution(BETA)
    assert np.sum(solution[2] > 0.05) >= 2  # slack is used
    for name, actual, expected in zip(
        ("x", "multipliers", "slacks"), explicit(optimizer, **options), solution, strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-3, err_msg=name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("normalise", [False, True])
def test_the_lagrangian_with_slacks_equals_its_definition(normalise):
    losses, slacks, multipliers = layer_losses(jnp.ones(2)), np.array([0.1, 0.0, 2.0, 0.3]), np.array([0.5, 1.0, 0, 2])
    evaluate = jax.value_and_grad(resilient_lagrangian, argnums=(1, 2))
    value, (in_slacks, in_multipliers) = evaluate(
        losses, jnp.asarray(slacks), jnp.asarray(multipliers), CONSTRAINTS, resilience=BETA, normalise=normalise
    )
    scale = 1.0 + multipliers.sum() if normalise else 1.0
    violations = np.asarray(CONSTRAINTS(losses))
    expected = float(losses[-1]) + multipliers @ (violations - slacks) + 0.5 * BETA * slacks @ slacks
    np.testing.assert_allclose(value, expected / scale, rtol=1e-14)
    np.testing.assert_allclose(in_slacks, (BETA * slacks - multipliers) / scale, rtol=1e-13, atol=1e-15)
    assert not np.any(in_multipliers)


@pytest.mark.usefixtures("x64")
def test_slacks_at_rest_leave_the_dual_step_of_the_decaying_form():
    """Where beta s = lambda the gradient in the slacks is 0 and c - s is c - lambda / beta."""
    multipliers = jnp.array([0.5, 1.0, 0.0, 2.0])
    slacks = multipliers / BETA
    losses = layer_losses(jnp.ones(2))
    gradient = jax.grad(resilient_lagrangian, 1)(losses, slacks, multipliers, CONSTRAINTS, resilience=BETA)
    np.testing.assert_allclose(gradient, np.zeros(4), atol=1e-15)
    violations = CONSTRAINTS(losses)
    hard, soft = uj.dual_ascent(optax.sgd(0.1)), uj.dual_ascent(optax.sgd(0.1), resilience=BETA)
    state = hard.init(4)._replace(multipliers=multipliers)
    expected = soft.update(state, violations).multipliers
    np.testing.assert_allclose(hard.update(state, violations - slacks).multipliers, expected, rtol=1e-14)


def test_a_restart_clears_the_slacks_alone_and_only_when_told():
    init, update, restart = uj.slack_descent(optax.adam(0.1))
    moved = update(init(3), jnp.array([-1.0, 2.0, -0.5]))
    assert moved.slacks.tolist() == pytest.approx([0.1, 0.0, 0.1], rel=1e-3)
    cleared = moved._replace(slacks=jnp.zeros(3))
    conditional = jax.jit(restart)
    for restarted in (restart(moved), conditional(moved, jnp.array(True))):
        chex.assert_trees_all_equal(restarted, cleared)
        chex.assert_trees_all_equal_dtypes(restarted, moved)
    chex.assert_trees_all_equal(conditional(moved, jnp.array(False)), moved)
