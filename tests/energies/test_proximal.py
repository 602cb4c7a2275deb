"""Penalties and their proximal operators."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import spence

import unroll_jax as uj
from unroll_jax import energies
from unroll_jax.energies.proximal import resolve_proximal


def conjugate_less_square(antiderivative):
    """phi_1(z) = max_w z w - psi(w) - z^2 / 2 by numerical maximisation, psi the activation's antiderivative."""

    def phi(z):
        found = minimize_scalar(
            lambda w: antiderivative(w) - z * w, bounds=(-60.0, 60.0), method="bounded", options={"xatol": 1e-10}
        )
        return -found.fun - 0.5 * z**2

    return phi


ANTIDERIVATIVES = {
    "tanh": lambda w: np.logaddexp(w, -w) - np.log(2.0),
    "sigmoid": lambda w: np.logaddexp(0.0, w),
    "softplus": lambda w: -spence(1.0 + np.exp(w)),
    "softsign": lambda w: abs(w) - np.log1p(abs(w)),
    "leaky_relu": lambda w: 0.5 * w**2 * (1.0 if w > 0.0 else 0.2),
    "elu": lambda w: 0.5 * w**2 if w > 0.0 else 0.7 * (np.expm1(w) - w),
}
ACTIVATION_STEP = 0.4  # the step size at which the prox is the activation: phi is phi_1 / 0.4


def scaled(name):
    phi = conjugate_less_square(ANTIDERIVATIVES[name])
    return lambda z: phi(z) / ACTIVATION_STEP


# phi of one entry, from its definition, and the interval on which it is finite.
EVERYWHERE, NONNEGATIVE = (-50.0, 50.0), (0.0, 50.0)
CASES = {
    "identity": (energies.identity(), lambda z: 0.0, EVERYWHERE),
    "relu": (energies.relu(), lambda z: 0.0, NONNEGATIVE),
    "soft_threshold": (energies.soft_threshold(0.7), lambda z: 0.7 * abs(z), EVERYWHERE),
    "nonnegative_soft_threshold": (energies.nonnegative_soft_threshold(0.7), lambda z: 0.7 * z, NONNEGATIVE),
    "box": (energies.box(-0.5, 1.5), lambda z: 0.0, (-0.5, 1.5)),
    "tanh": (energies.tanh(step_size=ACTIVATION_STEP), scaled("tanh"), (-1.0, 1.0)),
    "sigmoid": (energies.sigmoid(step_size=ACTIVATION_STEP), scaled("sigmoid"), (0.0, 1.0)),
    "softplus": (energies.softplus(step_size=ACTIVATION_STEP), scaled("softplus"), NONNEGATIVE),
    "softsign": (energies.softsign(step_size=ACTIVATION_STEP), scaled("softsign"), (-1.0, 1.0)),
    "leaky_relu": (energies.leaky_relu(0.2, step_size=ACTIVATION_STEP), scaled("leaky_relu"), EVERYWHERE),
    "elu": (energies.elu(0.7, step_size=ACTIVATION_STEP), scaled("elu"), (-0.7, 50.0)),
}


def test_every_proximal_is_tested():
    assert {*CASES, "group_shrinkage"} == set(uj.PROXIMALS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_prox_is_the_numerical_minimiser_and_the_envelope_the_minimum(name, step_size):
    proximal, _, domain = CASES[name]
    points = np.random.default_rng(0).uniform(-4.0, 4.0, size=12)
    both = lambda y: (proximal.prox(y, step_size), energies.moreau_envelope(proximal, y, step_size))  # noqa: E731
    found, envelope = jax.jit(jax.vmap(both))(jnp.asarray(points)[:, None, None])
    phi = jax.jit(lambda z: proximal.penalty(z[None, None]))  # itself tested against its definition below
    for point, prox, minimum in zip(points, found.ravel(), envelope, strict=True):
        objective = lambda z, point=point: float(phi(z)) + (z - point) ** 2 / (2.0 * step_size)  # noqa: E731
        best = minimize_scalar(objective, bounds=domain, method="bounded", options={"xatol": 1e-9})
        assert prox == pytest.approx(best.x, abs=1e-6)
        assert domain[0] <= prox <= domain[1]
        assert objective(prox) <= best.fun + 1e-12
        assert best.fun - 1e-5 <= minimum <= best.fun + 1e-12  # the search stops short of the ends of the domain


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("name", CASES)
def test_penalty_is_the_sum_over_entries_and_infinite_outside(name, batch):
    proximal, phi, domain = CASES[name]
    y = np.clip(np.random.default_rng(1).normal(size=(*batch, 4, 3)), *(0.95 * np.array(domain)))
    expected = np.vectorize(phi)(y).sum(axis=(-2, -1))
    penalty = proximal.penalty(jnp.asarray(y))
    assert penalty.shape == batch
    # The maximum in the definition of an activation's phi is found to about 1e-10.
    np.testing.assert_allclose(penalty, expected, rtol=1e-12, atol=1e-8 if name in ANTIDERIVATIVES else 0.0)
    for end in domain:
        if abs(end) < 50.0:
            outside = y.copy()
            outside[..., 2, 1] = end + np.copysign(1e-9, end - np.mean(domain))
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
    u, v = 3.0 * jax.random.normal(getkey(), (2, 500, 1, 4))
    for step_size in (0.7, 1.0):  # an activation's is the activation at 1, and solved for at 0.7
        proximal = uj.PROXIMALS[name]()
        moved = jnp.subtract(*jax.jit(lambda y, p=proximal, s=step_size: p.prox(y, s))(jnp.stack([u, v])))
        assert jnp.all(jnp.sum(moved**2, -1) <= jnp.sum(moved * (u - v), -1) + 1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", uj.PROXIMALS)
def test_penalty_is_convex_on_its_domain(getkey, name):
    proximal = uj.PROXIMALS[name]()
    u, v = (proximal.prox(3.0 * jax.random.normal(getkey(), (500, 2, 3), jnp.float64), 1.0) for _ in range(2))
    shares = jax.random.uniform(getkey(), (500,), jnp.float64)
    between = proximal.penalty(u + shares[:, None, None] * (v - u))
    chord = (1.0 - shares) * proximal.penalty(u) + shares * proximal.penalty(v)
    assert jnp.all(jnp.isfinite(chord))
    assert jnp.all(between <= chord + 1e-12 * (1.0 + jnp.abs(chord)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", uj.PROXIMALS)
def test_the_gradient_of_the_envelope_is_what_the_prox_takes_away(getkey, name):
    """Against finite differences of its value, and also far out where the prox meets the edge of phi's domain."""
    proximal, step_size, width = uj.PROXIMALS[name](), 0.6, 1e-5
    y = 2.0 * jax.random.normal(getkey(), (20, 3, 2), jnp.float64)
    direction = jax.random.normal(getkey(), y.shape, jnp.float64)
    envelope = lambda y: energies.moreau_envelope(proximal, y, step_size)  # noqa: E731
    points = jnp.stack([y, y + width * direction, y - width * direction, 1e3 * y])
    measure = lambda y: (*jax.value_and_grad(envelope)(y), proximal.prox(y, step_size))  # noqa: E731
    value, gradient, prox = jax.jit(jax.vmap(jax.vmap(measure)))(points)
    slope = jnp.sum(gradient[0] * direction, (-2, -1))
    np.testing.assert_allclose(slope, (value[1] - value[2]) / (2.0 * width), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, (points - prox) / step_size, rtol=1e-12)
    assert jnp.all(jnp.isfinite(gradient))
    assert jnp.all(value[0] <= proximal.penalty(y) + 1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", [0.2, 2.0])
def test_group_shrinkage_is_the_numerical_minimiser(step_size):
    rng = np.random.default_rng(3)
    y = rng.normal(size=(5, 4)) * np.array([[2.0], [1.0], [0.3], [3.0], [0.0]])
    shrinkage = energies.group_shrinkage(0.7)
    found = np.asarray(shrinkage.prox(jnp.asarray(y), step_size))

    def objective(z, token):
        return 0.7 * np.linalg.norm(z) + np.sum((z - token) ** 2) / (2.0 * step_size)

    for token, prox in zip(y, found, strict=True):
        best = minimize(objective, token + 0.1, args=(token,), method="Nelder-Mead", options={"fatol": 1e-13})
        assert objective(prox, token) <= best.fun + 1e-12
        np.testing.assert_allclose(prox, best.x, atol=1e-3)
    np.testing.assert_allclose(shrinkage.penalty(jnp.asarray(y)), 0.7 * np.linalg.norm(y, axis=1).sum(), rtol=1e-12)
    assert np.all(found[0.7 * step_size >= np.linalg.norm(y, axis=1)] == 0.0)
    gradient = jax.grad(lambda y: jnp.sum(shrinkage.prox(y, step_size)) + shrinkage.penalty(y))(jnp.asarray(y))
    assert jnp.all(jnp.isfinite(gradient))  # at a token of zeros too


def test_an_entry_that_is_nan_is_outside_every_domain():
    y = jnp.full((2, 2), jnp.nan)
    for name in uj.PROXIMALS.keys() - {"identity"}:
        assert not jnp.isfinite(uj.PROXIMALS[name]().penalty(y))
        assert jnp.all(jnp.isnan(uj.PROXIMALS[name]().prox(y, 1.0)))


BAD_OPTIONS = [
    (lambda: energies.soft_threshold(-1.0), ValueError, "threshold must be finite and at least 0, got -1.0"),
    (lambda: energies.nonnegative_soft_threshold(float("inf")), ValueError, "threshold .* got inf"),
    (lambda: energies.box(1.0, 1.0), ValueError, "lower must be below upper, got lower=1.0, upper=1.0"),
    (lambda: energies.box(float("nan"), 1.0), ValueError, "lower=nan"),
    (lambda: energies.group_shrinkage(-1.0), ValueError, "threshold must be finite and at least 0, got -1.0"),
    (
        lambda: energies.moreau_envelope(energies.relu(), jnp.ones((2, 2)), 0.0),
        ValueError,
        "step_size must be positive and finite, got 0.0",
    ),
    (
        lambda: resolve_proximal("gelu"),
        ValueError,
        r"phi must be one of \[.*'relu'.*\] or a Proximal, got 'gelu', which falls",
    ),
    (lambda: resolve_proximal("cube"), ValueError, r"phi must be one of \[.*'relu'.*\] or a Proximal, got 'cube'$"),
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
