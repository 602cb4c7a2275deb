"""Constraints on the worst samples and on the mean of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.comparing import assert_derivative
from tests.marks import in_float64
from tests.reference import compiled, gaussian

pytestmark = in_float64
SAMPLES = gaussian(37, 3) + np.array([0.5, -1.0, 0.0])
LEVELS = [0.0, 0.25, 0.5, 0.9, 0.99]
TAILS = [*LEVELS, 0.75, 0.95, (0.0, 0.5, 0.9)]


def tail_reference(violations, level):
    """min_t t + mean([c - t]_+) / (1 - q): piecewise linear in t, so least at one of
    the samples."""
    bounds = violations + np.maximum(violations[None] - violations[:, None], 0.0).mean(
        axis=1
    ) / (1.0 - level)
    return bounds.min(axis=0)


@compiled
def tails(samples):
    return [uj.tail_mean(level)(samples) for level in TAILS]


@pytest.mark.parametrize("count", [1, 10, 37])
def test_the_tail_mean_is_the_least_of_its_bounds(count):
    for level, actual in zip(TAILS, tails(SAMPLES[:count]), strict=True):
        levels = level if isinstance(level, tuple) else [level] * 3
        expected = [
            tail_reference(SAMPLES[:count, i : i + 1], one)[0]
            for i, one in enumerate(levels)
        ]
        assert_allclose(actual, expected, rtol=1e-12, err_msg=str(level))


def test_the_gradient_weighs_the_worst_samples_only():
    def totals(c):
        return jnp.stack([jnp.sum(uj.tail_mean(level)(c)) for level in LEVELS])

    weights = np.arange(1.0, 6.0)
    assert_derivative(lambda c: totals(c) @ weights, SAMPLES, rtol=1e-8)
    gradients = np.abs(compiled(jax.jacrev(totals))(SAMPLES)) > 1e-12
    for level, weighed in zip(LEVELS, gradients, strict=True):
        expected = np.ceil(37 * (1.0 - level) - 1e-9)
        assert_array_equal(np.sum(weighed, axis=0), expected)


def test_ties_share_weights_that_a_subgradient_may_have():
    """Non-negative, at most 1 / (N (1 - q)), summing to 1, and none on samples below
    the tie."""
    tied = np.array([[2.0], [1.0], [2.0], [2.0], [0.0], [3.0]])
    gradient = compiled(jax.grad(lambda c: uj.tail_mean(0.6)(c)[0]))(tied)[:, 0]
    assert_allclose(np.sum(gradient), 1.0, rtol=1e-12)
    assert np.all((gradient >= 0.0) & (gradient <= 1.0 / (6 * 0.4) + 1e-12))
    assert gradient[1] == gradient[4] == 0.0


def test_the_tail_leaves_out_a_sample_of_minus_infinity():
    violations = np.array([[1.0], [2.0], [-np.inf], [3.0]])

    @compiled
    def run(violations):
        value, pull = jax.vjp(uj.tail_mean(0.5), violations)
        return value, pull(jnp.ones(1))[0], uj.tail_mean(0.0)(violations)

    value, gradient, mean = run(violations)
    assert_allclose(value, [2.5])
    assert_allclose(gradient[:, 0], [0.0, 0.5, 0.0, 0.5])
    assert_array_equal(mean, [-np.inf])
