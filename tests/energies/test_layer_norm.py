"""Layer normalisation as two gradient steps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.test_conformance import energies_and_roundoff

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32
DIM = 6


def draw(batch=()):
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-3.0, 3.0, size=(*batch, 5, 1))
    return scales * (rng.normal(size=(*batch, 5, DIM)) + 3.0 * rng.normal(size=(*batch, 5, 1)))


def reference_energy(y, radius, epsilon=0.0):
    squares = np.sum((y - y.mean(axis=-1, keepdims=True)) ** 2, axis=-1)
    tokens = 0.5 * squares - radius * np.sqrt(squares + DIM * epsilon) + 0.5 * radius**2
    return np.sum(y.sum(axis=-1) ** 2 / (2 * DIM) + tokens, axis=-1)


def test_the_energy_equals_the_reference_and_the_step_is_minus_its_gradient():
    y, cases = draw((2, 3)), [(None, 0.0), (0.7, 0.0), (2.0, 0.1)]

    @jax.jit
    def measure(y):
        results = []
        for radius, epsilon in cases:
            plain, damped = (uj.layer_norm(DIM, radius=radius, epsilon=epsilon, step_size=a) for a in (1.0, 0.3))
            gradient = jax.grad(lambda y, energy=plain.energy: jnp.sum(energy(None, y)))(y)
            results.append((plain.energy(None, y), gradient, plain.step(None, y), damped.step(None, y)))
        return results

    for case, results in zip(cases, measure(y), strict=True):
        energy, gradient, stepped, damped = map(np.asarray, results)
        radius, epsilon = case
        expected = reference_energy(y, radius or np.sqrt(DIM), epsilon)
        np.testing.assert_allclose(energy, expected, rtol=1e-12, err_msg=str(case))
        np.testing.assert_allclose(stepped, y - gradient, rtol=1e-11, atol=1e-11 * np.abs(y).max(), err_msg=str(case))
        np.testing.assert_allclose(damped, y - 0.3 * gradient, rtol=1e-9, atol=1e-9, err_msg=str(case))


def test_the_step_is_the_layer_norm_of_flax():
    y, epsilons = draw((2, 3)), (0.0, 1e-6, 0.1)

    @jax.jit
    def steps(y):
        options = {"use_bias": False, "use_scale": False, "param_dtype": jnp.float64}
        flax = [nn.LayerNorm(epsilon=epsilon, **options).apply({}, y) for epsilon in epsilons]
        ours = [uj.layer_norm(DIM, epsilon=epsilon).step(None, y) for epsilon in epsilons]
        return ours, flax, uj.layer_norm(DIM, radius=1.0).step(None, y)

    ours, flax, unit = steps(y)
    for epsilon, actual, expected in zip(epsilons, ours, flax, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9, err_msg=str(epsilon))
    np.testing.assert_allclose(unit, flax[0] / np.sqrt(DIM), rtol=1e-9, atol=1e-9)  # the radius scales it
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1.0, rtol=1e-12)


def test_of_the_token_itself_the_translation_would_raise_the_papers_sum_of_energies():
    """The second energy is one of u = y - mean(y) for this reason: taken on y, removing a small mean costs radius."""
    token = np.array([0.05, -0.05, 0.0, 0.0, 0.0, 0.0]) + 0.1
    total = lambda y: y.sum() ** 2 / (2 * DIM) + 0.5 * y @ y - np.linalg.norm(y)  # noqa: E731
    centred = token - token.mean()
    normed = centred / np.linalg.norm(centred)
    assert total(centred) > total(token) + 0.05
    assert total(normed) < total(token)  # both halves together do lower it


def test_no_step_raises_the_energy_whatever_the_radius_and_the_smoothing():
    y = draw((200,)).astype("float32")
    table = [{"radius": 0.1}, {"epsilon": 0.1}, {"epsilon": 10.0, "step_size": 0.2}]

    @jax.jit
    def descend(y):
        layers = [uj.layer_norm(DIM, **options) for options in table]
        return [energies_and_roundoff(layer.energy, None, y, layer.step(None, y), None) for layer in layers]

    for options, ((before, after), tolerance) in zip(table, jax.tree.map(np.asarray, descend(y)), strict=True):
        assert np.all(after <= before + tolerance), options
        assert np.all(after < before), options


def test_the_energy_is_half_the_squared_distance_to_what_the_step_finds():
    y, layer = draw(), uj.layer_norm(DIM)
    stepped, energy = jax.jit(lambda y: (layer.step(None, y), layer.energy(None, y)))(y)
    distance = 0.5 * np.sum((y - np.asarray(stepped)) ** 2)
    assert float(energy) == pytest.approx(distance, rel=1e-12)
    rng = np.random.default_rng(3)
    for _ in range(200):  # no point of the sphere is nearer
        other = rng.normal(size=y.shape)
        other = other - other.mean(axis=1, keepdims=True)
        other *= np.sqrt(DIM) / np.linalg.norm(other, axis=1, keepdims=True)
        assert 0.5 * np.sum((y - other) ** 2) >= distance
