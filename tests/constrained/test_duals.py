"""Projected dual ascent: its update, and where the whole primal-dual loop ends."""

import itertools

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
@pytest.mark.parametrize(
    ("name", "resilience", "normalise"),
    [*itertools.product(OPTIMISERS, (None, BETA), (False,)), ("sgd", None, True)],
)
def test_the_primal_dual_loop_ends_at_the_known_solution(name, resilience, normalise):
    """One gradient step on x, one dual step, in turns: as in training."""
    constraints = uj.descent_constraints(ALPHA, reference=REFERENCE)
    init, update = uj.dual_ascent(OPTIMISERS[name], resilience=resilience)

    def both(carry, _):
        x, duals = carry
        loss = lambda x: lagrangian(layer_losses(x), duals.multipliers, constraints, normalise=normalise)  # noqa: E731
        x = x - 0.05 * jax.grad(loss)(x)
        return (x, update(duals, constraints(layer_losses(x)))), None

    (x, duals), _ = jax.jit(lambda start: jax.lax.scan(both, start, length=STEPS))((jnp.zeros(2), init(4)))
    solution, multipliers, slacks = known_solution(resilience)
    assert np.sum(multipliers > 0.05) >= 2  # active constraints
    assert np.sum(multipliers < 1e-6) >= 1  # and inactive ones
    np.testing.assert_allclose(x, solution, atol=1e-3)
    np.testing.assert_allclose(duals.multipliers, multipliers, atol=1e-3)
    if resilience is not None:
        np.testing.assert_allclose(optimal_slacks(duals.multipliers, resilience), slacks, atol=1e-3)


def test_violations_are_detached():
    init, update = uj.dual_ascent(optax.sgd(0.1))
    gradient = jax.grad(lambda c: jnp.sum(update(init(2), c).multipliers))(jnp.ones(2))
    assert not jnp.any(gradient)
