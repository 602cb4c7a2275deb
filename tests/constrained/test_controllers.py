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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("nu", [0.0, 0.6, -0.3])
def test_nu_pi_equals_its_definition(nu):
    """xi = nu xi + (1 - nu) c, lambda = [lambda + k_i c + k_p (change of xi)]_+, written out in NumPy."""
    violations = np.random.default_rng(2).normal(size=40)
    smoothed, multiplier, expected = 0.0, 0.3, []
    for violation in violations:
        before, smoothed = smoothed, nu * smoothed + (1.0 - nu) * violation
        multiplier = max(multiplier + 0.1 * violation + 0.7 * (smoothed - before), 0.0)
        expected.append(multiplier)
    assert 0.0 in expected
    np.testing.assert_allclose(run(nu_pi(0.1, 0.7, nu=nu), violations, 0.3), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_nu_pi_is_integral_plus_proportional_part_where_nothing_is_projected():
    violations = np.random.default_rng(4).normal(size=40)
    average = np.array([sum(0.4 * 0.6 ** (t - s) * violations[s] for s in range(t + 1)) for t in range(40)])
    expected = 50.0 + 0.1 * np.cumsum(violations) + 0.7 * average
    np.testing.assert_allclose(run(nu_pi(0.1, 0.7, nu=0.6), violations, 50.0), expected, rtol=1e-12)
    np.testing.assert_allclose(
        run(nu_pi(0.1, 0.7), violations, 50.0), run(proportional_integral(0.1, 0.7), violations, 50.0), rtol=1e-12
    )


BETA = 0.8
RELATIVES = {
    "sgd": (nu_pi(0.1, 0.0, nu=0.5), optax.sgd(0.1)),
    "momentum": (nu_pi(0.1 / (1 - BETA), -0.1 * BETA / (1 - BETA) ** 2, nu=BETA), optax.sgd(0.1, momentum=BETA)),
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


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("integral_gain", [0.0, 0.1])
def test_nu_pi_may_start_as_sgd(integral_gain):
    """xi_0 = 0: the first step is k_i c_0; with k_i = 0 the multiplier follows the smoothed violation alone."""
    violations = np.random.default_rng(9).normal(size=40)
    smoothed, multiplier = 0.0, max(0.3 + integral_gain * violations[0], 0.0)
    expected = [multiplier]
    for violation in violations[1:]:
        before, smoothed = smoothed, 0.6 * smoothed + 0.4 * violation
        multiplier = max(multiplier + integral_gain * violation + 0.7 * (smoothed - before), 0.0)
        expected.append(multiplier)
    optimizer = nu_pi(integral_gain, 0.7, nu=0.6, start="sgd")
    np.testing.assert_allclose(run(optimizer, violations, 0.3), expected, rtol=1e-12, atol=1e-13)


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


@pytest.mark.usefixtures("unchecked")
def test_a_bad_optimiser_is_named():
    with pytest.raises(ValueError, match=r"optimizer must be one of \['adam', 'nu_pi', 'pi', 'sgd'\].* got 'pid'"):
        uj.dual_optimizer("pid", 0.1)
    with pytest.raises(TypeError, match=r"optimizer must be one of .* got float"):
        uj.dual_optimizer(0.1)
    with pytest.raises(ValueError, match="learning_rate is missing"):
        uj.dual_optimizer("adam")
    with pytest.raises(ValueError, match="learning_rate and options are for a name"):
        uj.dual_optimizer(optax.sgd(0.1), 0.1)


@pytest.mark.usefixtures("unchecked")
def test_a_bad_gain_is_named():
    for arguments, options, message in (
        ((-0.1, 1.0), {}, "integral_gain must be finite and at least 0, got -0.1"),
        ((0.1, 1.0), {"start": "c"}, "start must be one of .*'sgd'.* got 'c'"),
        ((0.1, float("inf")), {}, "proportional_gain must be finite, got inf"),
        ((0.1, 1.0), {"nu": 1.0}, r"nu must be in \(-1, 1\), got 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            nu_pi(*arguments, **options)
    with pytest.raises(ValueError, match=r"cap must be positive and finite, or None, got -1\.0"):
        proportional_integral(0.1, 0.1, cap=-1.0)
    for gain in (0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"integral_gain must be positive and finite, got {gain}"):
            proportional_integral(gain, 0.1)
    with pytest.raises(ValueError, match=r"proportional_gain must be finite and at least 0, got -0.1"):
        proportional_integral(0.1, -0.1)
    controller = proportional_integral(0.1, 0.1)
    with pytest.raises(ValueError, match="needs the multipliers"):
        controller.update(jnp.ones(2), controller.init(jnp.zeros(2)))
