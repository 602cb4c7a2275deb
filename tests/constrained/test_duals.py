"""Projected dual ascent: its update, and where the whole primal-dual loop ends."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests.constrained.of_losses import lagrangian
from tests.convex_problem import ALPHA, REFERENCE, known_solution, layer_losses
from unroll_jax.constrained import nu_pi, proportional_integral
from unroll_jax.constrained.lagrangian import optimal_slacks

BETA, STEPS = 0.5, 20_000
OPTIMISERS = {
    "sgd": optax.sgd(0.02),
    "momentum": optax.sgd(0.005, momentum=0.9),
    "adam": optax.adam(optax.cosine_decay_schedule(0.02, STEPS)),
    "proportional_integral": proportional_integral(0.02, 0.2),
    "nu_pi": nu_pi(0.02, 0.2, nu=0.5),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("resilience", [None, BETA], ids=["hard", "resilient"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_primal_dual_loop_ends_at_the_known_solution(name, resilience):
    """One gradient step on x, one dual step, in turns: as in training."""
    constraints = uj.descent_constraints(ALPHA, reference=REFERENCE)
    init, update = uj.dual_ascent(OPTIMISERS[name], resilience=resilience)

    def both(carry, _):
        x, duals = carry
        gradient = jax.grad(lambda x: lagrangian(layer_losses(x), duals.multipliers, constraints))(x)
        x = x - 0.05 * gradient
        return (x, update(duals, constraints(layer_losses(x)))), None

    (x, duals), _ = jax.jit(lambda start: jax.lax.scan(both, start, length=STEPS))((jnp.zeros(2), init(4)))
    solution, multipliers, slacks = known_solution(resilience)
    assert np.sum(multipliers > 0.05) >= 2  # active constraints
    assert np.sum(multipliers < 1e-6) >= 1  # and inactive ones
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(duals.multipliers, multipliers, atol=1e-3)
    if resilience is not None:
        np.testing.assert_allclose(optimal_slacks(duals.multipliers, resilience), slacks, atol=1e-3)


@pytest.mark.usefixtures("x64")
def test_the_normalised_lagrangian_leads_to_the_same_solution():
    constraints, (init, update) = uj.descent_constraints(ALPHA, reference=REFERENCE), uj.dual_ascent(optax.sgd(0.02))

    def both(carry, _):
        x, duals = carry
        loss = lambda x: lagrangian(layer_losses(x), duals.multipliers, constraints, normalise=True)  # noqa: E731
        x = x - 0.05 * jax.grad(loss)(x)
        return (x, update(duals, constraints(layer_losses(x)))), None

    (x, duals), _ = jax.jit(lambda start: jax.lax.scan(both, start, length=STEPS))((jnp.zeros(2), init(4)))
    solution, multipliers, _ = known_solution(None)
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(duals.multipliers, multipliers, atol=1e-3)


def test_under_sgd_the_update_is_projected_ascent():
    init, update = uj.dual_ascent(optax.sgd(0.1))
    state = init(3)
    assert state.multipliers.tolist() == [0.0, 0.0, 0.0]
    state = update(state, jnp.array([1.0, -1.0, 2.0]))
    np.testing.assert_allclose(state.multipliers, [0.1, 0.0, 0.2], rtol=1e-6)
    np.testing.assert_allclose(update(state, jnp.array([-0.5, 1.0, -9.0])).multipliers, [0.05, 0.1, 0.0], atol=1e-7)


def test_resilience_under_sgd_decays_the_multipliers():
    """lambda <- [(1 - eta/beta) lambda + eta c]_+."""
    _, update = uj.dual_ascent(optax.sgd(0.1), resilience=2.0)
    multipliers, violations = jnp.array([1.0, 0.5, 0.02]), jnp.array([0.3, -0.2, -5.0])
    updated = update(
        uj.DualState(multipliers, optax.sgd(0.1).init(multipliers), jnp.zeros((), jnp.int32)), violations
    ).multipliers
    np.testing.assert_allclose(updated, np.maximum((1 - 0.1 / 2.0) * multipliers + 0.1 * violations, 0.0), rtol=1e-6)


def test_adam_moves_a_multiplier_by_about_its_rate_whatever_the_violation():
    _, update = (dual := uj.dual_ascent(optax.adam(1e-2)))
    moved = update(dual.init(2), jnp.array([1e-3, 10.0])).multipliers
    np.testing.assert_allclose(moved, [1e-2, 1e-2], rtol=1e-3)


def test_violations_are_detached():
    init, update = uj.dual_ascent(optax.sgd(0.1))
    gradient = jax.grad(lambda c: jnp.sum(update(init(2), c).multipliers))(jnp.ones(2))
    assert not jnp.any(gradient)


def test_the_update_can_be_compiled_and_scanned(getkey):
    init, update = uj.dual_ascent(optax.adam(1e-2), resilience=5.0)
    violations = jax.random.normal(getkey(), (10, 3))
    looped = init(3)
    for row in violations:
        looped = update(looped, row)
    scanned, _ = jax.lax.scan(lambda state, row: (update(state, row), None), init(3), violations)
    chex.assert_trees_all_close(scanned, looped, rtol=1e-5)
    assert jnp.all(scanned.multipliers >= 0.0)


def test_bfloat16_violations_leave_the_multipliers_in_float32():
    init, update = uj.dual_ascent(optax.adam(1e-2))
    state = update(init(2), jnp.ones(2, jnp.bfloat16))
    chex.assert_trees_all_equal_dtypes(state, init(2))
    init, update = uj.dual_ascent(optax.sgd(0.1))
    np.testing.assert_array_equal(update(init(1), jnp.ones(1, jnp.bfloat16)).multipliers, np.float32(0.1))
