"""Elementwise activations as proximal operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import unroll_jax as uj
from tests.energies.opteq_reference import SIGMA
from tests.energies.proximal.test_proximal import CASES
from unroll_jax import energies
from unroll_jax.energies.proximal.activations import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("x64")  # arrays are float64 unless a test makes them float32
FUNCTIONS = {name: SIGMA[name] for name in ("leaky_relu", "sigmoid", "tanh")}  # in NumPy
FUNCTIONS["softplus"] = lambda w: np.logaddexp(0.0, w)


def test_every_activation_is_tested():
    assert FUNCTIONS.keys() == CASES.keys() == ACTIVATIONS.keys()
    assert ACTIVATIONS.items() <= uj.PROXIMALS.items()


def test_the_prox_at_its_own_step_size_is_the_activation():
    y, sizes = np.linspace(-8.0, 8.0, 40).reshape(10, 4), (0.1, 1.0, 3.0)
    proxes = jax.jit(lambda y: {n: [make(step_size=s).prox(y, s) for s in sizes] for n, make in ACTIVATIONS.items()})
    for name, results in proxes(y).items():
        for prox in results:
            np.testing.assert_allclose(prox, FUNCTIONS[name](y), rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_prox_at_another_step_size_solves_its_equation(name):
    """sigma(w) with (1 - t) sigma(w) + t w = y, by Brent's method; six decades of y."""
    y = np.concatenate([-np.logspace(-3, 3, 15), [0.0], np.logspace(-3, 3, 15)])
    ratios = (1e-3, 0.3, 1.0 + 1e-9, 4.0, 1e3)
    pair = ACTIVATIONS[name](step_size=0.5)  # what counts is the ratio of the two
    proxes = jax.jit(lambda y: [pair.prox(y, 0.5 * ratio) for ratio in ratios])(y[:, None])
    for ratio, prox in zip(ratios, proxes, strict=True):
        far = 2.0 * np.max(np.abs(y)) / min(1.0, ratio) + 10.0
        equation = lambda w, y: (1.0 - ratio) * FUNCTIONS[name](w) + ratio * w - y  # noqa: E731, B023
        limits = {"rtol": 1e-9, "atol": 1e-12 * max(1.0, 1.0 / ratio)}
        with np.errstate(over="ignore"):
            roots = np.array([brentq(equation, -far, far, args=(value,), xtol=1e-14, rtol=1e-14) for value in y])
            np.testing.assert_allclose(np.ravel(prox), FUNCTIONS[name](roots), **limits, err_msg=str(ratio))


@pytest.mark.slow
def test_the_solved_prox_is_differentiable_twice():
    points, width = np.linspace(-3.0, 3.0, 8), 1e-5
    points = np.stack([points, points + width, points - width])

    def derivatives(proximal):
        prox = lambda y: jnp.sum(proximal.prox(y[None, None], 2.5))  # noqa: E731
        first = jax.value_and_grad(prox)
        return jax.vmap(jax.vmap(lambda y: (*first(y), jax.grad(lambda y: first(y)[1])(y))))

    curves = jax.jit(lambda y: {name: derivatives(make())(y) for name, make in ACTIVATIONS.items()})(points)
    for name, (value, first, second) in jax.tree.map(np.asarray, curves).items():
        for function, derivative in ((value, first), (first, second)):
            slopes = (function[1] - function[2]) / (2.0 * width)
            np.testing.assert_allclose(derivative[0], slopes, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_solved_prox_is_right_in_low_precision(dtype):
    y = np.linspace(-5.0, 5.0, 64).astype(dtype)[:, None]
    solve = jax.jit(lambda y: {name: make().prox(y, 3.0) for name, make in ACTIVATIONS.items()})
    solutions = solve(y)
    with jax.enable_x64(True):
        exact = solve(y.astype(np.float64))
    for name, prox in solutions.items():
        assert prox.dtype == dtype
        atol = 30.0 * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(prox, np.float64), exact[name], atol=atol, err_msg=name)


@pytest.mark.parametrize("function", [jax.nn.gelu, jax.nn.silu, jax.nn.mish], ids=["gelu", "silu", "mish"])
def test_an_activation_that_falls_is_refused_because_no_prox_does(function):
    """For u < v with f(u) > f(v), each image is nearer to the other's point: no penalty makes both of them minimal."""
    u, v = -2.0, -1.2
    images = float(function(u)), float(function(v))
    assert images[0] > images[1]
    cost = lambda point, image: 0.5 * (image - point) ** 2  # noqa: E731
    kept, swapped = cost(u, images[0]) + cost(v, images[1]), cost(u, images[1]) + cost(v, images[0])
    assert swapped < kept  # phi adds the same to both sums
    with pytest.raises(ValueError, match=r"slopes in \[0, 1\] to be a proximal operator, got slope -0.\d+ at -"):
        energies.activation(function, lambda z: z)


def test_an_activation_can_be_made_inside_a_compiled_function():
    penalty = lambda z: -jnp.log(jnp.cos(z)) - 0.5 * z**2  # noqa: E731
    actual = jax.jit(lambda y: energies.activation(jnp.arctan, penalty).prox(y, 1.0))(np.ones((1, 1), np.float32))
    assert actual.item() == pytest.approx(np.pi / 4.0)
