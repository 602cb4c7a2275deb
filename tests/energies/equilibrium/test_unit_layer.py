"""The unit layer and the two energies it lowers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import unroll_jax as uj
from tests.energies import opteq_reference
from unroll_jax.energies.equilibrium.unit_layer import UnitLayerParams, unit_layer

N, DIM, WIDTH, INPUT = 5, 3, 6, 2

# sigma, its antiderivative s, and the conjugate s*, written from their definitions.
SIGMA = {
    **{name: opteq_reference.SIGMA[name] for name in ("relu", "tanh")},
    "soft_threshold": lambda t: np.sign(t) * np.maximum(np.abs(t) - 1.0, 0.0),
}
ANTIDERIVATIVE = opteq_reference.ANTIDERIVATIVE | {
    "soft_threshold": lambda t: 0.5 * np.maximum(np.abs(t) - 1.0, 0.0) ** 2
}
CONJUGATE = {
    "relu": lambda t: np.where(t >= -1e-9, 0.5 * t**2, np.inf),
    "tanh": lambda t: t * np.arctanh(t) + 0.5 * np.log1p(-(t**2)),
    "soft_threshold": lambda t: 0.5 * t**2 + np.abs(t),
}


def reference_energy(y, W, U, b, x, *, mu, activation):
    """|z|^2 / 2 - 1^T s(W z + U x + b) / mu, token by token."""
    hidden = [W @ z + U @ e + b for z, e in zip(y, x, strict=True)]
    return 0.5 * np.sum(y**2) - sum(np.sum(ANTIDERIVATIVE[activation](t)) for t in hidden) / mu


def reference_conjugate(y, W, U, b, x, *, activation):
    """Eq. 3: 1^T s*(W^-T z) - <f(x), W^-T z> - |z|^2 / 2, token by token."""
    total = 0.0
    for z, e in zip(y, x, strict=True):
        preimage = np.linalg.inv(W).T @ z
        total += np.sum(CONJUGATE[activation](preimage)) - (U @ e + b) @ preimage - 0.5 * z @ z
    return total


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
def test_the_conjugate_energy_is_equation_3():
    """On the range of the layer, where it is finite; off it, it is infinite."""
    y, W, U, b, x = draw(1, DIM)
    points = {name: reference_step(y, W, U, b, x, mu=1.0, activation=name) for name in CONJUGATE}
    layers = {name: unit_layer(DIM, None, INPUT, activation=name, energy="conjugate") for name in CONJUGATE}
    edge = [np.tile(coefficients, (N, 1)) @ W for coefficients in ([1.0, 0.0, 2.0], [1.0, -1e-3, 2.0])]

    @jax.jit
    def energies(params, points, edge, x):
        values = {name: layer.energy(params, points[name], x) for name, layer in layers.items()}
        return values, [layers["relu"].energy(params, z, x) for z in edge]

    values, (inside, outside) = energies(UnitLayerParams(W, U, b), points, edge, x)
    for name, energy in values.items():
        expected = reference_conjugate(points[name], W, U, b, x, activation=name)
        np.testing.assert_allclose(energy, expected, rtol=1e-11, err_msg=name)
    assert np.isfinite(inside)
    assert np.isinf(outside)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("activation", "mu"), [("relu", 0.7), ("tanh", 4.0), ("softplus", 0.7)])
def test_the_layer_is_the_proximal_operator_of_the_conjugate_energy(activation, mu):
    """The minimum of phi(u) + |u - z|^2 / 2 over u = W^T t / mu, by a method that uses only phi."""
    params, y, x = as_arguments(*draw(2, DIM))
    layer = unit_layer(DIM, None, INPUT, activation=activation, mu=mu, energy="conjugate")
    envelope = unit_layer(DIM, None, INPUT, activation=activation, mu=mu)

    @jax.jit
    def measure(t, params, y, x):
        def objective(t):
            u = t.reshape(N, DIM) @ params.W / mu
            return layer.energy(params, u, x) + 0.5 * jnp.sum((u - y) ** 2)

        return *jax.value_and_grad(objective)(t), layer.step(params, y, x), envelope.energy(params, y, x)

    start = np.full(N * DIM, 0.5)
    bounds = [(-1.0 + 1e-9, 1.0 - 1e-9) if activation == "tanh" else (1e-9, None)] * (N * DIM)
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000}
    objective = lambda t: measure(t, params, y, x)[:2]  # noqa: E731
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    *_, stepped, energy = measure(start, params, y, x)
    np.testing.assert_allclose(stepped, solution.x.reshape(N, DIM) @ params.W / mu, atol=1e-5)
    np.testing.assert_allclose(energy, solution.fun, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_the_step_is_a_gradient_step_on_the_envelope():
    layers = {name: unit_layer(DIM, WIDTH, INPUT, activation=name, mu=1.3, skip=0.6) for name in uj.PROXIMALS}
    params, y, x = as_arguments(*draw(3))
    both = lambda layer, *a: (layer.step(*a), jax.grad(layer.energy, 1)(*a))  # noqa: E731
    results = jax.jit(lambda *a: {name: both(layer, *a) for name, layer in layers.items()})(params, y, x)
    for name, (stepped, gradient) in jax.tree.map(np.asarray, results).items():
        np.testing.assert_allclose(stepped, y - 0.6 * gradient, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_the_fixed_point_minimises_both_energies(activation):
    options = {"width": None, "input_dim": INPUT, "activation": activation}
    envelope, conjugate = unit_layer(DIM, **options), unit_layer(DIM, **options, energy="conjugate")
    params, y, x = as_arguments(*draw(10, DIM))
    params = params._replace(W=params.W * (0.9 / np.linalg.norm(params.W, 2)))
    ways = np.array([1e-3, 0.1, 10.0])[:, None, None] * np.random.default_rng(11).normal(size=(3, *y.shape))

    @jax.jit
    def measure(params, y, x, ways):
        step = lambda y: envelope.step(params, y, x)  # noqa: E731
        energies = lambda z: (envelope.energy(params, z, x), conjugate.energy(params, step(z), x))  # noqa: E731
        fixed = jax.lax.fori_loop(0, 400, lambda _, y: step(y), y)
        return fixed, step(fixed), energies(fixed), jax.vmap(energies)(fixed + ways)  # step(z) is in the range

    fixed, stepped, least, others = jax.tree.map(np.asarray, measure(params, y, x, ways))
    np.testing.assert_allclose(stepped, fixed, atol=1e-12)
    assert np.all(others[0] > least[0])
    assert np.all(others[1] > least[1])
    np.testing.assert_allclose(*least, rtol=1e-9)


def test_at_initialisation_the_layer_contracts():
    params = jax.jit(unit_layer(4, 9, INPUT).init)(jax.random.key(0))
    np.testing.assert_allclose(np.linalg.norm(params.W, 2), 0.95, rtol=1e-5)
    assert jax.eval_shape(unit_layer(4).init, jax.random.key(0)).U is None
