"""Penalties and their proximal operators: what holds for all, and elementwise
activations."""

import itertools

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
FUNCTIONS = {name: SIGMA[name] for name in ("leaky_relu", "sigmoid", "tanh")}
FUNCTIONS["softplus"] = lambda w: np.logaddexp(0.0, w)
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
    for name, (phi, antiderivative, domain) in CASES.items():
        penalty = compiled(phi.penalty)
        y = gaussian(2, 3, 4, 3, seed=1)
        y = np.clip(y, *(0.95 * np.array(domain)))
        expected = np.reshape(
            [penalty_of(antiderivative, z) for z in np.ravel(y)], (2, 3, 12)
        ).sum(axis=-1)
        assert_allclose(penalty(y), expected, rtol=1e-12, atol=1e-8, err_msg=name)
        for end in domain:
            if abs(end) < 50.0:
                outside = y.copy()
                outside[..., 2, 1] = end + np.copysign(1e-9, end - np.mean(domain))
                assert_array_equal(
                    penalty(outside), np.full((2, 3), np.inf), err_msg=name
                )


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prox_keeps_shape_dtype_and_nan(
    dtype,
):
    y = gaussian(4, 3, seed=2).astype(dtype)
    examples = np.stack([y, np.full_like(y, np.nan)])

    @compiled
    def measure(examples):
        results = {}
        for name, make in uj.PROXIMALS.items():
            stepped = make().prox(examples, 0.5)
            results[name] = (
                stepped,
                make().penalty(jnp.stack([stepped[0], examples[1]])),
            )
        return results, [
            sigma.conjugate(examples[1])
            for sigma in MONOTONES.values()
            if sigma.conjugate
        ]

    results, conjugates = measure(examples)
    for name, (stepped, penalty) in results.items():
        assert (stepped.shape, stepped.dtype) == (examples.shape, examples.dtype), name
        assert penalty.dtype == jnp.float32, name
        assert np.isfinite(penalty[0]), name
        assert np.isnan(penalty[1]) or name == "identity", name
        assert np.isnan(stepped[1]).all(), name
    assert all(np.isnan(conjugate).all() for conjugate in conjugates)


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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_prox_of_an_activation_solves_its_equation(name):
    """t is the ratio of the two step sizes, and y is over six decades. At its own step
    size the prox is the activation."""
    y = np.concatenate([-np.logspace(-3, 3, 15), [0.0], np.logspace(-3, 3, 15)])
    known = (1.0, 1.0 + 1e-9, 0.3)
    traced = (1e-3, 0.3, 4.0, 1e3)
    pair = ACTIVATIONS[name](step_size=0.5)

    @compiled
    def solve(y, sizes):
        of_known = [pair.prox(y, 0.5 * ratio) for ratio in known]
        return of_known, jax.lax.map(lambda size: pair.prox(y, size), sizes)

    proxes = itertools.chain(*solve(y[:, None], 0.5 * np.array(traced)))
    for ratio, prox in zip((*known, *traced), proxes, strict=True):
        atol = 1e-12 * max(1.0, 1.0 / ratio)
        exact = exact_prox(FUNCTIONS[name], y, ratio)
        assert_allclose(np.ravel(prox), exact, 1e-9, atol, err_msg=str(ratio))


@nightly
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_solved_prox_is_differentiable_twice(name):
    prox = compiled(lambda y: ACTIVATIONS[name]().prox(y[:, None], 2.5))
    points = np.linspace(-3.0, 3.0, 8)
    check_grads(prox, (points,), order=2, modes=("rev",), rtol=1e-6)


def test_the_solved_prox_is_right_in_low_precision():
    @compiled
    def solve(y):
        return {name: make().prox(y, 3.0) for name, make in ACTIVATIONS.items()}

    for dtype in (jnp.float32, jnp.bfloat16):
        y = np.linspace(-5.0, 5.0, 64).astype(dtype)[:, None]
        exact = solve(y.astype(np.float64))
        atol = 30.0 * float(jnp.finfo(dtype).eps)
        for name, prox in solve(y).items():
            assert prox.dtype == dtype
            assert_allclose(
                np.asarray(prox, np.float64), exact[name], atol=atol, err_msg=name
            )


def test_an_activation_can_be_made_inside_a_compiled_function():
    penalty = lambda z: -jnp.log(jnp.cos(z)) - 0.5 * z**2
    actual = compiled(lambda y: energies.activation(jnp.arctan, penalty).prox(y, 1.0))(
        np.ones((1, 1), np.float32)
    )
    assert actual.item() == pytest.approx(np.pi / 4.0)


@compiled
def all_proxes(y, step_size):
    return {name: phi.prox(y, step_size) for name, (phi, *_) in CASES.items()}


def test_at_step_size_0_an_activation_projects_onto_its_range():
    y = np.array([-30.0, -1.5, -0.2, 0.0, 1e-3, 0.3, 0.9, 1.5, 30.0])

    @compiled
    def known(y):
        return {name: phi.prox(y, 0.0) for name, (phi, *_) in CASES.items()}

    small = all_proxes(y, 1e-9 * STEP)
    for dtype in (np.float32, np.float64):
        traced = all_proxes(y.astype(dtype), dtype(0.0))
        chex.assert_trees_all_close(known(y.astype(dtype)), traced)
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
        for near in all_proxes(jnp.ones(9), wrong).values():
            assert np.isnan(near).all()


def test_the_prox_holds_at_large_step_sizes():
    """In float32 w - sigma(w) must keep its digits: of softplus far away, of tanh near
    0."""
    y = np.array([-2.0, 0.3, 5.0] * 3)
    functions = FUNCTIONS | {"leaky_relu": lambda w: np.where(w >= 0.0, w, 0.2 * w)}
    limits = {np.float64: (1e-5, 1e-9), np.float32: (3e-4, 1e-7)}
    for ratio in (1e3, 1e7, 1e10):
        for dtype, (rtol, atol) in limits.items():
            near = all_proxes(y.astype(dtype), dtype(ratio * STEP))
            for name, sigma in functions.items():
                exact = exact_prox(sigma, dtype(y[:3]).astype(float), ratio)
                assert_allclose(
                    near[name][:3], exact, rtol=rtol, atol=atol, err_msg=name
                )
    narrow = all_proxes(np.full(9, 1e6, np.float32), np.float32(1e8))
    for name in ("softplus", "leaky_relu"):
        assert_allclose(narrow[name], 1e6, rtol=1e-6)
