"""Bounds of contraction: how fast an equilibrium moves with its input, and how soon iterations reach it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.certificates import contraction_bound, equilibrium_lipschitz, error_bound, picard_steps
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

pytestmark = pytest.mark.usefixtures("x64")
IMAGE, CHANNELS, INPUTS = (3, 4), 2, 3


def params_of(W):
    return OptEqParams(jnp.asarray(W), None, jnp.zeros(W.shape[0]))


def drawn(rng, window, widths, seeing, norm):
    params = []
    for place, width in enumerate(widths):
        shapes = [(*window, inner, width) if window else (width, inner) for inner in (CHANNELS, INPUTS)]
        W, U = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
        size = float(contraction_bound(OptEqParams(W, None, jnp.zeros(width)), image_shape=IMAGE)) ** 0.5
        params.append(
            OptEqParams(W * norm / size, U if place in seeing else None, jnp.asarray(0.1 * rng.normal(size=width)))
        )
    return tuple(params)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    ("window", "widths", "seeing", "skip"),
    [
        ((), (5,), (0,), 1.0),
        ((), (5,), (0,), 0.4),
        ((), (4, 6, 3), (0, 1, 2), 0.7),
        ((), (4, 6, 3), (1,), 1.0),
        ((3, 3), (4,), (0,), 0.6),
        ((3, 3), (4, 3), (0, 1), 1.0),
    ],
    ids=str,
)
def test_no_jacobian_of_an_equilibrium_is_above_the_bound(window, widths, seeing, skip, activation):
    rng = np.random.default_rng(0)
    make, options = (opteq_conv, {"kernel_size": 3}) if window else (opteq, {})
    inputs = [INPUTS if place in seeing else None for place in range(len(widths))]
    options |= {"activation": activation, "skip": skip}
    layer = deep_opteq([make(CHANNELS, width, of_x, **options) for width, of_x in zip(widths, inputs, strict=True)])
    place = IMAGE if window else ()

    @jax.jit
    def measure(params, x):
        z = jnp.zeros((*place, CHANNELS))
        z = jax.lax.fori_loop(0, 300, lambda _, z: layer.step(params, z, x), z)
        by_z, by_x = jax.jacobian(lambda z, x: layer.step(params, z, x), (0, 1))(z, x)
        by_z, by_x = by_z.reshape(z.size, z.size), by_x.reshape(z.size, x.size)
        slope = jnp.linalg.solve(jnp.eye(z.size) - by_z, by_x)
        bound = equilibrium_lipschitz(params, skip=skip, image_shape=IMAGE if window else None)
        return jnp.linalg.norm(slope, 2), bound, jnp.max(jnp.abs(layer.step(params, z, x) - z))

    slopes = []
    for norm in (0.3, 0.9):
        params = drawn(rng, window, widths, seeing, norm)
        for x in rng.normal(size=(4, *place, INPUTS)):
            slope, bound, residual = map(float, measure(params, x))
            assert residual < 1e-10
            assert slope <= bound
            slopes.append(slope)
    assert max(slopes) > 0.0  # relu may be shut for some


@pytest.mark.slow
@pytest.mark.parametrize("convolutional", [False, True])
@pytest.mark.parametrize("skip", [1.0, 0.3])
def test_the_bound_is_the_slope_of_numbers(convolutional, skip):
    """One layer and two, of one unit: all singular directions meet, and relu is open."""
    shape = (1, 1, 1, 1) if convolutional else (1, 1)
    layers = [OptEqParams(jnp.full(shape, w), jnp.full(shape, u), jnp.zeros(1)) for w, u in ((0.8, 3.0), (0.5, 0.7))]
    image = {"image_shape": (2, 2)} if convolutional else {}
    bound = float(equilibrium_lipschitz(layers[0], skip=skip, **image))
    np.testing.assert_allclose(bound, 0.8 * 3.0 / (1.0 - 0.64), rtol=1e-9)
    first, second = skip * 0.64 + 1.0 - skip, skip * 0.25 + 1.0 - skip
    slope = (second * skip * 0.8 * 3.0 + skip * 0.5 * 0.7) / (1.0 - first * second)
    np.testing.assert_allclose(float(equilibrium_lipschitz(layers, skip=skip, **image)), slope, rtol=1e-9)


def test_what_does_not_contract_has_no_bound_and_what_sees_no_input_does_not_move():
    layer = OptEqParams(jnp.eye(2), jnp.eye(2), jnp.zeros(2))
    assert float(equilibrium_lipschitz(layer)) == np.inf
    assert float(equilibrium_lipschitz(layer._replace(W=0.5 * jnp.eye(2), U=None))) == 0.0


@pytest.mark.parametrize("skip", [1.0, 0.5])
def test_differences_shrink_by_the_contraction_bound_and_can_attain_it(skip):
    rng = np.random.default_rng(4)
    layers = [opteq(4, 5, activation="identity", skip=skip) for _ in range(2)]
    params = tuple(params_of(0.9 * W / np.linalg.norm(W, 2)) for W in [rng.normal(size=(5, 4)) for _ in layers])
    deep, right = deep_opteq(layers), np.linalg.svd(params[0].W)[2][0]

    @jax.jit
    def measure(params, u, v, right):
        bounds = [contraction_bound(one, skip=skip) for one in (params, params[0])]
        return bounds, deep.step(params, u) - deep.step(params, v), layers[0].step(params[0], right)

    u, v = rng.normal(size=(2, 100, 4))
    (bound, single), moved, image = jax.tree.map(np.asarray, measure(params, u, v, right))
    np.testing.assert_allclose(bound, (skip * 0.81 + 1.0 - skip) ** 2, rtol=2e-3)
    assert np.all(np.linalg.norm(moved, axis=1) <= bound * np.linalg.norm(u - v, axis=1))
    np.testing.assert_allclose(np.linalg.norm(image), single, rtol=2e-3)  # b = 0: the image of 0 is 0


def test_as_many_picard_steps_as_were_promised_are_enough():
    rng = np.random.default_rng(5)
    layer, W = opteq(4, 6), rng.normal(size=(6, 4))
    params = params_of(0.95 * W / np.linalg.norm(W, 2))._replace(b=rng.normal(size=6))
    z = rng.normal(size=(20, 4))

    @jax.jit
    def measure(params, z):
        far, path = jax.lax.scan(lambda z, _: (layer.step(params, z), z), z, length=2000)
        c, residual = contraction_bound(params), jnp.linalg.norm(path[1] - z, axis=-1)
        return far, path, picard_steps(c, residual, 1e-6), error_bound(c, residual)

    far, path, promised, bound = map(np.asarray, measure(params, z))
    assert promised.shape == (20,)
    assert np.all((promised > 50) & (promised < 1000))
    assert np.all(bound >= np.linalg.norm(z - far, axis=-1))
    assert np.all(np.linalg.norm(path - far, axis=-1)[promised.astype(int), np.arange(20)] <= 1e-6)


def test_what_does_not_contract_has_no_promise():
    steps = jax.jit(lambda c, residual: picard_steps(c, residual, 1e-3))
    counts = [float(steps(*case)) for case in [(1.0, 0.5), (1.2, 0.0), (0.5, 1e-9), (0.0, 1.0)]]
    assert counts == [np.inf, 0.0, 0.0, 1.0]
    error = jax.jit(error_bound)
    assert [float(error(1.2, residual)) for residual in (0.5, 0.0)] == [np.inf, 0.0]
