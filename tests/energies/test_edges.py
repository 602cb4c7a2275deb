"""Tokens of any size, weights of 0, saturated activations, and steps that are replaced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.energies import MONOTONES, PROXIMALS, RHOS, AttentionParams

pytestmark = pytest.mark.usefixtures("unchecked")
TOKENS = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 0.25]])


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_tokens_of_any_size_are_normalised(epsilon):
    layer = uj.layer_norm(3, epsilon=epsilon)

    @jax.jit
    def step_and_slopes(y):
        return layer.step(None, y), jax.jacobian(lambda y: layer.step(None, y)[0])(y)[:, 0]

    for size in (1e-36, 1e-30, 1e-10, 1e-3, 1.0, 1e10, 1e25, 1e37):  # entries below 1.2e-38 are 0 to compiled code
        y = (size * TOKENS).astype(np.float32)
        wide = y.astype(np.float64)
        centred = wide - wide.mean(-1, keepdims=True)
        length = np.sqrt(np.mean(centred**2, -1, keepdims=True) + epsilon)
        normed, slopes = step_and_slopes(y)
        np.testing.assert_allclose(normed, centred / length, rtol=1e-5, atol=1e-30, err_msg=f"size {size}")
        u, n = centred[0], length[0]
        expected = (np.eye(3) - 1 / 3) / n - np.outer(u, u) / (3 * n**3)
        np.testing.assert_allclose(slopes, expected, rtol=2e-5, atol=max(2e-6 / n[0], 2e-38), err_msg=f"size {size}")


@pytest.mark.slow
def test_a_replaced_step_or_energy_is_the_one_that_counts():
    layer = uj.attention(form="softmax")
    params, y = layer.init(jax.random.key(0)), np.ones((3, 2), np.float32)
    moved = layer._replace(step=lambda params, y, x=None: y + 1.0)
    for record in ("energy", None):
        np.testing.assert_array_equal(uj.unroll(moved, params, y, num_layers=2, record=record)[0], 3.0)
    measured = layer._replace(energy=lambda params, y, x=None: jnp.float32(7.0))
    np.testing.assert_array_equal(uj.unroll(measured, params, y, num_layers=2)[1].energy, 7.0)
    assert isinstance(moved, uj.Descent)


@pytest.mark.slow
def test_what_is_replaced_with_the_step_is_kept():
    layer = uj.opteq(2, 3, 1)
    assert layer.factored is not None
    assert layer.symmetric
    halved = layer._replace(step=lambda params, y, x: 0.5 * y)
    assert (halved.factored, halved.symmetric, halved.check) == (None, False, None)
    both = lambda params, y, x: (y, jnp.zeros(()))  # noqa: E731
    assert layer._replace(step=halved.step, step_and_energy=both, symmetric=True)[3:6] == (both, None, True)
    z, info = uj.equilibrium(halved, None, np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32), batch_ndim=1)
    assert np.all(info.converged)
    np.testing.assert_allclose(z, 0.0, atol=1e-4)


def test_pairs_whose_distance_overflows_have_no_nan():
    """The gradients of the quadratic are not asked for: its energy is infinite."""
    layers = [uj.attention(rho=name, form="softmax") for name in ("softmax", "geman_mcclure", "power")]
    none, quadratic = AttentionParams(None), uj.attention(rho=RHOS["power"](exponent=1.0), form="softmax")

    @jax.jit
    def run(y):
        both = lambda layer, y: (layer.energy(none, y), layer.step(none, y))  # noqa: E731
        pulled = [jax.vjp(functools.partial(both, layer), y) for layer in layers]
        return both(quadratic, y), [(values, pull((jnp.ones(()), y))) for values, pull in pulled]

    (energy, _), _ = results = run(jnp.array([[1e30, 0.0], [-1e30, 1.0], [1.0, 2.0]]))
    assert energy == np.inf
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(results))


@pytest.mark.parametrize(("name", "ends"), [("tanh", (-1.0, 1.0)), ("sigmoid", (0.0, 1.0)), ("softplus", (0.0, 200.0))])
def test_saturated_activations_have_penalties_of_finite_slope_outwards(name, ends):
    phi = PROXIMALS[name]()
    y = jnp.asarray(ends)[:, None, None]  # rounded activations of large numbers
    values, slopes = jax.vmap(jax.value_and_grad(phi.penalty))(y)
    assert np.isfinite(values).all()
    assert np.isfinite(slopes).all()
    assert slopes[0, 0, 0] < -7.0
    assert slopes[1, 0, 0] > 7.0 or name == "softplus"


def test_penalties_and_conjugates_of_nan_are_nan():
    @jax.jit
    def all_of(bad):
        phis = {name: make() for name, make in PROXIMALS.items()}
        conjugates = [sigma.conjugate(bad) for sigma in MONOTONES.values() if sigma.conjugate]
        return {name: (phi.penalty(bad), phi.prox(bad, 1.0)) for name, phi in phis.items()}, conjugates

    results, conjugates = all_of(np.full((2, 3), np.nan, np.float32))
    for name, (penalty, prox) in results.items():
        assert np.isnan(penalty) or name == "identity", name
        assert np.isnan(prox).all(), name
    assert all(np.isnan(conjugate).all() for conjugate in conjugates)
