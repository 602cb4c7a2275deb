"""PI control of the multipliers."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax.constrained import proportional_integral


def run(optimizer, violations):
    init, update = uj.dual_ascent(optimizer)
    state, history = init(1), []
    for violation in violations:
        state = update(state, jnp.array([violation]))
        history.append(float(state.multipliers[0]))
    return history


def test_the_multiplier_is_integral_plus_proportional_part():
    """I <- [I + k_i c]_+, lambda = [I + k_p c]_+, written out in NumPy."""
    violations = np.random.default_rng(0).normal(size=30)
    integral, expected = 0.0, []
    for violation in violations:
        integral = max(integral + 0.1 * violation, 0.0)
        expected.append(max(integral + 0.7 * violation, 0.0))
    np.testing.assert_allclose(run(proportional_integral(0.1, 0.7), violations), expected, rtol=1e-4, atol=1e-6)


def test_without_proportional_gain_it_is_sgd():
    violations = np.random.default_rng(1).normal(size=30)
    np.testing.assert_allclose(
        run(proportional_integral(0.1, 0.0), violations), run(optax.sgd(0.1), violations), rtol=1e-4, atol=1e-6
    )


def test_a_multiplier_falls_at_once_when_its_violation_ends():
    wound_up, relieved = run(proportional_integral(0.1, 1.0), [1.0, 1.0, 0.0])[1:]
    assert wound_up == pytest.approx(1.2)
    assert relieved == pytest.approx(0.2)


@pytest.mark.usefixtures("unchecked")
def test_a_bad_gain_is_named():
    for gain in (0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"integral_gain must be positive and finite, got {gain}"):
            proportional_integral(gain, 0.1)
    with pytest.raises(ValueError, match=r"proportional_gain must be finite and at least 0, got -0.1"):
        proportional_integral(0.1, -0.1)
    controller = proportional_integral(0.1, 0.1)
    with pytest.raises(ValueError, match="needs the multipliers"):
        controller.update(jnp.ones(2), controller.init(jnp.zeros(2)))
