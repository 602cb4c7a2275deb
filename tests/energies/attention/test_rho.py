"""The functions of distance that attention weights come from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.energies.attention.examples import NO_WEIGHT, jitted
from tests.marks import in_float64
from tests.reference import compiled, gaussian
from unroll_jax.energies.attention import rho as table
from unroll_jax.energies.attention.rho import resolve_rho

DISTANCES = np.concatenate([[0.0], np.logspace(-12, 12, 97)])
# Numbers given to a factory, and the formulas of the docstrings, differently arranged
# where that is possible.
FORMULAS = {
    "log": ({"shift": 0.3}, lambda z: np.log(z + 0.3), lambda z: 1 / (z + 0.3)),
    "cauchy": (
        {"scale": 0.3},
        lambda z: 0.3 * np.log1p(z / 0.3),
        lambda z: 0.3 / (0.3 + z),
    ),
    "student": (
        {"degrees": 0.5},
        lambda z: 0.75 * np.log1p(4 * z),
        lambda z: 1.5 / (0.5 + 2 * z),
    ),
    "geman_mcclure": (
        {"scale": 0.3},
        lambda z: 0.3 * z / (0.3 + z),
        lambda z: (0.3 / (0.3 + z)) ** 2,
    ),
    "power": (
        {"exponent": 0.3, "shift": 1e-3},
        lambda z: np.exp(0.3 * np.log(z + 1e-3)),
        lambda z: 0.3 * np.exp(-0.7 * np.log(z + 1e-3)),
    ),
    "truncated_quadratic": (
        {"threshold": 0.3},
        lambda z: np.where(z < 0.3, z, 0.3),
        lambda z: np.where(z < 0.3, 1.0, 0.0),
    ),
}


def values_and_slopes(entries):
    rhos = {name: resolve_rho(entry) for name, entry in entries.items()}
    return compiled(
        lambda z: {name: [of(z) for of in rho[:3]] for name, rho in rhos.items()}
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_rho_equals_the_reference_concave_and_nondecreasing(
    dtype,
):
    """Concave at every pair of points, not only neighbours: the tangent at one lies
    above the value at the other. Of tokens of unit norm z is 1 - u . v: 1 / (2 - u . v)
    in Yang et al. (2022), Section 7, is the slope of log(z + 1).
    """
    z = DISTANCES.astype(dtype)
    eps = jnp.finfo(dtype).eps
    exact = np.float64(z)
    with jax.enable_x64(dtype == "float64"):
        curves = values_and_slopes({name: name for name in uj.RHOS})(z)
    for name, (value, slope, log_slope) in curves.items():
        assert_allclose(
            value,
            reference.RHO_VALUES[name](exact),
            rtol=8 * eps,
            atol=1e-30,
            err_msg=name,
        )
        # No table entry is below the smallest normal number here but softmax, whose
        # slope underflows.
        expected = reference.RHO_SLOPES[name](exact)
        assert_allclose(slope, expected, rtol=1e2 * eps, atol=1e-37, err_msg=name)
        with np.errstate(divide="ignore"):
            logarithms = -exact if name == "softmax" else np.log(expected)
        assert_allclose(log_slope, logarithms, rtol=8 * eps, atol=4 * eps, err_msg=name)
        assert value.dtype == slope.dtype == dtype, name
        assert np.all(slope >= 0.0), name
        assert np.all(np.diff(slope) <= 0.0), name
        tangents = value[:, None] + slope[:, None] * (z[None, :] - z[:, None])
        rounding = (
            16
            * eps
            * (np.abs(value)[:, None] + slope[:, None] * (z[None, :] + z[:, None]))
        )
        assert np.all(value[None, :] <= tangents + rounding), name


def test_a_tiny_scale_does_not_overflow():
    """Half the squared distance over the scale is beyond float32 here."""
    z = np.array([0.0, 1e-25, 1e5, 1e30], np.float32)
    scale = 1e-30
    weights = {"log": (1.0, np.log(scale)), "cauchy": (scale, 0.0)}
    rhos = {name: table.RHOS[name](scale) for name in weights}
    curves = compiled(
        lambda z: {name: (rho.value(z), rho.log_slope(z)) for name, rho in rhos.items()}
    )(z)
    exact = np.log1p(np.float64(z) / scale)
    for name, (value, slope) in curves.items():
        weight, shift = weights[name]
        near = {"rtol": 1e-5, "err_msg": name}
        assert_allclose(value, weight * exact + shift, atol=1e-4 * weight, **near)
        assert_allclose(slope, np.log(weight / scale) - exact, atol=1e-4, **near)


@in_float64
def test_numbers_given_to_a_factory_count():
    curves = values_and_slopes(
        {name: jitted(uj.RHOS[name](**row[0])) for name, row in FORMULAS.items()}
    )(DISTANCES)
    for name, (_, value, slope) in FORMULAS.items():
        with np.errstate(divide="ignore"):
            expected = value(DISTANCES), slope(DISTANCES), np.log(slope(DISTANCES))
        for array, exact, tolerance in zip(
            curves[name], expected, (0.0, 0.0, 1e-14), strict=True
        ):
            assert_allclose(array, exact, rtol=1e-12, atol=tolerance, err_msg=name)


def test_every_rho_has_finite_derivatives_and_keeps_a_nan():
    functions = {}
    for name in uj.RHOS:
        rho = resolve_rho(name)
        functions |= {f"{name}, value": rho.value, f"{name}, log slope": rho.log_slope}

    @compiled
    def all_of(z, nan):
        return {key: (jax.vmap(jax.grad(f))(z), f(nan)) for key, f in functions.items()}

    results = all_of(np.float32(DISTANCES), np.full(1, np.nan, np.float32))
    for key, (derivative, of_nan) in results.items():
        assert np.all(np.isfinite(derivative)), key
        assert np.isnan(of_nan[0]), key


def test_a_slope_of_zero_has_finite_derivatives():
    """Flat beyond 1: such pairs drop out of the step, without a NaN in its gradient."""
    by_hand = uj.Rho(
        value=lambda z: jnp.minimum(z, 1.0),
        slope=lambda z: jnp.where(z < 1.0, 1.0, 0.0),
    )

    @compiled
    def all_of(y, z):
        def one(rho):
            step = lambda y: uj.attention(rho=rho).step(NO_WEIGHT, y)
            return resolve_rho(rho).log_slope(z), step(y), jax.jacobian(step)(y)

        return one(by_hand), one("truncated_quadratic")

    for log_slope, stepped, slopes in all_of(
        np.float32([[0.0], [0.5], [9.0]]), np.float32([0.5, 2.0])
    ):
        assert log_slope.tolist() == [0.0, -np.inf]
        assert_allclose(stepped, [[0.5], [0.0], [9.0]], rtol=1e-6)
        assert np.all(np.isfinite(slopes))


GOOD = {
    "linear": lambda z: z,
    "constant": lambda z: 0.0 * z,
    "steep": lambda z: -jnp.exp(-1e3 * z),
    "cancelling": lambda z: 1.0 - 1.0 / (1.0 + z),
    "kinked": lambda z: jnp.minimum(z, 3.0),
    "partial": functools.partial(lambda exponent, z: (z + 0.1) ** exponent, 0.25),
}


def test_a_function_of_ones_own_is_a_rho():
    """Its slope is its derivative. Steps of such are in test_pairwise_descent.py."""
    rhos = {name: resolve_rho(jax.jit(of_z)) for name, of_z in GOOD.items()}

    @compiled
    def slopes(z):
        return {
            name: (rho.slope(z), jax.vmap(jax.grad(GOOD[name]))(z))
            for name, rho in rhos.items()
        }

    for name, pair in slopes(np.float32([0.0, 0.5, 9.0])).items():
        assert_allclose(*pair, rtol=1e-6, err_msg=name)


def test_a_rho_may_have_a_traced_number():
    y = np.float32(gaussian(5, 2))
    pairs = 0.5 * np.sum((y[:, None] - y[None]) ** 2, axis=-1)

    def energy(shift, y):
        return uj.attention(rho=lambda z: jnp.log(z + shift)).energy(NO_WEIGHT, y)

    by_formula = 0.5 * np.sum((1 - np.eye(5)) / (pairs + 0.7))
    assert_allclose(compiled(jax.grad(energy))(0.7, y), by_formula, rtol=1e-5)
