"""Ratios and logarithms of losses over bounds, proxies, and the reports of them, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.constrained import mean_of_samples
from unroll_jax.constrained.layer_bounds import FORMS, relative_excess

SAMPLES = np.random.default_rng(0).uniform(0.5, 2.0, size=(6, 4)) * np.array([4.0, 3.0, 2.0, 1.0])
ALPHA, REFERENCE = (0.1, 0.2, 0.3), 5.0
BOUNDS = np.column_stack([np.full(6, REFERENCE), (1 - np.array(ALPHA)) * SAMPLES[:, :-1]])
EXPECTED = {"difference": SAMPLES - BOUNDS, "ratio": SAMPLES / BOUNDS - 1, "log_ratio": np.log(SAMPLES / BOUNDS)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
def test_violations_bounds_and_excess_are_those_of_numpy(form):
    constraints = uj.descent_constraints(ALPHA, reference=REFERENCE, form=form)
    violations = constraints(jnp.asarray(SAMPLES))
    np.testing.assert_allclose(violations, EXPECTED[form], rtol=1e-12)
    np.testing.assert_allclose(constraints.bounds(jnp.asarray(SAMPLES)), BOUNDS, rtol=1e-12)
    np.testing.assert_allclose(relative_excess(violations, BOUNDS, form=form), SAMPLES / BOUNDS - 1, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("proxy", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_finite_differences_and_a_proxy_has_none_in_the_loss_before(form, proxy):
    constraints = uj.descent_constraints(ALPHA, reference=REFERENCE, form=form, proxy=proxy)
    losses = jnp.asarray(SAMPLES[0])
    slope = jax.jacobian(constraints)(losses)
    h = 1e-6
    columns = [(constraints(losses + h * e) - constraints(losses - h * e)) / (2 * h) for e in np.eye(4)]
    expected = np.stack(columns, axis=1)
    np.testing.assert_allclose(slope, np.diag(np.diag(expected)) if proxy else expected, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
def test_the_report_judges_by_the_share_of_the_bound(form):
    constraints = uj.descent_constraints(ALPHA, form=form)
    report = uj.feasibility_report(
        jnp.asarray(SAMPLES), jnp.ones(3), constraints, tolerance=0.05, reduction=mean_of_samples()
    )
    mean = EXPECTED[form][:, 1:].mean(axis=0)
    bounds = (1 - np.array(ALPHA)) * SAMPLES.mean(axis=0)[:-1]
    excess = {"difference": mean / bounds, "ratio": mean, "log_ratio": np.expm1(mean)}[form]
    np.testing.assert_allclose(report.violations, mean, rtol=1e-12)
    np.testing.assert_allclose(report.bounds, bounds, rtol=1e-12)
    np.testing.assert_array_equal(report.satisfied, excess <= 0.05)


@pytest.mark.parametrize("form", ["ratio", "log_ratio"])
def test_losses_of_zero_give_numbers(form):
    constraints = uj.descent_constraints(0.5, form=form)
    losses = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1e-10, 10.0], [1e-9, 1e4]])
    assert np.all(np.isfinite(constraints(losses)))
    assert np.all(np.isfinite(jax.grad(lambda f: jnp.sum(constraints(f)))(losses)))
    assert constraints(losses)[0, 0] < 0.0 < constraints(losses)[4, 0]
    np.testing.assert_array_equal(constraints(losses)[1:4, 0], 0.0)  # of no loss there is no share to remove


def test_a_bound_of_zero_has_an_excess_that_is_a_number():
    excess = relative_excess(jnp.array([0.0, -1.0, 24.0]), jnp.zeros(3), form="difference")
    np.testing.assert_array_equal(excess[:2], [0.0, -1.0])
    assert 1e6 < excess[2] < np.inf
