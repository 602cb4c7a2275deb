"""Penalties and their proximal operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import spence

import unroll_jax as uj
from unroll_jax import energies
from unroll_jax.energies.proximal.operators import resolve_proximal

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32


def conjugate_less_square(antiderivative):
    """phi_1(z) = max_w z w - psi(w) - z^2 / 2 by numerical maximisation, psi the activation's antiderivative."""

    def phi(z):
        optimum = minimize_scalar(
            lambda w: antiderivative(w) - z * w, bounds=(-60.0, 60.0), method="bounded", options={"xatol": 1e-10}
        )
        return -optimum.fun - 0.5 * z**2

    return phi


ANTIDERIVATIVES = {
    "tanh": lambda w: np.logaddexp(w, -w) - np.log(2.0),
    "sigmoid": lambda w: np.logaddexp(0.0, w),
    "softplus": lambda w: -spence(1.0 + np.exp(w)),
    "leaky_relu": lambda w: 0.5 * w**2 * (1.0 if w > 0.0 else 0.2),
}
ACTIVATION_STEP = 0.4  # the step size at which the prox is the activation: phi is phi_1 / 0.4


def scaled(name):
    phi = conjugate_less_square(ANTIDERIVATIVES[name])
    return lambda z: phi(z) / ACTIVATION_STEP


# Each activation, phi of one entry from its definition, and the interval on which it is finite.
CASES = {
    "tanh": (energies.tanh(step_size=ACTIVATION_STEP), scaled("tanh"), (-1.0, 1.0)),
    "sigmoid": (energies.sigmoid(step_size=ACTIVATION_STEP), scaled("sigmoid"), (0.0, 1.0)),
    "softplus": (energies.softplus(step_size=ACTIVATION_STEP), scaled("softplus"), (0.0, 50.0)),
    "leaky_relu": (energies.leaky_relu(0.2, step_size=ACTIVATION_STEP), scaled("leaky_relu"), (-50.0, 50.0)),
}


def test_penalties_of_activations_are_sums_over_entries_of_each_example_and_infinite_outside():
    points, outside = {}, {}
    for name, (_, _, domain) in CASES.items():
        points[name] = np.clip(np.random.default_rng(1).normal(size=(2, 3, 4, 3)), *(0.95 * np.array(domain)))
        for end in domain:
            if abs(end) < 50.0:
                y = points[name].copy()
                y[..., 2, 1] = end + np.copysign(1e-9, end - np.mean(domain))
                outside[name, end] = y
    ends = list(outside)

    @jax.jit
    def penalties(points, outside):
        each = {}
        for name, y in points.items():
            penalty = CASES[name][0].penalty
            each[name] = penalty(y), jax.vmap(penalty)(y), jax.vmap(jax.vmap(penalty))(y)
        return each, [CASES[name][0].penalty(y) for (name, _), y in zip(ends, outside, strict=True)]

    each, beyond = penalties(points, list(outside.values()))
    for name, of_ranks in each.items():
        expected = np.vectorize(CASES[name][1])(points[name]).sum(axis=(-2, -1))
        for penalty in of_ranks:  # of a batch of rank 2, and of its examples in batches of ranks 1 and 0
            # The maximum in the definition of an activation's phi is found to about 1e-10.
            np.testing.assert_allclose(penalty, expected, rtol=1e-12, atol=1e-8, err_msg=name)
    for (name, end), penalty in zip(ends, beyond, strict=True):
        assert penalty.shape == (2, 3)
        assert np.all(np.isinf(penalty)), (name, end)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prox_keeps_shape_and_dtype_and_penalty_is_float32_at_least(dtype):
    y = np.random.default_rng(2).normal(size=(2, 4, 3)).astype(dtype)

    @jax.jit
    def measure(y):
        values = {}
        for name, factory in uj.PROXIMALS.items():
            stepped = factory().prox(y, 0.5)
            values[name] = stepped, factory().penalty(stepped)
        return values

    for name, (stepped, penalty) in measure(y).items():
        assert (stepped.shape, stepped.dtype) == (y.shape, y.dtype), name
        assert penalty.dtype == jnp.float32, name
        assert np.all(np.isfinite(penalty)), name


def test_prox_is_firmly_nonexpansive_and_penalty_convex_on_its_domain():
    """|prox(u) - prox(v)|^2 <= <prox(u) - prox(v), u - v>, which holds for the prox of a convex phi and of no other."""
    rng = np.random.default_rng(4)
    pair, shares = 3.0 * rng.normal(size=(2, 500, 2, 4)), rng.uniform(size=500)

    @jax.jit
    def measure(pair, shares):
        def of(phi):
            # An activation's prox is the activation at step size 1, and solved for at 0.7.
            proxes = [phi.prox(pair, step_size) for step_size in (0.7, 1.0)]
            u, v = proxes[1]
            return proxes, phi.penalty(jnp.stack([u, v, u + shares[:, None, None] * (v - u)]))

        return {name: of(factory()) for name, factory in uj.PROXIMALS.items()}

    for name, (proxes, (first, last, between)) in measure(pair, shares).items():
        for prox in proxes:
            difference = np.asarray(prox[0] - prox[1])
            product = np.sum(difference * (pair[0] - pair[1]), (-2, -1))
            assert np.all(np.sum(difference**2, (-2, -1)) <= product + 1e-9), name
        chord = (1.0 - shares) * first + shares * last
        assert np.all(np.isfinite(chord)), name
        assert np.all(between <= chord + 1e-12 * (1.0 + np.abs(chord))), name


def test_a_users_own_proximal_serves_a_layer():
    shrink = uj.Proximal(penalty=lambda y: 0.5 * jnp.sum(y**2, (-2, -1)), prox=lambda y, step_size: y / (1 + step_size))
    layer, y = uj.feedforward(3, phi=shrink), np.random.default_rng(7).normal(size=(5, 3)).astype(np.float32)

    @jax.jit
    def measure(y):
        params = layer.init(jax.random.key(0))
        before, after = layer.energy(params, y), layer.energy(params, layer.step(params, y))
        return before, after, jax.grad(layer.energy, 1)(params, jnp.zeros_like(y))

    before, after, gradient = measure(y)
    assert resolve_proximal(shrink) is shrink
    assert float(after) < float(before)
    np.testing.assert_allclose(gradient, 0.0)
