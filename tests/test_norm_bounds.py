"""Bounds of norms and of contraction, their derivatives, and weights that are kept to
them.

They are compared with NumPy's singular values, with Jacobians of equilibria and with
iterations.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.energies import opteq_reference as reference
from tests.marks import in_float64, nightly
from tests.reference import compiled, directional_derivative, gaussian, jax_array
from unroll_jax import certificates
from unroll_jax.certificates import (
    contraction_bound,
    equilibrium_lipschitz,
    error_bound,
    picard_steps,
    spectral_normalise,
)
from unroll_jax.energies.equilibrium.deep_opteq import deep_opteq
from unroll_jax.energies.equilibrium.opteq import opteq, opteq_conv
from unroll_jax.energies.equilibrium.opteq_params import OptEqParams

pytestmark = in_float64
IMAGE = (5, 4)
SMALL = (3, 4)
CHANNELS = 2
INPUTS = 3


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=str)
def test_two_derivatives_of_the_bound_are_those_of_norms(shape):
    real, imaginary = gaussian(2, 3, *shape, seed=3)
    A, along, across = real + 1j * imaginary
    norm = lambda s, t: np.linalg.norm(A + s * along + t * across, 2)
    bound = lambda s, t: certificates.matrix_norm_bound(A + s * along + t * across)
    slope = lambda t: jax.grad(bound)(0.0, t)
    first, mixed = compiled(lambda: jax.jvp(slope, (0.0,), (1.0,)))()
    h = 1e-4
    assert_allclose(first, (norm(h, 0) - norm(-h, 0)) / (2 * h), rtol=1e-6)
    expected = (norm(h, h) - norm(h, -h) - norm(-h, h) + norm(-h, -h)) / (4 * h * h)
    assert_allclose(mixed, expected, rtol=1e-4)


SQUARINGS = (2, 5)


@compiled
def bounds_and_slopes(A):
    bound = certificates.matrix_norm_bound
    return [jax.value_and_grad(bound)(A, num_squarings=number) for number in SQUARINGS]


@pytest.mark.parametrize("sigma", [np.array([1.0, 0.99, 0.95, 0.6]), np.ones(4)])
def test_derivatives_near_equal_singular_values_are_as_stated(sigma):
    """Where all are equal, no direction is preferred."""
    left, right = (np.linalg.qr(gaussian(size, 4, seed=5))[0] for size in (6, 4))
    A = 3.0 * (left * sigma) @ right.T

    for number, (value, slope) in zip(SQUARINGS, bounds_and_slopes(A), strict=True):
        order = 2 ** (number + 2)
        ours = 2 ** (number + 1) + 2
        schatten = 3.0 * np.sum(sigma**order) ** (1 / order)
        name = f"{number} squarings"
        assert_allclose(value, schatten, rtol=1e-12, err_msg=name)
        expected, exact = (
            schatten / 3.0 * (left * (sigma ** (q - 1) / np.sum(sigma**q))) @ right.T
            for q in (ours, order)
        )
        assert_allclose(slope, expected, rtol=1e-10, atol=1e-13, err_msg=name)
        are_apart = np.max(np.abs(expected - exact)) > 0.01
        assert are_apart == (sigma[-1] < 1.0), name
        assert_allclose(np.sum(slope * A), schatten, rtol=1e-12)


def largest_of_symbol(kernel):
    return np.linalg.svd(
        np.fft.fft2(kernel, s=(IMAGE[0] + 2, IMAGE[1] + 2), axes=(0, 1)),
        compute_uv=False,
    ).max()


def test_gradients_of_convolution_bounds_are_of_the_largest_frequency():
    kernel, direction = gaussian(2, 3, 3, 4, 5, seed=3)
    bound = functools.partial(certificates.weight_norm_bound, image_shape=IMAGE)
    gradient = compiled(jax.grad(bound))(kernel)
    slope = directional_derivative(largest_of_symbol, kernel, direction, width=1e-6)
    assert np.vdot(gradient, direction) == pytest.approx(slope, rel=5e-3)


norm = functools.partial(np.linalg.norm, ord=2)


def test_norms_beyond_squares_in_float32_are_those_of_float64():
    kernel = gaussian(3, 3, 4, 5, seed=4).astype(np.float32)

    @compiled
    def measure(kernel):
        A = kernel[0, 0]
        product = certificates.spectral_norm(lambda v: A @ v, jnp.zeros_like(A[0]))
        return product, certificates.weight_norm_bound(kernel, IMAGE)

    largest = largest_of_symbol(kernel)
    for exponent in (-30, -15, 0, 15, 30):
        norms = measure(kernel * np.float32(10.0**exponent))
        assert norms[0].dtype == np.float32
        of_map, bound = np.float64(norms) / 10.0**exponent
        assert_allclose(of_map, norm(kernel[0, 0]), rtol=1e-5)
        assert largest * (1.0 - 1e-5) <= bound <= 1.01 * largest, exponent


def test_only_matrices_at_chosen_paths_are_normalised():
    draw = np.random.default_rng(0)
    W = draw.normal(size=(8, 8))
    bias = draw.normal(size=8)
    inject = draw.normal(size=(3, 8))
    small = 1e-2 * draw.normal(size=(4, 4))
    others = {"activation": jnp.tanh, "name": "cell"}
    recurrent = {"kernel": W, "bias": bias}
    params = {"recurrent": recurrent, "inject": inject, "small": small} | others

    @functools.partial(compiled, static_argnames="where")
    def normalise(**where):
        scaled = spectral_normalise(params, bound=0.7, **where)
        assert {name: scaled.pop(name) for name in others} == others
        return scaled

    scaled = normalise()
    for before, after in (
        (W, scaled["recurrent"]["kernel"]),
        (inject, scaled["inject"]),
    ):
        assert 0.699 <= norm(after) <= 0.7 * (1.0 + 1e-12)
        # in its direction
        assert_allclose(after, before * 0.7 / norm(before), rtol=1e-3)
    assert_array_equal(scaled["small"], small)
    assert_array_equal(scaled["recurrent"]["bias"], bias)
    chosen = normalise(where=lambda path: "recurrent" in path)
    assert norm(chosen["recurrent"]["kernel"]) <= 0.7 * (1.0 + 1e-12)
    assert_array_equal(chosen["inject"], inject)


def test_certified_weights_keep_to_a_bound_that_estimates_exceed():
    """Their singular values are close to each other."""
    close = np.linalg.qr(gaussian(40, 40))[0] * np.linspace(1.0, 0.9, 40)

    @compiled
    def run(W):
        few = {"certified": False, "num_steps": 2}
        return [spectral_normalise(W, bound=0.5, **options) for options in (few, {})]

    estimated, certified = map(norm, run(close))
    assert estimated > 0.51
    assert certified <= 0.5 * (1.0 + 1e-12)


def drawn(rng, window, widths, seeing, norm):
    params = []
    for place, width in enumerate(widths):
        W, U = (
            jax_array(
                rng.normal(size=(*window, inner, width) if window else (width, inner))
            )
            for inner in (CHANNELS, INPUTS)
        )
        bias = jax_array(0.1 * rng.normal(size=width))
        size = contraction_bound(OptEqParams(W, None, bias), image_shape=SMALL)
        sees = place in seeing
        params.append(OptEqParams(W * norm / size**0.5, U if sees else None, bias))
    return tuple(params)


@nightly
@pytest.mark.parametrize(
    ("window", "widths", "seeing", "skip", "activation"),
    [
        ((), (5,), (0,), 1.0, "relu"),
        ((), (4, 6, 3), (0, 2), 0.7, "tanh"),
        ((3, 3), (4, 3), (0, 1), 0.6, "relu"),
    ],
    ids=str,
)
def test_no_jacobian_of_an_equilibrium_is_above_the_bound(
    window, widths, seeing, skip, activation
):
    rng = np.random.default_rng(0)
    make, options = (opteq_conv, {"kernel_size": 3}) if window else (opteq, {})
    inputs = [INPUTS if place in seeing else None for place in range(len(widths))]
    options |= {"activation": activation, "skip": skip}
    layer = deep_opteq(
        [
            make(CHANNELS, width, of_x, **options)
            for width, of_x in zip(widths, inputs, strict=True)
        ]
    )
    place = SMALL if window else ()

    @compiled
    def measure(params, x):
        z = jnp.zeros((*place, CHANNELS))
        z = jax.lax.fori_loop(0, 300, lambda _, z: layer.step(params, z, x), z)
        by_z, by_x = jax.jacobian(lambda z, x: layer.step(params, z, x), (0, 1))(z, x)
        by_z = by_z.reshape(z.size, z.size)
        by_x = by_x.reshape(z.size, x.size)
        slope = jnp.linalg.solve(jnp.eye(z.size) - by_z, by_x)
        bound = equilibrium_lipschitz(
            params, skip=skip, image_shape=SMALL if window else None
        )
        return (
            jnp.linalg.norm(slope, 2),
            bound,
            jnp.max(jnp.abs(layer.step(params, z, x) - z)),
        )

    slopes = []
    for norm in (0.3, 0.9):
        params = drawn(rng, window, widths, seeing, norm)
        for x in rng.normal(size=(4, *place, INPUTS)):
            slope, bound, residual = map(float, measure(params, x))
            assert residual < 1e-10
            assert slope <= bound
            slopes.append(slope)
    assert max(slopes) > 0.0  # relu may be shut for some


def test_as_many_picard_steps_as_were_promised_are_enough():
    rng = np.random.default_rng(5)
    layer = opteq(4, 6)
    W = rng.normal(size=(6, 4))
    params = OptEqParams(0.95 * W / np.linalg.norm(W, 2), None, rng.normal(size=6))
    z = rng.normal(size=(20, 4))

    @compiled
    def measure(params, z):
        far, path = jax.lax.scan(
            lambda z, _: (layer.step(params, z), z), z, length=2000
        )
        c = contraction_bound(params)
        residual = jnp.linalg.norm(path[1] - z, axis=-1)
        return far, path, picard_steps(c, residual, 1e-6), error_bound(c, residual)

    far, path, promised, bound = measure(params, z)
    assert promised.shape == (20,)
    assert np.all((promised > 50) & (promised < 1000))
    assert np.all(bound >= np.linalg.norm(z - far, axis=-1))
    assert np.all(
        np.linalg.norm(path - far, axis=-1)[promised.astype(int), np.arange(20)] <= 1e-6
    )


def test_bounds_without_contraction_or_input():
    layer = OptEqParams(np.eye(2), np.eye(2), np.zeros(2))
    blind = layer._replace(W=0.5 * np.eye(2), U=None)
    rates = np.array([1.0, 1.2, 0.5, 0.0])
    residuals = np.array([0.5, 0.0, 1e-9, 1.0])

    @compiled
    def measure(layers, rates, residuals):
        return (
            [equilibrium_lipschitz(one) for one in layers],
            jax.vmap(lambda *case: picard_steps(*case, 1e-3))(rates, residuals),
            error_bound(rates[1], residuals[:2]),
        )

    slopes, steps, errors = measure([layer, blind], rates, residuals)
    assert_array_equal(slopes, [np.inf, 0.0])
    assert_array_equal(steps, [np.inf, 0.0, 0.0, 1.0])
    assert_array_equal(errors, [np.inf, 0.0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((24, 7), "bfloat16"),
        ((24, 7), "float16"),
        ((24, 7), "float32"),
        ((3, 3, 2, 4), "bfloat16"),
        pytest.param((3, 3, 2, 4), "float32", marks=nightly),
    ],
)
def test_no_bound_of_a_dtype_is_below_the_truth(shape, dtype):
    """Of two layers, of weights as they are and as they are normalised."""
    rng = np.random.default_rng(6)
    bound = 0.8
    image = (4, 5) if len(shape) == 4 else None
    sizes = rng.uniform(0.05, 0.3, size=(60, 2, *[1] * len(shape)))
    sizes = sizes / np.sqrt(np.prod(shape[:-1]))
    W = jax_array(sizes * rng.normal(size=(60, 2, *shape)), dtype)

    @compiled
    @jax.vmap
    def measure(W):
        layers = [OptEqParams(each, each, None) for each in W]
        large = OptEqParams(100.0 * W[0], None, None)
        kept = spectral_normalise(large, bound=bound, image_shape=image).W
        return (
            contraction_bound(layers, skip=0.9, image_shape=image),
            equilibrium_lipschitz(layers, skip=0.9, image_shape=image),
            kept,
        )

    contraction, slope, kept = measure(W)
    assert kept.dtype == dtype
    norms = true_norms(W, image)
    rates = 0.9 * norms**2 + 0.1
    exact = rates[:, 0] * rates[:, 1]
    exact_slope = 0.9 * (norms[:, 0] ** 2 * rates[:, 1] + norms[:, 1] ** 2)
    assert np.all(exact < 1.0)
    assert np.all(np.asarray(contraction, float) >= exact)
    assert np.all(np.asarray(slope, float) >= exact_slope / (1.0 - exact))
    if image is None:
        assert_allclose(contraction, exact, rtol=0.01)
        assert_allclose(slope, exact_slope / (1.0 - exact), rtol=0.05)
    assert np.all(true_norms(kept[:, None], image) <= bound)


def true_norms(W, image):
    W = np.asarray(W, np.float64)
    if image is None:
        return np.linalg.norm(W, 2, axis=(-2, -1))
    dense = [reference.conv_matrix(each, image) for each in W.reshape(-1, *W.shape[2:])]
    return np.linalg.norm(np.stack(dense), 2, axis=(-2, -1)).reshape(W.shape[:2])


def test_the_rate_of_a_small_weight_loses_no_digits():
    """|W|^2 = 1e-8 is below the spacing of float32 at 1."""
    W = np.full((1, 1), 1e-4, np.float32)
    rate = compiled(contraction_bound)(OptEqParams(W, None, None))
    assert_allclose(rate, float(W[0, 0]) ** 2, rtol=1e-4)
    assert float(rate) >= float(W[0, 0]) ** 2


def test_known_rates_are_not_rounded_down():
    rates = (0.9999999, 0.99999, 0.3)
    with jax.enable_x64(False):
        bounds, steps, low = compiled(
            lambda: (
                [error_bound(c, 1e-3) for c in rates],
                [picard_steps(c, 1e-3, 1e-6) for c in rates],
                error_bound(jnp.bfloat16(0.99), jnp.bfloat16(0.1)),
            )
        )()
    for c, bound, count in zip(rates, bounds, steps, strict=True):
        assert float(bound) >= 1e-3 / (1.0 - c)
        assert float(count) >= np.log(1e-6 * (1.0 - c) / 1e-3) / np.log(c)
    exact = 0.10009765625 / (1.0 - 0.98828125)  # as bfloat16 has them
    assert exact <= float(low) <= 1.001 * exact
