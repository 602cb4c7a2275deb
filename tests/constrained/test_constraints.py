"""Descent constraints, and the names they have in logs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference

LOSSES = np.array([4.7, 3.0, 3.5, 1.2])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("reference_value", [None, 5.5])
@pytest.mark.parametrize("alpha", [0.22, (0.1, 0.5, 0.9)], ids=str)
def test_violations_equal_the_reference(alpha, reference_value):
    constraints = uj.descent_constraints(alpha, reference=reference_value)
    expected = reference.violations(LOSSES, alpha, reference_value)
    np.testing.assert_allclose(constraints(jnp.asarray(LOSSES)), expected, rtol=1e-14)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_leading_axes_are_kept(batch):
    losses = np.random.default_rng(0).random((*batch, 4)).astype(np.float32)
    run = jax.jit(lambda losses: [uj.descent_constraints(0.3, reference=value)(losses) for value in (None, 2.0)])
    for value, width, actual in zip((None, 2.0), (3, 4), run(losses), strict=True):
        assert actual.shape == (*batch, width)
        for place in np.ndindex(*batch):
            expected = reference.violations(np.float64(losses[place]), 0.3, value)
            np.testing.assert_allclose(np.asarray(actual)[place], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_the_loss_of_the_layer_before_keeps_its_gradient():
    """d c_l / d f_{l-1} = -(1 - alpha_l), not 0."""
    jacobian = jax.jit(jax.jacobian(uj.descent_constraints((0.1, 0.2, 0.3), reference=5.0)))(LOSSES)
    expected = [[1.0, 0.0, 0.0, 0.0], [-0.9, 1.0, 0.0, 0.0], [0.0, -0.8, 1.0, 0.0], [0.0, 0.0, -0.7, 1.0]]
    np.testing.assert_allclose(jacobian, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_violations_have_the_dtype_of_the_losses(dtype):
    losses = jnp.asarray(LOSSES, dtype)
    for reference_value in (None, np.float64(5.0)):
        assert uj.descent_constraints(0.2, reference=reference_value)(losses).dtype == losses.dtype


def test_a_schedule_may_come_as_an_array():
    constraints = uj.descent_constraints(np.linspace(0.1, 0.3, 3))
    expected = reference.violations(LOSSES, np.linspace(0.1, 0.3, 3))
    np.testing.assert_allclose(constraints(jnp.asarray(LOSSES, jnp.float32)), expected, rtol=1e-5)


@pytest.mark.parametrize("reference", [None, 5.0])
@pytest.mark.parametrize("num_layers", [1, 4])
def test_there_is_one_name_a_constraint_in_its_order(num_layers, reference):
    names = uj.constraint_names(num_layers, reference=reference)
    # Only the constraint of the last layer is violated.
    losses = jnp.array([4.0 * 0.5**layer for layer in range(num_layers)] + [100.0])
    violations = uj.descent_constraints(0.2, reference=reference)(losses)
    assert len(names) == len(set(names)) == violations.size
    assert names[int(jnp.argmax(violations))] == f"layer {num_layers}"
    assert (names[0] == "f_0") is (reference is not None)
