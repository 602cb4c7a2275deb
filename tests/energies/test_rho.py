"""The functions of distance that attention weights come from."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.energies.rho import log, resolve_rho

DISTANCES = np.concatenate([[0.0], np.logspace(-6, 2, 40)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", uj.RHOS)
def test_values_and_slopes_equal_the_reference(name):
    rho, z = resolve_rho(name), jnp.asarray(DISTANCES)
    np.testing.assert_allclose(rho.value(z), reference.RHO_VALUES[name](DISTANCES), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(rho.slope(z), reference.RHO_SLOPES[name](DISTANCES), rtol=1e-14)
    np.testing.assert_allclose(rho.log_slope(z), np.log(reference.RHO_SLOPES[name](DISTANCES)), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", uj.RHOS)
def test_the_given_slope_is_the_derivative_of_the_value(name):
    given, z = resolve_rho(name), jnp.asarray(DISTANCES)
    derived = resolve_rho(uj.Rho(value=given.value))
    np.testing.assert_allclose(given.slope(z), derived.slope(z), rtol=1e-12)
    np.testing.assert_allclose(given.log_slope(z), derived.log_slope(z), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", uj.RHOS)
def test_every_rho_is_concave_and_nondecreasing(name):
    slopes = resolve_rho(name).slope(jnp.asarray(DISTANCES, jnp.float32))
    assert jnp.all(slopes >= 0.0)
    assert jnp.all(jnp.diff(slopes) <= 0.0)


def test_log_with_shift_1_gives_the_weights_of_unit_norm_tokens():
    """Yang et al. (2022), Section 7: 1 / (2 - y_i . y_j) belongs to log(z + 1), not to log(z + 2)."""
    u, v = (jnp.asarray(w) / jnp.linalg.norm(jnp.asarray(w)) for w in ([1.0, 2.0, 2.0], [3.0, -1.0, 0.5]))
    half_square = 0.5 * jnp.sum((u - v) ** 2)
    chex.assert_trees_all_close(log(1.0).slope(half_square), 1.0 / (2.0 - u @ v), rtol=1e-6)
    chex.assert_trees_all_close(log(2.0).slope(half_square), 1.0 / (3.0 - u @ v), rtol=1e-6)


def test_a_slope_of_zero_has_finite_derivatives():
    """A rho that is flat beyond 1: its pairs drop out of the step, without a NaN in its gradient."""
    truncated = resolve_rho(uj.Rho(value=lambda z: jnp.minimum(z, 1.0), slope=lambda z: jnp.where(z < 1.0, 1.0, 0.0)))
    assert truncated.log_slope(jnp.array([0.5, 2.0])).tolist() == [0.0, -jnp.inf]
    layer, y = uj.attention(rho=truncated), jnp.array([[0.0], [0.5], [9.0]])
    params = layer.init(jax.random.key(0))
    chex.assert_trees_all_close(layer.step(params, y), jnp.array([[0.5], [0.0], [9.0]]))
    chex.assert_tree_all_finite(jax.jit(jax.jacobian(layer.step, 1))(params, y))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shift", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bad_shift_is_named(shift):
    with pytest.raises(ValueError, match=f"shift must be positive and finite, got {shift}"):
        log(shift)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_rho_is_named():
    with pytest.raises(TypeError, match=r"rho must be one of .* or a Rho, got int"):
        resolve_rho(3)
