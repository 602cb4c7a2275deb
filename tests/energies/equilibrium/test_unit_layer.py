"""The unit layer and the energy it lowers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies import opteq_reference
from unroll_jax.energies.equilibrium.unit_layer import UnitLayerParams, unit_layer

N, DIM, WIDTH, INPUT = 5, 3, 6, 2

# sigma and its antiderivative s, written from their definitions.
SIGMA = {
    **{name: opteq_reference.SIGMA[name] for name in ("relu", "tanh")},
    "soft_threshold": lambda t: np.sign(t) * np.maximum(np.abs(t) - 1.0, 0.0),
}
ANTIDERIVATIVE = opteq_reference.ANTIDERIVATIVE | {
    "soft_threshold": lambda t: 0.5 * np.maximum(np.abs(t) - 1.0, 0.0) ** 2
}


def reference_energy(y, W, U, b, x, *, mu, activation):
    """|z|^2 / 2 - 1^T s(W z + U x + b) / mu, token by token."""
    hidden = [W @ z + U @ e + b for z, e in zip(y, x, strict=True)]
    return 0.5 * np.sum(y**2) - sum(np.sum(ANTIDERIVATIVE[activation](t)) for t in hidden) / mu


def reference_step(y, W, U, b, x, *, mu, activation, skip=1.0):
    layer = [W.T @ SIGMA[activation](W @ z + U @ e + b) / mu for z, e in zip(y, x, strict=True)]
    return (1.0 - skip) * y + skip * np.array(layer)


def draw(seed, width=WIDTH):
    rng = np.random.default_rng(seed)
    shapes = (N, DIM), (width, DIM), (width, INPUT), (width,), (N, INPUT)
    return tuple(rng.normal(size=shape) for shape in shapes)


def as_arguments(y, W, U, b, x):
    return UnitLayerParams(W, U, b), y, x


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("width", [2, WIDTH])
def test_energy_and_step_equal_the_reference(width):
    point = draw(0, width)
    layers = {name: unit_layer(DIM, width, INPUT, activation=name, mu=2.5, skip=0.4) for name in SIGMA}
    evaluate = jax.jit(lambda *a: {name: (layer.energy(*a), layer.step(*a)) for name, layer in layers.items()})
    for name, (energy, stepped) in evaluate(*as_arguments(*point)).items():
        expected = reference_energy(*point, mu=2.5, activation=name)
        np.testing.assert_allclose(energy, expected, rtol=1e-12, err_msg=name)
        expected = reference_step(*point, mu=2.5, activation=name, skip=0.4)
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("x64")
def test_the_step_is_a_gradient_step_on_the_envelope():
    layers = {name: unit_layer(DIM, WIDTH, INPUT, activation=name, mu=1.3, skip=0.6) for name in uj.PROXIMALS}
    params, y, x = as_arguments(*draw(3))
    both = lambda layer, *a: (layer.step(*a), jax.grad(layer.energy, 1)(*a))  # noqa: E731
    results = jax.jit(lambda *a: {name: both(layer, *a) for name, layer in layers.items()})(params, y, x)
    for name, (stepped, gradient) in jax.tree.map(np.asarray, results).items():
        np.testing.assert_allclose(stepped, y - 0.6 * gradient, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("x64")
def test_the_fixed_point_minimises_the_energy():
    """Where |W| is below 1, for activations that are bounded, one-sided and smooth."""
    params, y, x = as_arguments(*draw(10, DIM))
    params = params._replace(W=params.W * (0.9 / np.linalg.norm(params.W, 2)))
    ways = np.array([1e-3, 0.1, 10.0])[:, None, None] * np.random.default_rng(11).normal(size=(3, *y.shape))
    layers = {name: unit_layer(DIM, None, INPUT, activation=name) for name in ("relu", "tanh", "softplus")}

    @jax.jit
    def measure(params, y, x, ways):
        def one(layer):
            fixed = jax.lax.fori_loop(0, 400, lambda _, y: layer.step(params, y, x), y)
            return fixed, layer.step(params, fixed, x), layer.energy(params, fixed + jnp.stack([0.0 * y, *ways]), x)

        return {name: one(layer) for name, layer in layers.items()}

    for name, (fixed, stepped, (least, *others)) in measure(params, y, x, ways).items():
        np.testing.assert_allclose(stepped, fixed, atol=1e-12, err_msg=name)
        assert min(others) > least, name


def test_at_initialisation_the_layer_contracts():
    params = jax.jit(unit_layer(4, 9, INPUT).init)(jax.random.key(0))
    np.testing.assert_allclose(np.linalg.norm(params.W, 2), 0.95, rtol=1e-5)
    assert jax.eval_shape(unit_layer(4).init, jax.random.key(0)).U is None
