"""The report on held-out data."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference

SAMPLES = np.random.default_rng(0).uniform(0.5, 1.5, size=(40, 4)) * np.array([4.0, 3.2, 3.0, 1.0])
MULTIPLIERS = np.array([0.1, 0.0, 1.5, 0.4])


def report_of(losses, multipliers, constraints, **options):
    """In one program."""
    return jax.jit(lambda *given: uj.feasibility_report(*given, constraints, **options))(losses, multipliers)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("resilience", [None, 2.0])
def test_every_figure_equals_numpy(resilience):
    report = report_of(SAMPLES, MULTIPLIERS, uj.descent_constraints(0.2, reference=4.2), resilience=resilience)
    means = SAMPLES.mean(axis=0)
    violations = reference.violations(means, 0.2, 4.2)
    bounds = np.array([4.2, *(0.8 * means[:-1])])
    slacks = np.zeros(4) if resilience is None else MULTIPLIERS / resilience
    expected = {
        "layer_losses": means,
        "violations": violations,
        "bounds": bounds,
        "satisfied": violations <= 0.05 * bounds,
        "feasible": np.all(violations <= 0.05 * bounds),
        "descending": (SAMPLES[:, 1:] < SAMPLES[:, :-1]).mean(axis=0),
        "ratios": (SAMPLES[:, 1:] / SAMPLES[:, :-1]).mean(axis=0),
        "multipliers": MULTIPLIERS,
        "slacks": slacks,
        "complementary_slackness": MULTIPLIERS * (violations - slacks),
    }
    assert set(expected) == set(report._fields)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(report, name), value, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("x64")
def test_under_a_tail_the_violations_are_those_of_the_worst_samples_and_the_bounds_the_means():
    """The worst 10 of 40 samples."""
    constraints = uj.descent_constraints(0.2, reference=4.2)
    report = report_of(SAMPLES, MULTIPLIERS, constraints, reduction=uj.tail_mean(0.75))
    single = np.array([reference.violations(losses, 0.2, 4.2) for losses in SAMPLES])
    worst = np.sort(single, axis=0)[30:].mean(axis=0)
    bounds = np.array([4.2, *(0.8 * SAMPLES.mean(axis=0)[:-1])])
    np.testing.assert_allclose(report.violations, worst, rtol=1e-12)
    np.testing.assert_allclose(report.bounds, bounds, rtol=1e-12)
    np.testing.assert_array_equal(report.satisfied, worst <= 0.05 * bounds)
    np.testing.assert_allclose(report.complementary_slackness, MULTIPLIERS * worst, rtol=1e-12)


def test_without_a_reference_there_is_one_constraint_a_layer():
    given = SAMPLES.astype(np.float32), MULTIPLIERS[1:].astype(np.float32)
    report = report_of(*given, uj.descent_constraints(0.2))
    assert report.violations.shape == report.bounds.shape == report.satisfied.shape == (3,)
    np.testing.assert_allclose(report.bounds, 0.8 * SAMPLES.mean(axis=0)[:-1], rtol=1e-5)


def test_a_layer_within_the_tolerance_of_its_bound_is_feasible():
    """The bound is 0.8; 5% above it is 0.84. NaN never is."""
    constraints, none = uj.descent_constraints(0.2), jnp.zeros(1)

    @jax.jit
    def feasible(losses):
        options = {}, {"tolerance": 0.0}
        return [uj.feasibility_report(losses, none, constraints, **choice).feasible for choice in options]

    for last, expected in ((0.79, (True, True)), (0.83, (True, False)), (0.85, (False, False)), (np.nan, (False,) * 2)):
        assert tuple(map(bool, feasible(np.array([[1.0, last]], np.float32)))) == expected, last


def test_the_tolerance_is_a_share_of_the_bound_and_a_bound_that_is_just_met_is_met():
    none, constraints = np.zeros(1, np.float32), uj.descent_constraints(0.5)
    for losses, tolerance, satisfied in (
        ([100.0, 52.0], 0.05, True),  # 4% above a bound of 50
        ([0.1, 0.0625], 0.05, False),  # 25% above one of 0.05
        ([4.0, 2.0], 0.0, True),
        ([4.0, 2.125], 0.0625, True),
    ):
        report = report_of(np.array([losses], np.float32), none, constraints, tolerance=tolerance)
        assert bool(report.satisfied[0]) == satisfied, (losses, tolerance)


def test_samples_whose_loss_is_zero_already_do_not_spoil_the_ratios():
    losses = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [4.0, 3.0, 0.0]], np.float32)
    report = report_of(losses, np.zeros(2, np.float32), uj.descent_constraints(0.2))
    np.testing.assert_allclose(report.ratios, [0.625, 0.0])
    np.testing.assert_allclose(report.descending, [2 / 3, 2 / 3], rtol=1e-6)


def test_the_report_compiled_is_that_outside_of_jit():
    constraints = uj.descent_constraints(0.2, reference=4.2)
    make = lambda losses, multipliers: uj.feasibility_report(losses, multipliers, constraints, resilience=2.0)  # noqa: E731
    args = jnp.asarray(SAMPLES, jnp.float32), jnp.asarray(MULTIPLIERS, jnp.float32)
    chex.assert_trees_all_close(jax.jit(make)(*args), make(*args), rtol=1e-4, atol=1e-5)
