"""Penalties and their proximal operators: what holds for all, and elementwise
activations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq, minimize_scalar
from scipy.special import spence

import unroll_jax as uj
from tests.energies.opteq_reference import SIGMA
from tests.marks import in_float64, nightly
from tests.reference import compiled, gaussian
from unroll_jax import energies
from unroll_jax.energies import MONOTONES
from unroll_jax.energies.proximal.activations import ACTIVATIONS

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
# in NumPy
FUNCTIONS = {
    "leaky_relu": lambda w: np.where(w >= 0.0, w, 0.2 * w),
    "sigmoid": SIGMA["sigmoid"],
    "softplus": lambda w: np.logaddexp(0.0, w),
    "tanh": np.tanh,
}
STEP = 0.4  # the step size at which the prox is the activation
# Each activation, its antiderivative, and the interval on which phi is finite.
CASES = {
    "tanh": (
        energies.tanh(step_size=STEP),
        lambda w: np.logaddexp(w, -w) - np.log(2.0),
        (-1.0, 1.0),
    ),
    "sigmoid": (
        energies.sigmoid(step_size=STEP),
        lambda w: np.logaddexp(0.0, w),
        (0.0, 1.0),
    ),
    "softplus": (
        energies.softplus(step_size=STEP),
        lambda w: -spence(1.0 + np.exp(w)),
        (0.0, 50.0),
    ),
    "leaky_relu": (
        energies.leaky_relu(0.2, step_size=STEP),
        lambda w: 0.5 * w**2 * (1.0 if w > 0.0 else 0.2),
        (-50.0, 50.0),
    ),
}


def test_every_activation_is_tested():
    assert FUNCTIONS.keys() == CASES.keys() == ACTIVATIONS.keys()
    assert ACTIVATIONS.items() <= uj.PROXIMALS.items()


def penalty_of(antiderivative, z):
    """phi(z) = (max_w z w - psi(w) - z^2 / 2) / a by numerical maximisation, psi the
    antiderivative."""
    return (
        -minimize_scalar(
            lambda w: antiderivative(w) - z * w,
            bounds=(-60.0, 60.0),
            method="bounded",
            options={"xatol": 1e-10},
        ).fun
        - 0.5 * z**2
    ) / STEP


def test_penalties_of_activations_equal_their_definition():
    y = gaussian(2, 3, 4, 3, seed=1)
    points = {}
    for name, (*_, domain) in CASES.items():
        inside = np.clip(y, *(0.95 * np.array(domain)))
        ends = [end for end in domain if abs(end) < 50.0]
        points[name] = np.repeat(inside[None], 1 + len(ends), axis=0)
        for copy, end in zip(points[name][1:], ends, strict=True):
            copy[..., 2, 1] = end + np.copysign(1e-9, end - np.mean(domain))

    @compiled
    def penalties(points):
        return {name: CASES[name][0].penalty(each) for name, each in points.items()}

    for name, (penalty, *outside) in penalties(points).items():
        assert_array_equal(outside, np.full_like(outside, np.inf), err_msg=name)
        exact = [penalty_of(CASES[name][1], z) for z in np.ravel(points[name][0])]
        expected = np.reshape(exact, (2, 3, 12)).sum(axis=-1)
        assert_allclose(penalty, expected, rtol=1e-12, atol=1e-8, err_msg=name)


def test_saturated_activations_have_penalties_of_finite_slope_outwards():
    # rounded ones of large numbers
    ends = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "softplus": (0.0, 200.0)}
    points = {name: np.float32(pair)[:, None, None] for name, pair in ends.items()}
    measures = {
        name: jax.vmap(jax.value_and_grad(uj.PROXIMALS[name]().penalty))
        for name in ends
    }
    results = compiled(
        lambda points: {
            name: measure(points[name]) for name, measure in measures.items()
        }
    )(points)
    for name, (values, slopes) in results.items():
        assert np.isfinite(values).all(), name
        assert np.isfinite(slopes).all(), name
        assert slopes[0, 0, 0] < -7.0, name
        assert slopes[1, 0, 0] > 7.0 or name == "softplus", name


def test_nan_stays_and_the_penalty_of_a_prox_is_finite():
    """Dtypes are in tests/test_strict_promotion.py."""
    y = np.float32(gaussian(4, 3, seed=2))
    conjugates = [sigma.conjugate for sigma in MONOTONES.values() if sigma.conjugate]

    @compiled
    def measure(points, missing):
        results = {}
        for name, make in uj.PROXIMALS.items():
            phi = make()
            finite = [phi.penalty(phi.prox(point, 0.5)) for point in points]
            lost = [(phi.prox(each, 0.5), phi.penalty(each)) for each in missing]
            results[name] = finite, *zip(*lost, strict=True)
        return results, [
            conjugate(lost) for conjugate in conjugates for lost in missing
        ]

    dtypes = (np.float32, jnp.bfloat16)
    points = [y.astype(dtype) for dtype in dtypes]
    results, lost_sums = measure(points, [np.nan * point for point in points])
    for name, (finite, lost, of_lost) in results.items():
        assert np.isfinite(finite).all(), name
        assert np.isnan(lost).all(), name
        assert np.isnan(of_lost).all() or name == "identity", name
    assert np.isnan(lost_sums).all()


def test_prox_is_firmly_nonexpansive_and_penalty_convex_on_its_domain():
    """|prox(u) - prox(v)|^2 <= <prox(u) - prox(v), u - v>, which holds for the prox
    of a convex phi and of no other."""
    rng = np.random.default_rng(4)
    pair = 3.0 * rng.normal(size=(2, 500, 2, 4))
    shares = rng.uniform(size=500)

    @compiled
    def measure(pair, shares):
        def of(phi):
            # An activation's prox is the activation at step size 1, and solved for at
            # 0.7.
            proxes = [phi.prox(pair, step_size) for step_size in (0.7, 1.0)]
            u, v = proxes[1]
            return proxes, phi.penalty(
                jnp.stack([u, v, u + shares[:, None, None] * (v - u)])
            )

        return {name: of(factory()) for name, factory in uj.PROXIMALS.items()}

    for name, (proxes, (first, last, between)) in measure(pair, shares).items():
        for prox in proxes:
            difference = np.asarray(prox[0] - prox[1])
            product = np.sum(difference * (pair[0] - pair[1]), (-2, -1))
            assert np.all(np.sum(difference**2, (-2, -1)) <= product + 1e-9), name
        chord = (1.0 - shares) * first + shares * last
        assert np.all(np.isfinite(chord)), name
        assert np.all(between <= chord + 1e-12 * (1.0 + np.abs(chord))), name


def exact_prox(sigma, y, ratio):
    """sigma(w) with (1 - t) sigma(w) + t w = y, by Brent's method."""
    far = 2.0 * np.max(np.abs(y)) / min(1.0, ratio) + 1e3
    equation = lambda w, y: (1.0 - ratio) * sigma(w) + ratio * w - y
    with np.errstate(over="ignore"):
        roots = [brentq(equation, -far, far, (one,), 1e-14, 1e-14) for one in y]
        return sigma(y if ratio == 1.0 else np.array(roots))


Y = np.concatenate([-np.logspace(-3, 3, 15), [0.0], np.logspace(-3, 3, 15)])


@compiled
def traced_proxes(y, step_size):
    return {name: phi.prox(y, step_size) for name, (phi, *_) in CASES.items()}


def proxes(y, ratio):
    return traced_proxes(y, np.asarray(ratio * STEP, y.dtype))


KNOWN = (0.0, 0.3, 1.0, 1.0 + 1e-9)


@compiled
def known_proxes(y):
    return {
        ratio: {name: phi.prox(y, ratio * STEP) for name, (phi, *_) in CASES.items()}
        for ratio in KNOWN
    }


# Tolerances at ratios of two step sizes.
NEAR = {
    ratio: (1e-9, 1e-12 * max(1.0, 1.0 / ratio))
    for ratio in (*KNOWN[1:], 1e-3, 4.0, 1e3)
} | dict.fromkeys((1e7, 1e10), (1e-5, 1e-9))


def test_the_prox_of_an_activation_solves_its_equation():
    """y is over six decades. At its own step size the prox is the activation. In
    float32 w - sigma(w) must keep its digits: of softplus far away, of tanh near 0."""
    of_known = known_proxes(Y)
    results = [
        ("known", Y, ratio, of_known[ratio], *NEAR[ratio]) for ratio in KNOWN[1:]
    ]
    for ratio, near in NEAR.items():
        results.append(("traced", Y, ratio, proxes(Y, ratio), *near))
    middle = np.float32(np.where(np.abs(Y) < 10.0, Y, 0.3))
    for ratio in (1e3, 1e7, 1e10):
        results.append(("float32", middle, ratio, proxes(middle, ratio), 3e-4, 1e-7))
    for kind, y, ratio, by_name, rtol, atol in results:
        for name, prox in by_name.items():
            exact = exact_prox(FUNCTIONS[name], y.astype(float), ratio)
            words = f"{name}, {kind}, {ratio}"
            assert_allclose(prox, exact, rtol, atol, err_msg=words)
    far = proxes(np.full(Y.shape, 1e6, np.float32), 1e8 / STEP)
    for name in ("softplus", "leaky_relu"):
        assert_allclose(far[name], 1e6, rtol=1e-6, err_msg=name)
    leaky = compiled(energies.leaky_relu().prox)(Y[:, None], 1.0)
    assert_allclose(leaky, SIGMA["leaky_relu"](Y)[:, None])


@nightly
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_solved_prox_is_differentiable_twice(name):
    prox = compiled(lambda y: ACTIVATIONS[name]().prox(y[:, None], 2.5))
    points = np.linspace(-3.0, 3.0, 8)
    check_grads(prox, (points,), order=2, modes=("rev",), rtol=1e-6)


def test_the_solved_prox_is_right_in_low_precision():
    for dtype in (np.float32, jnp.bfloat16):
        y = np.clip(Y, -5.0, 5.0).astype(dtype)
        exact = proxes(y.astype(float), 7.5)
        atol = 30.0 * float(jnp.finfo(dtype).eps)
        for name, prox in proxes(y, 7.5).items():
            assert prox.dtype == dtype, name
            assert_allclose(prox.astype(float), exact[name], atol=atol, err_msg=name)


def test_an_activation_can_be_made_inside_a_compiled_function():
    penalty = lambda z: -jnp.log(jnp.cos(z)) - 0.5 * z**2
    arctan = compiled(lambda y: energies.activation(jnp.arctan, penalty).prox(y, 1.0))
    actual = arctan(np.ones((1, 1), np.float32))
    assert actual.item() == pytest.approx(np.pi / 4.0)


def test_at_step_size_0_an_activation_projects_onto_its_range():
    y = Y / 20.0
    small = proxes(y, 1e-9)
    for dtype in (np.float32, np.float64):
        traced = proxes(y.astype(dtype), 0.0)
        chex.assert_trees_all_close(known_proxes(y.astype(dtype))[0.0], traced)
        for name, (_, _, domain) in CASES.items():
            expected = np.clip(y, *domain)
            assert_allclose(traced[name], expected, rtol=1e-5, atol=1e-6)
            assert_allclose(small[name], expected, rtol=1e-6, atol=1e-7)


def test_the_derivative_in_the_step_size_holds_at_0():
    """z + (s / a) (w - z) = y with z = tanh(w)."""
    slope = compiled(jax.grad(CASES["tanh"][0].prox, argnums=1))(0.3, 0.0)
    assert_allclose(slope, -(np.arctanh(0.3) - 0.3) / STEP, rtol=1e-6)


def test_traced_step_sizes_out_of_range_give_nan():
    """Known ones are an error, in test_errors.py."""
    for wrong in (-1.0, np.nan, np.inf):
        for near in proxes(Y, wrong).values():
            assert np.isnan(near).all()
