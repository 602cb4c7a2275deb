"""The report on held-out data."""

import jax
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


@pytest.mark.parametrize(
    ("losses", "tolerance", "satisfied"),
    [
        ([100.0, 52.0], 0.05, True),  # 4% above a bound of 50
        ([100.0, 52.0], 0.0, False),
        ([0.1, 0.0625], 0.05, False),  # 25% above one of 0.05
        ([4.0, 2.0], 0.0, True),
        ([4.0, 2.125], 0.0625, True),
        ([4.0, np.nan], 0.05, False),
    ],
)
def test_the_tolerance_is_a_share_of_the_bound_and_a_bound_that_is_just_met_is_met(losses, tolerance, satisfied):
    given = np.array([losses], np.float32), np.zeros(1, np.float32)
    report = report_of(*given, uj.descent_constraints(0.5), tolerance=tolerance)
    assert bool(report.satisfied[0]) == bool(report.feasible) == satisfied


def test_samples_whose_loss_is_zero_already_do_not_spoil_the_ratios():
    losses = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [4.0, 3.0, 0.0]], np.float32)
    report = report_of(losses, np.zeros(2, np.float32), uj.descent_constraints(0.2))
    np.testing.assert_allclose(report.ratios, [0.625, 0.0])
    np.testing.assert_allclose(report.descending, [2 / 3, 2 / 3], rtol=1e-6)
