"""Certificates against loops, dense Hessians and the real forward passes they speak
of."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.energies.dust_reference import soft
from tests.marks import in_float64
from tests.reference import compiled, jax_array
from unroll_jax import certificates as certified
from unroll_jax.certificates import Outcome, certify
from unroll_jax.descent import Anchor
from unroll_jax.energies import relu, soft_threshold, transformer_parts
from unroll_jax.energies.transformer_parts import TransformerParams

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


def quadratic(A, b: Any = 0.0):
    return lambda params, y, x: jnp.sum(
        0.5 * ((y - b) @ jnp.asarray(A, y.dtype)) * (y - b), axis=(-2, -1)
    )


def near_and_far(phi):
    """A transformer and two examples, of near tokens and of far ones."""
    parts = transformer_parts(32, phi=phi, step_size=0.3)
    rng = np.random.default_rng(0)
    f = parts.attention
    g = parts.feedforward
    layer = uj.alternating(
        f.energy, g.energy, f_step=f.step, g_step_size=0.3, phi=parts.phi
    )
    W_a = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    W_f = rng.normal(size=(32, 32))
    params = TransformerParams(W_a, 0.9 * W_f / np.linalg.norm(W_f, 2))
    y = np.array([0.01, 8.0])[:, None, None] * rng.uniform(size=(2, 6, 32))
    return layer, params, y


@pytest.mark.slow
@pytest.mark.parametrize("phi", ["relu", "group_shrinkage"])
def test_padding_does_not_change_a_certificate(phi):
    """Examples of near tokens, whose smoothness counts the tokens, and of far ones,
    guaranteed."""
    layer, params, y = near_and_far(phi)
    of_attention = certified.pairwise_smoothness()
    smoothness = lambda params, y, x: of_attention(params, y, x) + 1.95
    # After two layers near tokens have met, and their differences are round-off.

    @compiled
    def check(y, x):
        return certify(
            layer, params, y, x, smoothness=smoothness, num_layers=2, num_points=2
        )

    params = jax.tree.map(jnp.asarray, params)
    plain = check(y, y[:, :1])
    for padding in (0.0, -1.0, np.nan):
        filled, anchor = np.full((2, 2, 9, 32), padding)
        filled[:, 1:7], anchor[:, 1:7] = y, y[:, :1]
        certificate = check(
            filled,
            Anchor(anchor, jax_array((np.arange(9) > 0) & (np.arange(9) < 7))),
        )
        chex.assert_trees_all_close(certificate, plain, rtol=1e-9, atol=1e-11)
    assert np.all(np.isfinite(plain.energy))
    assert phi != "relu" or np.all(plain.outcome[:, 1] == Outcome.GUARANTEED)


def length(array):
    return np.linalg.norm(array, axis=(-2, -1))


# An entry of phi, its prox at a step size, and its penalty.
PHIS = {
    "none": (None, lambda v, s: v, lambda y: 0.0),
    "relu": (relu(), lambda v, s: np.maximum(v, 0.0), lambda y: 0.0),
    "soft_threshold": (
        soft_threshold(0.3),
        lambda v, s: soft(v, 0.3 * s),
        lambda y: 0.3 * np.sum(np.abs(y), (-2, -1)),
    ),
}


@pytest.mark.parametrize("name", PHIS)
def test_certificates_have_the_numbers_of_the_descent_lemma(name):
    phi, prox, penalty = PHIS[name]
    rng = np.random.default_rng(2)
    A, B = (root @ root.T for root in rng.normal(size=(2, 3, 3)))
    L_h = np.linalg.eigvalsh(A + B)[-1]
    L_g = np.linalg.eigvalsh(B)[-1]
    a1 = 0.6 / L_h
    a2 = 1.0 / L_h
    minimiser = np.linalg.solve(A + B, A @ np.ones(3) + B @ np.full(3, 0.3))
    noise = rng.normal(size=(200, 1, 3))
    y = np.abs(minimiser + noise * 10.0 ** rng.uniform(-2, 1, (200, 1, 1)))
    layer = uj.alternating(
        quadratic(A, 1.0), quadratic(B, 0.3), f_step_size=a1, g_step_size=a2, phi=phi
    )
    measured = certified.quadratic_smoothness(layer.smooth) if name == "relu" else L_h
    run = compiled(lambda y: certify(layer, None, y, smoothness=measured))
    certificate = run(y)

    u = y - a1 * (y - 1.0) @ A
    move = prox(u - a2 * (u - 0.3) @ B, a2) - y
    of_f = (y - 1.0) @ A
    of_h = of_f + (y - 0.3) @ B
    slope = np.sum(of_h * move, (-2, -1)) + penalty(y + move) - penalty(y)
    assert_allclose(certificate.smoothness, L_h, rtol=1e-10)
    assert_allclose(certificate.slope[0], slope, rtol=1e-8, atol=1e-10)
    assert_allclose(certificate.limit[0], -2.0 * slope / length(move) ** 2, rtol=1e-6)
    curvature = np.sum(move @ (A + B) * move, (-2, -1)) / length(move) ** 2
    assert_allclose(certificate.curvature[0], curvature)
    # Theorems 4.1 and 5.1, kappa measured: whenever they promise descent, so does the
    # certificate.
    reach = length(y - prox(y - a2 * of_h, a2))
    promised = (a2 - a1 + a1 * a2 * L_g) * length(of_f) <= reach
    assert 0 < np.sum(promised) < 200
    assert np.all(certificate.limit[0, promised] >= L_h * (1.0 - 1e-9))
    is_safe = certificate.limit >= L_h
    assert not np.any(is_safe & (certificate.outcome == Outcome.ROSE))
    assert set(certificate.outcome.ravel().tolist()) == set(Outcome)


def test_a_point_that_stays_has_not_risen():
    f = g = lambda params, y, x: jnp.sum(y**2, (-2, -1)) - 1000.0
    layer = uj.alternating(f, g, f_step_size=0.1, g_step_size=0.1)
    certificate = compiled(lambda y: certify(layer, None, y, smoothness=4.0))(
        np.zeros((1, 1), np.float32)
    )
    assert_array_equal(certificate.energy, -2000.0)
    assert np.isinf(certificate.limit)
    assert certificate.outcome == Outcome.GUARANTEED


def quartic(rate):
    """E(y) = sum y^4 / 4 and gradient steps. On [-1, 1] its smoothness is 3."""
    return uj.Descent(
        init=lambda key: None,
        energy=lambda params, y, x: 0.25 * jnp.sum(y**4, axis=-1),
        step=lambda params, y, x: y - rate * y**3,
    )


def test_a_user_descent_is_guaranteed_by_its_smoothness():
    y = np.linspace(0.2, 1.0, 9, dtype=np.float32).reshape(3, 3)

    @compiled
    def run(y):
        certify_at = lambda rate, *given, **options: certify(
            quartic(rate), None, *given, **options
        )
        return (
            certify_at(0.5, y, smoothness=3.0),
            certify_at(0.5, y),
            certify_at(0.5, jnp.ones((2, 1), y.dtype), smoothness=0.5),
            certify_at(4.0, jnp.array([[1.0], [0.1]], y.dtype), smoothness=3.0),
        )

    given, none, wrong, long = run(y)
    assert np.all(given.outcome == Outcome.GUARANTEED)
    assert np.all(none.outcome == Outcome.DESCENDED)
    assert np.all(np.isnan(none.smoothness))
    # y' - y = -r y^3 along which the slope <y^3, y' - y> and the growth of the slope
    # have closed forms.
    slope = -0.5 * np.sum(y**6, axis=-1)
    assert_allclose(given.slope[0], slope, rtol=1e-5)
    limit = -2.0 * slope / np.sum((0.5 * y**3) ** 2, axis=-1)
    assert_allclose(given.limit[0], limit, rtol=1e-5)
    assert np.all(given.curvature[0] < 3.0)
    assert np.all(wrong.curvature[0] > 0.5)
    assert np.all(wrong.outcome == Outcome.DESCENDED)
    assert "curvature above smoothness, which is too small, 100.0%" in repr(wrong)
    # the limit of the second is 0.03 at its slope
    assert list(long.outcome[0]) == [Outcome.ROSE, Outcome.DESCENDED]
    assert list(long.curvature[0] <= long.limit[0]) == [False, True]


def test_layers_may_have_parameters_of_their_own():
    """A size of the energy and a rate of the step; with two batch axes."""
    layer = uj.Descent(
        lambda key: None,
        energy=lambda params, y, x: 0.25 * params[0] * jnp.sum(y**4, axis=-1),
        step=lambda params, y, x: y - params[1] * y**3,
    )
    sizes = np.array([0.2, 0.5, 0.4])
    rates = np.array([0.1, 0.9, 0.3])
    y = np.linspace(0.2, 1.0, 6).reshape(2, 1, 3)
    smoothness = lambda params, y, x: 3.0 * params[0] * jnp.ones(y.shape[:-1])
    options = {"smoothness": smoothness, "num_points": 1}
    run = compiled(
        lambda params, y: (
            certify(layer, params, y, **options, num_layers=3, tied=False),
            uj.unroll(layer, params, y, num_layers=3, tied=False)[1].energy,
        )
    )
    whole, energy = run((sizes, rates), y)
    assert energy.shape == (4, 2, 1)
    assert_allclose(whole.energy, energy, rtol=1e-12)

    for place, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        move = -rate * y**3
        growth = size * ((y + move) ** 3 - y**3)
        # a smoothness of 3 size is at most the limit
        verdict = Outcome.GUARANTEED if rate <= 2.0 / 3.0 else Outcome.DESCENDED
        expected = {
            "outcome": np.full((2, 1), verdict),
            "energy": 0.25 * size * np.sum(y**4, axis=-1),
            "slope": -size * rate * np.sum(y**6, axis=-1),
            "limit": np.full((2, 1), 2.0 * size / rate),
            "smoothness": np.full((2, 1), 3.0 * size),
            "curvature": np.sum(growth * move, axis=-1) / np.sum(move**2, axis=-1),
        }
        for name, value in expected.items():
            actual = getattr(whole, name)[place]
            assert_allclose(actual, value, rtol=1e-9, err_msg=f"{name}, {place}")
        y = y + move
    last = 0.25 * sizes[2] * np.sum(y**4, axis=-1)
    assert_allclose(whole.energy[3], last, rtol=1e-9)


def test_the_verdict_on_states_of_bfloat16_is_computed_in_float32():
    y = jax_array(np.linspace(0.2, 1.0, 9).reshape(3, 3), jnp.bfloat16)
    halving = quartic(0.5)._replace(step=lambda params, y, x: 0.5 * y)

    @compiled
    def run(y):
        certificate = certify(quartic(0.5), None, y, smoothness=3.0)
        return certificate, certify(halving, None, y).energy

    certificate, halved = run(y)
    wide = np.asarray(y, np.float64)
    move = (wide - 0.5 * wide**3).astype(jnp.bfloat16).astype(np.float64) - wide
    assert_allclose(certificate.slope[0], np.sum(wide**3 * move, axis=-1), rtol=0.02)
    assert np.all(certificate.outcome == Outcome.GUARANTEED)
    expected = np.sum((0.5 * wide) ** 4, axis=-1) / 4.0
    assert_allclose(halved[1], expected, rtol=1e-6)


def test_steps_of_any_size_are_judged_alike():
    """The energy is |y / size|^2, which stays in range."""

    def slope(size):
        energy = lambda params, y, x: jnp.sum((y / size) ** 2, -1)
        half = uj.Descent(lambda key: None, energy, lambda params, y, x: 0.5 * y)
        return certify(half, None, jnp.full((2, 3), size, jnp.float32)).slope

    slopes = compiled(lambda: [slope(size) for size in (1e-30, 1e25)])()
    assert_allclose(slopes, -3.0, rtol=1e-5)
