"""The functions of distance that attention weights come from."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import rho as table
from unroll_jax.energies.rho import resolve_rho

DISTANCES = np.concatenate([[0.0], np.logspace(-12, 12, 97)])

every_rho = pytest.mark.parametrize("name", uj.RHOS)
OPTIONS = {
    "log": {"shift": 0.3},
    "cauchy": {"scale": 0.3},
    "student": {"degrees": 0.5},
    "geman_mcclure": {"scale": 0.3},
    "power": {"exponent": 0.3, "shift": 1e-3},
    "truncated_quadratic": {"threshold": 0.3},
}
# The same numbers in the formulas of the docstrings, differently arranged where that is possible.
FORMULAS = {
    "log": (lambda z: np.log(z + 0.3), lambda z: 1 / (z + 0.3)),
    "cauchy": (lambda z: 0.3 * np.log1p(z / 0.3), lambda z: 0.3 / (0.3 + z)),
    "student": (lambda z: 0.75 * np.log1p(4 * z), lambda z: 1.5 / (0.5 + 2 * z)),
    "geman_mcclure": (lambda z: 0.3 * z / (0.3 + z), lambda z: (0.3 / (0.3 + z)) ** 2),
    "power": (lambda z: np.exp(0.3 * np.log(z + 1e-3)), lambda z: 0.3 * np.exp(-0.7 * np.log(z + 1e-3))),
    "truncated_quadratic": (lambda z: np.where(z < 0.3, z, 0.3), lambda z: np.where(z < 0.3, 1.0, 0.0)),
}


@every_rho
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_slopes_equal_the_reference_over_24_orders_of_magnitude(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        rho, z = resolve_rho(name), jnp.asarray(DISTANCES, dtype)
        eps, exact = jnp.finfo(dtype).eps, np.asarray(z, np.float64)
        np.testing.assert_allclose(rho.value(z), reference.RHO_VALUES[name](exact), rtol=8 * eps, atol=1e-30)
        # No table entry is below the smallest normal number here but softmax, whose slope underflows.
        np.testing.assert_allclose(rho.slope(z), reference.RHO_SLOPES[name](exact), rtol=1e2 * eps, atol=1e-37)
        with np.errstate(divide="ignore"):
            logarithms = -exact if name == "softmax" else np.log(reference.RHO_SLOPES[name](exact))
        np.testing.assert_allclose(rho.log_slope(z), logarithms, rtol=8 * eps, atol=4 * eps)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OPTIONS)
def test_numbers_given_to_a_factory_count(name):
    rho, z = resolve_rho(uj.RHOS[name](**OPTIONS[name])), jnp.asarray(DISTANCES)
    value, slope = (formula(DISTANCES) for formula in FORMULAS[name])
    np.testing.assert_allclose(rho.value(z), value, rtol=1e-12)
    np.testing.assert_allclose(rho.slope(z), slope, rtol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(rho.log_slope(z), np.log(slope), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
@every_rho
def test_the_given_slope_is_the_derivative_of_the_value(name):
    # At 1 the truncated quadratic has a kink; further out autodiff cancels digits.
    given, z = resolve_rho(name), jnp.asarray(DISTANCES[(DISTANCES < 1e2) & (DISTANCES != 1.0)])
    derived = resolve_rho(given.value)
    np.testing.assert_allclose(given.slope(z), derived.slope(z), rtol=1e-11)
    np.testing.assert_allclose(given.log_slope(z), derived.log_slope(z), rtol=1e-9, atol=1e-12)


@every_rho
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_rho_is_concave_and_nondecreasing(name, dtype):
    """Every pair of points, not only neighbours: the tangent at one lies above the value at the other."""
    with jax.enable_x64(dtype == "float64"):
        rho, z = resolve_rho(name), jnp.asarray(DISTANCES, dtype)
        value, slope = rho.value(z), rho.slope(z)
        assert jnp.all(slope >= 0.0)
        assert jnp.all(jnp.diff(slope) <= 0.0)
        tangents = value[:, None] + slope[:, None] * (z[None, :] - z[:, None])
        rounding = 16 * jnp.finfo(dtype).eps * (jnp.abs(value)[:, None] + slope[:, None] * (z[None, :] + z[:, None]))
        assert jnp.all(value[None, :] <= tangents + rounding)


@every_rho
def test_every_rho_has_finite_derivatives_and_keeps_a_nan(name):
    rho, z = resolve_rho(name), jnp.asarray(DISTANCES, jnp.float32)
    for function in (rho.value, rho.log_slope):
        chex.assert_tree_all_finite(jax.vmap(jax.grad(function))(z))
        assert jnp.isnan(function(jnp.full(1, jnp.nan)))[0]


def test_log_with_shift_1_gives_the_weights_of_unit_norm_tokens():
    """Yang et al. (2022), Section 7: 1 / (2 - y_i . y_j) belongs to log(z + 1), not to log(z + 2)."""
    u, v = (jnp.asarray(w) / jnp.linalg.norm(jnp.asarray(w)) for w in ([1.0, 2.0, 2.0], [3.0, -1.0, 0.5]))
    half_square = 0.5 * jnp.sum((u - v) ** 2)
    chex.assert_trees_all_close(table.log(1.0).slope(half_square), 1.0 / (2.0 - u @ v), rtol=1e-6)
    chex.assert_trees_all_close(table.log(2.0).slope(half_square), 1.0 / (3.0 - u @ v), rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_one_degree_of_freedom_is_the_density_of_cauchy():
    distances = np.linspace(0.0, 5.0, 21)
    for degrees, density in ((1.0, stats.cauchy), (4.0, stats.t(4.0))):
        value = table.student(degrees).value(jnp.asarray(0.5 * distances**2))
        np.testing.assert_allclose(value, density.logpdf(0.0) - density.logpdf(distances), rtol=1e-12, atol=1e-14)


def test_a_slope_of_zero_has_finite_derivatives():
    """Flat beyond 1: such pairs drop out of the step, without a NaN in its gradient."""
    by_hand = uj.Rho(value=lambda z: jnp.minimum(z, 1.0), slope=lambda z: jnp.where(z < 1.0, 1.0, 0.0))
    for truncated in (resolve_rho(by_hand), resolve_rho("truncated_quadratic")):
        assert truncated.log_slope(jnp.array([0.5, 2.0])).tolist() == [0.0, -jnp.inf]
        layer, y = uj.attention(rho=truncated), jnp.array([[0.0], [0.5], [9.0]])
        params = layer.init(jax.random.key(0))
        chex.assert_trees_all_close(layer.step(params, y), jnp.array([[0.5], [0.0], [9.0]]))
        chex.assert_tree_all_finite(jax.jit(jax.jacobian(layer.step, 1))(params, y))


GOOD = {
    "sqrt": lambda z: jnp.sqrt(z + 1e-6),
    "linear": lambda z: z,
    "constant": lambda z: 0.0 * z,
    "steep": lambda z: -jnp.exp(-1e3 * z),
    "saturating": jnp.tanh,
    "cancelling": lambda z: 1.0 - 1.0 / (1.0 + z),
    "kinked": lambda z: jnp.minimum(z, 3.0),
    "partial": functools.partial(lambda exponent, z: (z + 0.1) ** exponent, 0.25),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_function_of_ones_own_is_a_rho(name, getkey):
    layer = uj.attention(rho=uj.Rho(GOOD[name]))
    params, y = layer.init(getkey()), jax.random.normal(getkey(), (5, 2))
    assert layer.energy(params, layer.step(params, y)) <= layer.energy(params, y)
    chex.assert_trees_all_equal(uj.attention(rho=GOOD[name]).step(params, y), layer.step(params, y))


def test_a_rho_with_a_learned_number_passes_while_it_is_traced(getkey):
    y = jax.random.normal(getkey(), (5, 2))

    def energy(shift):
        layer = uj.attention(rho=lambda z: jnp.log(z + shift))
        return layer.energy(layer.init(getkey()), y)

    by_formula = jax.grad(lambda shift: 0.5 * jnp.sum(jnp.log(pairs + shift) * (1 - jnp.eye(5))))
    pairs = 0.5 * jnp.sum((y[:, None] - y[None]) ** 2, axis=-1)
    chex.assert_trees_all_close(jax.jit(jax.grad(energy))(0.7), by_formula(0.7), rtol=1e-5)


BAD = {
    "convex": (
        jnp.square,
        r"rho 'square' must be concave, but its mean slope rises from .* between z=.* and z=1.99526",
    ),
    "a bump": (lambda z: -jnp.exp(-z * z), r"rho '<lambda>' must be concave, but .* between z=0 and z="),
    "convex far out": (
        lambda z: z + 0.01 * jnp.maximum(z - 100.0, 0.0) ** 2,
        r"concave, but .* from 1 to .* z=112.202",
    ),
    "decreasing": (jnp.negative, r"must be nondecreasing, but falls from -0 to -1e-06 between z=0 and z=1e-06"),
    "turning": (lambda z: z * jnp.exp(-z), r"must be nondecreasing, but falls from .* between z=1 and z=1.12202"),
    "singular": (jnp.log, r"rho 'log' must be finite on \[0, inf\), but at z=0 it is -inf"),
    "overflowing": (jnp.exp, r"must be finite on \[0, inf\), but at z=794.328 it is inf"),
    "a sum": (jnp.sum, r"must be elementwise, but its value turns shape \(242,\) into \(\)"),
    "a share": (lambda z: z / jnp.sum(z), r"must be elementwise, but its value at z=.* is .* or .*, depending"),
    "running": (jnp.cumsum, r"must be elementwise, but its value at z=0 is 0 or .*, depending"),
    "a foreign slope": (
        uj.Rho(jnp.sqrt, lambda z: 1.0 / (1.0 + z)),
        r"derivative of its value as slope, but .* z=1e-06",
    ),
    "a doubled slope": (uj.Rho(lambda z: z, lambda z: 2.0 + 0.0 * z), r"rises by 1 per unit and the slope goes from 2"),
    "a broken slope": (uj.Rho(jnp.sqrt, lambda z: 0.5 / jnp.sqrt(z - 1.0)), r"finite slope beyond z=0, but at z=1e-06"),
    "infinite at 0": (
        jnp.sqrt,
        r"rho 'sqrt' must have a finite slope at z=0, .* inf in float64; .* use sqrt\(z \+ eps\)",
    ),
    "not a number at 0": (lambda z: (z * z) ** 0.125, r"must have a finite slope at z=0, .* nan in float64"),
    "infinite in float32": (lambda z: jnp.sqrt(z + 1e-60), r"must have a finite slope at z=0, .* inf in float32"),
    "a foreign log_slope": (uj.Rho(jnp.log1p, None, jnp.negative), r"log\(slope\) as log_slope, but at z=0.00"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_what_attention_cannot_use_is_named_with_the_place(name, jitted):
    rho, message = BAD[name]

    def build(y):
        uj.attention(rho=rho)
        return y

    with pytest.raises(ValueError, match=message):
        (jax.jit(build) if jitted else build)(jnp.ones((2, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rho_that_is_not_concave_would_raise_the_energy(dtype, monkeypatch):
    """What the check protects from: rho(z) = z^3 and four tokens on a line."""
    monkeypatch.setattr(table, "check_rho", lambda *functions: None)
    with jax.enable_x64(dtype == "float64"):
        layer, y = uj.attention(rho=lambda z: z**3), jnp.arange(4.0, dtype=dtype)[:, None]
        params = layer.init(jax.random.key(0))
        assert layer.energy(params, y) == pytest.approx(107.5)
        assert layer.energy(params, layer.step(params, y)) == pytest.approx(152.6207, rel=1e-6)


def test_every_kind_of_attention_asks_for_a_finite_slope_at_zero():
    several = functools.partial(uj.multihead_attention, 2, num_heads=1)
    for factory in (uj.attention, uj.causal_attention, uj.sweep_attention, several):
        with pytest.raises(ValueError, match="must have a finite slope at z=0"):
            factory(rho=jnp.sqrt)
        factory(rho="truncated_quadratic")


BAD_NUMBERS = [
    (table.log, "shift", (0.0, -1.0, float("inf"), float("nan"))),
    (table.cauchy, "scale", (0.0, float("nan"))),
    (table.student, "degrees", (0.0, -2.0)),
    (table.geman_mcclure, "scale", (0.0, float("inf"))),
    (table.power, "exponent", (0.0, 1.5, float("nan"))),
    (table.power, "shift", (0.0, -1.0)),
    (table.truncated_quadratic, "threshold", (0.0, float("inf"))),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("factory", "argument", "values"), BAD_NUMBERS)
def test_a_bad_number_is_named(factory, argument, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"{argument} must be .*, got {value}"):
            factory(**{argument: value})


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_rho_is_named():
    with pytest.raises(TypeError, match=r"rho must be one of .*, a Rho or a function, got int"):
        resolve_rho(3)
    with pytest.raises(ValueError, match=r"rho must be one of .*, a Rho or a function, got 'gauss'"):
        resolve_rho("gauss")
