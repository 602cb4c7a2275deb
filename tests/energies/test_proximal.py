"""Penalties and their proximal operators."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import unroll_jax as uj
from unroll_jax import energies
from unroll_jax.energies.proximal import resolve_proximal

# phi of one entry, from its definition, and the interval on which it is finite.
EVERYWHERE, NONNEGATIVE = (-50.0, 50.0), (0.0, 50.0)
CASES = {
    "identity": (energies.identity(), lambda z: 0.0, EVERYWHERE),
    "relu": (energies.relu(), lambda z: 0.0, NONNEGATIVE),
    "soft_threshold": (energies.soft_threshold(0.7), lambda z: 0.7 * abs(z), EVERYWHERE),
    "nonnegative_soft_threshold": (energies.nonnegative_soft_threshold(0.7), lambda z: 0.7 * z, NONNEGATIVE),
    "box": (energies.box(-0.5, 1.5), lambda z: 0.0, (-0.5, 1.5)),
}


def test_every_proximal_is_tested():
    assert set(CASES) == set(uj.PROXIMALS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_prox_is_the_numerical_minimiser(name, step_size):
    proximal, phi, domain = CASES[name]
    points = np.random.default_rng(0).uniform(-4.0, 4.0, size=12)
    found = proximal.prox(jnp.asarray(points)[:, None], step_size)[:, 0]
    for point, prox in zip(points, found, strict=True):
        objective = lambda z, point=point: phi(z) + (z - point) ** 2 / (2.0 * step_size)  # noqa: E731
        best = minimize_scalar(objective, bounds=domain, method="bounded", options={"xatol": 1e-9})
        assert prox == pytest.approx(best.x, abs=1e-6)
        assert domain[0] <= prox <= domain[1]
        assert objective(prox) <= best.fun + 1e-12


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("name", CASES)
def test_penalty_is_the_sum_over_entries_and_infinite_outside(name, batch):
    proximal, phi, domain = CASES[name]
    y = np.clip(np.random.default_rng(1).normal(size=(*batch, 4, 3)), *domain)
    expected = np.vectorize(phi)(y).sum(axis=(-2, -1))
    penalty = proximal.penalty(jnp.asarray(y))
    assert penalty.shape == batch
    np.testing.assert_allclose(penalty, expected, rtol=1e-12)
    if domain != EVERYWHERE:
        outside = y.copy()
        outside[..., 2, 1] = domain[0] - 1e-9
        assert np.all(np.isinf(proximal.penalty(jnp.asarray(outside))))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", uj.PROXIMALS)
def test_prox_keeps_shape_and_dtype_and_penalty_is_float32_at_least(getkey, name, dtype):
    proximal, y = uj.PROXIMALS[name](), jax.random.normal(getkey(), (2, 4, 3), dtype)
    stepped = proximal.prox(y, 0.5)
    assert (stepped.shape, stepped.dtype) == (y.shape, y.dtype)
    assert proximal.penalty(stepped).dtype == jnp.float32
    assert jnp.all(jnp.isfinite(proximal.penalty(stepped)))


@pytest.mark.parametrize("name", uj.PROXIMALS)
def test_prox_is_firmly_nonexpansive(getkey, name):
    """|prox(u) - prox(v)|^2 <= <prox(u) - prox(v), u - v>, which holds for the prox of a convex phi and of no other."""
    proximal = uj.PROXIMALS[name]()
    u, v = 3.0 * jax.random.normal(getkey(), (2, 500, 1, 4))
    moved = proximal.prox(u, 0.7) - proximal.prox(v, 0.7)
    assert jnp.all(jnp.sum(moved**2, -1) <= jnp.sum(moved * (u - v), -1) + 1e-5)


def test_an_entry_that_is_nan_is_outside_every_domain():
    y = jnp.full((2, 2), jnp.nan)
    for name in ("relu", "nonnegative_soft_threshold", "box"):
        assert not jnp.isfinite(uj.PROXIMALS[name]().penalty(y))
        assert jnp.all(jnp.isnan(uj.PROXIMALS[name]().prox(y, 1.0)))


BAD_OPTIONS = [
    (lambda: energies.soft_threshold(-1.0), ValueError, "threshold must be finite and at least 0, got -1.0"),
    (lambda: energies.nonnegative_soft_threshold(float("inf")), ValueError, "threshold .* got inf"),
    (lambda: energies.box(1.0, 1.0), ValueError, "lower must be below upper, got lower=1.0, upper=1.0"),
    (lambda: energies.box(float("nan"), 1.0), ValueError, "lower=nan"),
    (lambda: resolve_proximal("gelu"), ValueError, r"phi must be one of \[.*'relu'.*\] or a Proximal, got 'gelu'"),
    (lambda: resolve_proximal(3), TypeError, "phi must be one of .* or a Proximal, got int"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "message"), BAD_OPTIONS, ids=[row[2] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_users_own_proximal_serves_a_layer(getkey):
    shrink = uj.Proximal(penalty=lambda y: 0.5 * jnp.sum(y**2, (-2, -1)), prox=lambda y, step_size: y / (1 + step_size))
    layer, y = uj.feedforward(3, phi=shrink), jax.random.normal(getkey(), (5, 3))
    params = layer.init(getkey())
    assert resolve_proximal(shrink) is shrink
    assert layer.energy(params, layer.step(params, y)) < layer.energy(params, y)
    gradient = jax.grad(layer.energy, 1)(params, jnp.zeros_like(y))
    chex.assert_trees_all_close(gradient, jnp.zeros_like(y))
