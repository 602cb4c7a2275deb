"""PI control of the multipliers, and optimisers by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax.constrained import nu_pi, proportional_integral
from unroll_jax.constrained.controllers import DUAL_OPTIMIZERS


def run(optimizer, violations, start=0.0):
    init, update = uj.dual_ascent(optimizer)

    def step(state, violation):
        state = update(state, violation[None])
        return state, state.multipliers[0]

    return np.asarray(jax.jit(lambda rows: jax.lax.scan(step, init(1, start), rows)[1])(jnp.asarray(violations)))


@pytest.mark.parametrize("gain", [0.0, 0.7])
def test_the_multiplier_is_integral_plus_proportional_part(gain):
    """I <- [I + k_i c]_+, lambda = [I + k_p c]_+, written out in NumPy."""
    violations = np.random.default_rng(0).normal(size=30)
    integral, expected = 0.0, []
    for violation in violations:
        integral = max(integral + 0.1 * violation, 0.0)
        expected.append(max(integral + gain * violation, 0.0))
    np.testing.assert_allclose(run(proportional_integral(0.1, gain), violations), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("nu", "start", "integral_gain"),
    [(0.0, "zero", 0.1), (0.6, "zero", 0.1), (-0.3, "zero", 0.1), (0.6, "sgd", 0.1), (0.6, "sgd", 0.0)],
)
def test_nu_pi_equals_its_definition(nu, start, integral_gain):
    """xi = nu xi + (1 - nu) c, lambda = [lambda + k_i c + k_p (change of xi)]_+; from "sgd" xi changes from c_1 on."""
    violations = np.random.default_rng(2).normal(size=40)
    smoothed, multiplier, expected = 0.0, 0.3, []
    for call, violation in enumerate(violations):
        before = smoothed
        if call > 0 or start == "zero":
            smoothed = nu * smoothed + (1.0 - nu) * violation
        multiplier = max(multiplier + integral_gain * violation + 0.7 * (smoothed - before), 0.0)
        expected.append(multiplier)
    assert 0.0 in expected
    optimizer = nu_pi(integral_gain, 0.7, nu=nu, start=start)
    np.testing.assert_allclose(run(optimizer, violations, 0.3), expected, rtol=1e-12, atol=1e-13)


BETA = 0.8
RELATIVES = {
    "sgd": (nu_pi(0.1, 0.0, nu=0.5), optax.sgd(0.1)),
    "momentum": (nu_pi(0.1 / (1 - BETA), -0.1 * BETA / (1 - BETA) ** 2, nu=BETA), optax.sgd(0.1, momentum=BETA)),
    "proportional_integral": (nu_pi(0.1, 0.7), proportional_integral(0.1, 0.7)),
    "optimistic": (nu_pi(0.1, 0.1), optax.optimistic_gradient_descent(0.1)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", RELATIVES)
def test_nu_pi_holds_the_methods_that_the_paper_names(name):
    """On multipliers far from 0, where nothing is projected. optax takes its first optimistic step as plain one."""
    violations = np.random.default_rng(5).normal(size=40)
    ours, theirs = (run(optimizer, violations, 100.0) for optimizer in RELATIVES[name])
    assert np.ptp(theirs) > 0.1
    first = 100.0 + 0.1 * violations[0] if name == "optimistic" else ours[0]
    np.testing.assert_allclose(theirs, ours - ours[0] + first, rtol=1e-12)


def test_each_row_starts_as_sgd_when_it_first_moves():
    init, update = uj.dual_ascent(nu_pi(0.5, 2.0, start="sgd"))
    state = update(init(2), jnp.array([1.0]), np.array([0]))
    state = update(state, jnp.array([1.0, 3.0]), np.array([1, 0]))
    assert state.multipliers.tolist() == [0.5 + 1.5 + 2.0 * 3.0, 0.5]


@pytest.mark.oracle("torch", "cooper")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("start", "integral_gain"), [("zero", 0.1), ("sgd", 0.1), ("sgd", 0.0)])
def test_nu_pi_equals_coopers(start, integral_gain):
    """On the ascent direction; the projection at 0 is the multiplier's own, here as there."""
    import cooper
    import torch

    violations = np.random.default_rng(6).normal(size=(40, 1))
    multiplier = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gains = {"Kp": torch.tensor(0.7), "Ki": torch.tensor(integral_gain), "ema_nu": 0.6}
    init_type = {"zero": cooper.optim.nuPIInitType.ZEROS, "sgd": cooper.optim.nuPIInitType.SGD}[start]
    peer = cooper.optim.nuPI([multiplier], lr=1.0, init_type=init_type, maximize=True, **gains)
    expected = []
    for violation in violations:
        multiplier.grad = torch.from_numpy(violation)
        peer.step()
        multiplier.data.clamp_(min=0.0)
        expected.append(multiplier.item())
    assert 0.0 in expected
    # Their gains are float32.
    optimizer = nu_pi(integral_gain, 0.7, nu=0.6, start=start)
    np.testing.assert_allclose(run(optimizer, violations[:, 0]), expected, rtol=1e-6, atol=1e-7)


def test_a_capped_controller_never_exceeds_its_cap():
    multipliers = run(proportional_integral(0.5, 2.0, cap=1.5), np.ones(10))
    assert multipliers.max() == 1.5


@pytest.mark.parametrize("name", DUAL_OPTIMIZERS)
def test_every_dual_optimiser_raises_the_multipliers_of_what_is_violated(name):
    multipliers = run(uj.dual_optimizer(name, 0.1), np.concatenate([np.ones(10), -np.ones(60)]))
    assert np.all(np.diff(multipliers[:10]) > 0.0)
    assert multipliers[-1] == 0.0


@pytest.mark.parametrize(
    ("name", "options", "optimizer"),
    [
        ("adam", {"b1": 0.5}, lambda **options: optax.adam(0.1, **options)),
        ("sgd", {"momentum": 0.9}, lambda **options: optax.sgd(0.1, **options)),
    ],
)
def test_options_of_a_named_optimiser_are_its_own(name, options, optimizer):
    violations = np.random.default_rng(8).normal(size=10)
    multipliers = run(uj.dual_optimizer(name, 0.1, **options), violations)
    np.testing.assert_array_equal(multipliers, run(optimizer(**options), violations))
    assert np.any(multipliers != run(optimizer(), violations))


def test_an_optimiser_may_be_given_by_itself_and_a_rate_may_be_a_schedule():
    violations = np.random.default_rng(7).normal(size=10)
    schedule = optax.linear_schedule(0.1, 0.0, 5)
    np.testing.assert_array_equal(
        run(uj.dual_optimizer(optax.sgd(schedule)), violations), run(uj.dual_optimizer("sgd", schedule), violations)
    )
