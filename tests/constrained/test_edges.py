"""Integers, infinite samples, values that are not numbers and axes the other way round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests.constrained.of_losses import lagrangian

pytestmark = pytest.mark.usefixtures("unchecked")

CONSTRAINTS = uj.descent_constraints(0.2)
LOSSES = np.array([4, 2, 1])


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "float16", "float32"])
def test_violations_of_integers_are_those_of_the_same_floats(dtype):
    violations = CONSTRAINTS(LOSSES.astype(dtype))
    assert jnp.issubdtype(violations.dtype, jnp.floating)
    np.testing.assert_allclose(violations, [-1.2, -0.6], rtol=1e-3)
    np.testing.assert_allclose(lagrangian(LOSSES.astype(dtype), np.ones(2, np.float32), CONSTRAINTS), -0.8, rtol=2e-3)


def test_reports_and_samples_take_integers():
    samples = np.array([[4, 2, 1], [2, 2, 2]])
    report = uj.feasibility_report(samples, np.zeros(2), CONSTRAINTS)
    np.testing.assert_allclose(report.layer_losses, [3.0, 2.0, 1.5])
    tail = uj.sample_constraints(CONSTRAINTS, uj.tail_mean(0.5))
    np.testing.assert_allclose(tail(samples), [0.4, 0.4], rtol=1e-6)


@pytest.mark.parametrize("losses", [None, "4, 2, 1", [[1.0], [1.0, 2.0]], np.array([True, False]), np.array([1j, 2j])])
def test_losses_that_are_no_real_numbers_are_named(losses):
    with pytest.raises(TypeError, match="layer_losses must"):
        CONSTRAINTS(losses)


def test_a_traced_alpha_is_named():
    with pytest.raises(TypeError, match=r"alpha must be known .* traced"):
        jax.jit(lambda alpha: uj.descent_constraints(alpha)(jnp.ones(3)))(0.2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("optimizer", [optax.sgd(0.5), optax.adam(0.5)], ids=["sgd", "adam"])
def test_a_violation_that_is_no_number_changes_nothing(optimizer, value):
    init, update = uj.dual_ascent(optimizer)
    update = jax.jit(update)
    sound = update(init(2), np.array([1.0, 2.0], np.float32))
    after = update(sound, np.array([value, 1.0], np.float32))
    assert int(after.skipped) == 1
    jax.tree.map(np.testing.assert_array_equal, after._replace(skipped=sound.skipped), sound)
    assert np.all(update(after, np.ones(2, np.float32)).multipliers > sound.multipliers)


def test_the_tail_leaves_out_a_sample_of_minus_infinity():
    violations = np.array([[1.0], [2.0], [-np.inf], [3.0]], np.float32)
    reduce = jax.jit(uj.tail_mean(0.5))
    np.testing.assert_allclose(reduce(violations), [2.5])
    gradient = jax.grad(lambda v: jnp.sum(reduce(v)))(violations)
    np.testing.assert_allclose(gradient[:, 0], [0.0, 0.5, 0.0, 0.5])
    np.testing.assert_array_equal(uj.tail_mean(0.0)(violations), [-np.inf])
