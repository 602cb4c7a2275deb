"""The unit layer and the two energies it lowers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import unroll_jax as uj
from tests.energies.equilibrium.unit_layer_reference import (
    CONJUGATE,
    SIGMA,
    reference_conjugate,
    reference_energy,
    reference_step,
)
from unroll_jax.energies.equilibrium.unit_layer import UnitLayerParams, unit_layer

N, DIM, WIDTH, INPUT = 5, 3, 6, 2


def draw(seed, width=WIDTH):
    """Tokens, parameters and input."""
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
    """The least of phi(u) + |u - z|^2 / 2 over u = W^T t / mu, found by a method that knows phi alone."""
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


def random_layers(rng, count, width):
    """Tokens, parameters and inputs, each with a scale of its own over six orders of magnitude."""
    shapes = (N, DIM), (width, DIM), (width, INPUT), (1, width), (N, INPUT)
    y, W, U, b, x = (
        10.0 ** rng.uniform(-3, 3, size=(count, 1, 1)) * rng.normal(size=(count, *shape)) for shape in shapes
    )
    return y, W, U, b[:, 0], x


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_no_step_raises_the_envelope_whatever_the_weights(dtype):
    names, skips = ["relu", "tanh", "leaky_relu", "box", "group_shrinkage"], (1.0, 0.3)
    with jax.enable_x64(dtype == "float64"):

        def fall(layer, skip, params, y, x):
            stepped = layer.step(params, y, x)
            proven = skip * (1.0 - skip / 2.0) * jnp.sum((stepped - y) ** 2) / skip**2
            hidden = lambda z: jnp.sum((z @ params.W.T + x @ params.U.T + params.b) ** 2)  # noqa: E731
            size = sum(jnp.sum(z**2) + hidden(z) for z in (y, stepped))
            return layer.energy(params, y, x) - layer.energy(params, stepped, x), proven, size

        @jax.jit
        @jax.vmap
        def falls(*point):
            made = {(n, s): unit_layer(DIM, WIDTH, INPUT, activation=n, skip=s) for n in names for s in skips}
            return {key: fall(layer, key[1], *as_arguments(*point)) for key, layer in made.items()}

        drawn = random_layers(np.random.default_rng(7), 1000, WIDTH)
        for key, (fell, proven, size) in falls(*(a.astype(dtype) for a in drawn)).items():
            fell = np.asarray(fell)
            assert np.all(fell >= np.asarray(proven) - 40.0 * np.finfo(dtype).eps * np.asarray(size)), key
            assert np.mean(fell > 0.0) > 0.6, key


@pytest.mark.usefixtures("x64")
def test_no_step_raises_the_conjugate_energy_whatever_the_weights():
    """From points on the range of the layer, so that it starts finite; it falls as much as is proven."""
    rng, count, skips = np.random.default_rng(8), 500, (1.0, 0.3)
    W = np.linalg.qr(rng.normal(size=(count, DIM, DIM)))[0] * rng.uniform(0.3, 1.0, size=(count, 1, DIM))
    shapes = (N, DIM), (DIM, INPUT), (DIM,), (N, INPUT)
    y, U, b, x = (rng.normal(size=(count, *shape)) for shape in shapes)

    def fall(name, *point):
        params, y, x = as_arguments(*point)
        full = unit_layer(DIM, None, INPUT, activation=name)
        start = full.step(params, y, x)
        size, falls = jnp.sum((full.step(params, start, x) - start) ** 2), []
        for skip in skips:
            layer = unit_layer(DIM, None, INPUT, activation=name, skip=skip, energy="conjugate")
            before, after = layer.energy(params, start, x), layer.energy(params, layer.step(params, start, x), x)
            falls.append((before - after, 0.5 * skip**2 * size))
        return falls

    every = jax.jit(jax.vmap(lambda *point: {name: fall(name, *point) for name in ["relu", "tanh", "soft_threshold"]}))
    for norm in (0.95, 3.0):
        for name, falls in jax.tree.map(np.asarray, every(y, norm * W, U, b, x)).items():
            for skip, (fell, proven) in zip(skips, falls, strict=True):
                assert np.all(np.isfinite(fell)), (norm, name, skip)
                assert np.all(fell >= proven - 1e-9 * (1.0 + proven)), (norm, name, skip)
                assert np.mean(fell > 1e-3) > 0.5, (norm, name, skip)


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
