"""Certificates against loops, dense Hessians and the real forward passes they speak of."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.errors import assert_names
from unroll_jax import certificates as certified
from unroll_jax.certificates import Outcome, certify
from unroll_jax.descent import Anchor
from unroll_jax.energies import transformer_parts
from unroll_jax.energies.transformer_parts import TransformerParams


def quadratic(A, b: Any = 0.0):
    """The energy (y - b) A (y - b) / 2 of states (*batch, d)."""
    return lambda y: 0.5 * jnp.sum(((y - b) @ jnp.asarray(A, y.dtype)) * (y - b), axis=-1)


def attention_case(batch=(4,), scale=2.0, dim=4, tokens=6, dtype=np.float32, **options):
    """Parts of a transformer, parameters, tokens and input, and what a certificate of it is given."""
    parts, rng = transformer_parts(dim, **options), np.random.default_rng(0)
    W_a, W_f = np.linalg.qr(rng.normal(size=(dim, dim)))[0], rng.normal(size=(dim, dim))
    params = TransformerParams(W_a.astype(dtype), (0.9 * W_f / np.linalg.norm(W_f, 2)).astype(dtype))
    y, x = (rng.uniform(size=(*batch, tokens, dim)).astype(dtype) for _ in range(2))
    keywords = {"f_step": parts.attention.step, "phi": parts.phi, "g_step_size": parts.step_size}
    return parts, params, dtype(scale) * y, x, (parts.attention.energy, parts.feedforward.energy), keywords


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["rank0", "rank2"])
def test_a_certificate_speaks_of_the_forward_pass_of_the_transformer(batch):
    _, params, y, x, halves, keywords = attention_case(batch, step_size=0.1)

    @jax.jit
    def both(params, y, x):
        certificate = certify(*halves, params, y, x, **keywords, smoothness_f=9.0, smoothness_g=1.95, num_layers=5)
        return certificate, uj.unroll(uj.transformer(4, step_size=0.1), params, y, x, num_layers=5)[1].energy

    certificate, energy = jax.tree.map(np.asarray, both(params, y, x))
    assert certificate.energy.shape == (6, *batch)
    assert all(leaf.shape == (5, *batch) for name, leaf in certificate._asdict().items() if name != "energy")
    np.testing.assert_allclose(certificate.energy, energy, rtol=1e-5, atol=1e-5)
    rose = np.diff(energy, axis=0) > 1e-5
    assert np.all((certificate.outcome == Outcome.ROSE) >= rose)
    np.testing.assert_array_equal(
        (certificate.outcome == Outcome.GUARANTEED) & ~rose, (certificate.by_theorem | certificate.by_noise) & ~rose
    )


@pytest.mark.slow
@pytest.mark.parametrize("phi", ["tanh", "leaky_relu"])
def test_an_activation_by_name_is_certified_as_the_transformer_applies_it(phi):
    parts, params, y, _, halves, keywords = attention_case(scale=0.9, step_size=0.1, phi=phi)
    known = {"smoothness_f": 9.0, "smoothness_g": 1.95, "num_layers": 3}

    @jax.jit
    def all_three(params, y):
        by_name, by_pair = (certify(*halves, params, y, **(keywords | known | {"phi": p})) for p in (phi, parts.phi))
        layer = uj.transformer(4, step_size=0.1, phi=phi)
        return by_name, by_pair, uj.unroll(layer, params, y, num_layers=3)[1].energy

    by_name, by_pair, energy = all_three(params, y)
    chex.assert_trees_all_close(by_name, by_pair, rtol=1e-6)
    np.testing.assert_allclose(by_name.energy, energy, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("phi", ["relu", "tanh", "group_shrinkage"])
def test_padding_does_not_change_a_certificate(phi):
    """Whatever it holds; examples of near tokens, whose smoothness counts the tokens, and of far ones, guaranteed."""
    _, params, y, _, halves, keywords = attention_case((2,), 1.0, dim=32, dtype=np.float64, step_size=0.3, phi=phi)
    y = y * np.array([0.01, 0.99 if phi == "tanh" else 8.0])[:, None, None]
    # After two layers near tokens have met, and what is left of them is round-off.
    known = keywords | {"smoothness_f": certified.pairwise_smoothness(), "smoothness_g": 1.95, "num_layers": 2}
    check = jax.jit(lambda y, x: certify(*halves, params, y, x, **known))
    params = jax.tree.map(jnp.asarray, params)
    plain = jax.tree.map(np.asarray, check(y, y[:, :1]))
    for padding in (0.0, -1.0, np.nan):
        filled, anchor = np.full((2, 2, 9, 32), padding)
        filled[:, 1:7], anchor[:, 1:7] = y, y[:, :1]
        certificate = check(filled, Anchor(anchor, jnp.asarray((np.arange(9) > 0) & (np.arange(9) < 7))))
        chex.assert_trees_all_close(certificate, plain, rtol=1e-9, atol=1e-12)
    assert np.all(np.isfinite(plain.energy))
    assert phi != "relu" or np.all(plain.outcome[:, 1] == Outcome.GUARANTEED)


@pytest.mark.usefixtures("x64")
def test_the_noise_of_a_transformer_is_what_its_docstring_states():
    parts, params, y, _, halves, keywords = attention_case((), dtype=np.float64, step_size=0.2)

    @jax.jit
    def measure(params, y):
        certificate = certify(*halves, params, y, **keywords, smoothness_f=1.0, smoothness_g=1.5)
        moved, after = parts.attention.step(params, y, None), uj.transformer(4, step_size=0.2).step(params, y, None)
        return certificate, jax.grad(parts.attention.energy, 1)(params, y, None), moved, after

    certificate, f_gradient, moved, after = jax.tree.map(np.asarray, measure(params, y))
    mixing = 0.8 * np.eye(4) - 0.1 * (params.W_f + params.W_f.T)
    noise = np.linalg.norm(0.2 * f_gradient + (moved - y) @ mixing) / np.linalg.norm(after - y)
    np.testing.assert_allclose(certificate.noise, [noise], rtol=1e-10)
    np.testing.assert_allclose(certificate.noise_limit, [1.0 - 0.5 * 0.2 * 2.5], rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("phi", [None, "relu"])
def test_the_numbers_of_an_alternating_certificate_are_those_of_the_theorems(phi):
    rng = np.random.default_rng(2)
    roots = rng.normal(size=(2, 3, 3))
    A, B = roots[0] @ roots[0].T, roots[1] @ roots[1].T
    as_tokens = lambda f: lambda params, y, x: jnp.sum(f(y), -1)  # noqa: E731
    f, g = as_tokens(quadratic(A, 1.0)), as_tokens(quadratic(B, 0.3))
    L_f, L_g = np.linalg.eigvalsh(A)[-1], np.linalg.eigvalsh(B)[-1]
    a2 = 1.0 / (L_f + L_g)
    a1 = 0.6 * a2
    minimiser = np.linalg.solve(A + B, A @ np.ones(3) + B @ np.full(3, 0.3))
    y = np.abs(minimiser + rng.normal(size=(200, 1, 3)) * 10.0 ** rng.uniform(-2, 1, (200, 1, 1)))
    measured = [certified.quadratic_smoothness(half) for half in (f, g)]
    known = {"smoothness_f": measured[0], "smoothness_g": measured[1], "phi": phi}
    check = jax.jit(lambda y: certify(f, g, None, y, f_step_size=a1, g_step_size=a2, **known))
    certificate = jax.tree.map(np.asarray, check(y))
    np.testing.assert_allclose(certificate.smoothness_h, L_f + L_g, rtol=1e-10)
    np.testing.assert_allclose(certificate.smoothness_g, L_g, rtol=1e-10)
    of_f, of_h = (y - 1.0) @ A, (y - 1.0) @ A + (y - 0.3) @ B
    size = lambda array: np.linalg.norm(array, axis=(-2, -1))  # noqa: E731
    C = a2 / (a2 - a1 + a1 * a2 * L_g)
    moved = a2 * of_h if phi is None else y - np.maximum(y - a2 * of_h, 0.0)
    np.testing.assert_allclose(certificate.delta[0], size(of_f) / size(of_h), rtol=1e-9)
    np.testing.assert_allclose(certificate.constant[0], C * size(moved) / size(a2 * of_h), rtol=1e-9)
    np.testing.assert_array_equal(certificate.by_theorem, certificate.delta <= certificate.constant)
    assert 0 < np.sum(certificate.by_theorem) < 200
    assert not np.any(certificate.by_theorem & (certificate.outcome == Outcome.ROSE))
    assert {int(value) for value in certificate.outcome.ravel()} == set(Outcome)


@pytest.mark.slow
def test_a_layer_norm_is_part_of_the_first_half():
    parts, params, y, _, _, keywords = attention_case((3,), step_size=0.1, norm_radius=2.0)
    assert parts.layer_norm is not None
    norm = parts.layer_norm

    def f(params, y, x):
        return norm.energy(params, y, x) + parts.attention.energy(params, y, x)

    def f_step(params, y, x):
        return parts.attention.step(params, norm.step(params, y, x), x)

    @jax.jit
    def both(params, y):
        known = keywords | {"f_step": f_step, "smoothness_f": 9.0, "smoothness_g": 1.95, "num_layers": 3}
        checked = certify(f, parts.feedforward.energy, params, y, **known)
        return checked, uj.unroll(uj.transformer(4, step_size=0.1, norm_radius=2.0), params, y, num_layers=3)[1].energy

    certificate, energy = both(params, y)
    np.testing.assert_allclose(certificate.energy, energy, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_far_tokens_are_guaranteed_and_steps_too_long_are_not():
    """Longer than 2 / L_h neither condition holds, whatever the energy does."""
    _, params, y, _, halves, keywords = attention_case(scale=8.0, dim=32, step_size=0.3)
    known = {"smoothness_f": certified.pairwise_smoothness(), "smoothness_g": 1.95, "num_layers": 2}

    @jax.jit
    def both(params, y):
        far = certify(*halves, params, y, **keywords, **known)
        return far, certify(*halves, params, y, **(keywords | {"g_step_size": 1.1}), **(known | {"smoothness_f": 0.0}))

    far, long = jax.tree.map(np.asarray, both(params, y))
    assert np.all(far.outcome == Outcome.GUARANTEED)
    assert np.all(far.by_theorem)
    assert not np.any(long.outcome == Outcome.GUARANTEED)


def test_a_rise_under_a_false_smoothness_is_told_as_a_rise():
    f = g = lambda params, y, x: 5.0 * jnp.sum(y**2, (-2, -1))
    known = {"f_step_size": 0.3, "g_step_size": 0.3, "smoothness_f": 0.0, "smoothness_g": 0.0}
    certificate = jax.jit(lambda y: certify(f, g, None, y, **known))(np.ones((1, 1), np.float32))
    assert certificate.by_theorem
    assert np.asarray(certificate.outcome) == Outcome.ROSE


def test_a_point_that_stays_has_not_risen_whatever_the_sign_of_its_energy():
    f = g = lambda params, y, x: jnp.sum(y**2, (-2, -1)) - 1000.0
    known = {"f_step_size": 0.1, "g_step_size": 0.1, "smoothness_f": 2.0, "smoothness_g": 2.0}
    certificate = jax.jit(lambda y: certify(f, g, None, y, **known))(np.zeros((1, 1), np.float32))
    np.testing.assert_array_equal(certificate.energy, -2000.0)
    assert np.asarray(certificate.outcome) != Outcome.ROSE


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_layers_may_have_parameters_of_their_own():
    _, _, y, _, halves, keywords = attention_case((), dtype=np.float64, step_size=0.1)
    stacked = TransformerParams(*np.random.default_rng(1).normal(size=(2, 3, 4, 4)) / 4)
    known = {"smoothness_f": 2.0, "smoothness_g": 1.95}

    @jax.jit
    def both(stacked, y):
        whole = certify(*halves, stacked, y, **keywords, **known, num_layers=3, tied=False)

        def one(y, params):
            certificate = certify(*halves, params, y, **keywords, **known)
            first = jax.tree.map(lambda leaf: leaf[0], certificate._replace(energy=certificate.energy[:1]))
            return uj.transformer(4, step_size=0.1).step(params, y, None), first

        return whole, jax.lax.scan(one, y, stacked)[1]

    whole, apart = both(stacked, y)
    assert whole.energy.shape == (4,)
    chex.assert_trees_all_close(whole._replace(energy=whole.energy[:3]), apart, rtol=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_named():
    sizes = {"f_step_size": 0.1, "g_step_size": 0.1, "smoothness_f": 1.0, "smoothness_g": 1.0}
    f, y = lambda params, y, x: jnp.sum(y**2, (-2, -1)), jnp.ones((2, 2))
    nan = float("nan")
    wrong = {"g_step_size": 0.0, "f_step_size": nan, "smoothness_f": -1.0, "smoothness_g": nan, "smoothness_h": -2.0}
    for name, value in (wrong | {"num_layers": 0, "phi": "rleu"}).items():
        others = {other: size for other, size in sizes.items() if other != name}
        assert_names(ValueError, lambda **options: certify(f, f, None, y, **options), {**others, name: value})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in uj.DESCENTS.items() if entry.condition is None])
def test_certify_takes_every_descent_and_finds_that_it_descends(name):
    descent, y, x = uj.DESCENTS[name].example(jax.random.key(0), (3,))
    params = descent.init(jax.random.key(1))
    certificate = jax.jit(lambda params: uj.certify(descent, params, y, x, num_points=2))(params)
    assert certificate.outcome.shape == (1, 3)
    assert not np.any(certificate.outcome == Outcome.ROSE)
    assert not np.any(certificate.by_smoothness), "no smoothness was given"
    assert np.all(np.diff(certificate.energy, axis=0) <= 1e-5 * np.abs(certificate.energy[:-1]))


def quartic(rate):
    """E(y) = sum y^4 / 4 and gradient steps; on [-1, 1] its smoothness is 3."""
    return uj.Descent(
        init=lambda key: None,
        energy=lambda params, y, x: 0.25 * jnp.sum(y**4, axis=-1),
        step=lambda params, y, x: y - rate * y**3,
    )


def test_a_descent_of_ones_own_is_guaranteed_where_its_smoothness_says_so():
    y = np.linspace(0.2, 1.0, 9, dtype=np.float32).reshape(3, 3)
    certified = uj.certify(quartic(0.5), None, y, smoothness=3.0)
    assert np.all(certified.outcome == Outcome.GUARANTEED)
    assert np.all(uj.certify(quartic(0.5), None, y).outcome == Outcome.DESCENDED)
    # y' - y = -r y^3 along which the slope <y^3, y' - y> and the growth of the slope have closed forms.
    slope = -0.5 * np.sum(y**6, axis=-1)
    np.testing.assert_allclose(certified.slope[0], slope, rtol=1e-5)
    np.testing.assert_allclose(certified.limit[0], -2.0 * slope / np.sum((0.5 * y**3) ** 2, axis=-1), rtol=1e-5)
    assert np.all(certified.curvature[0] < 3.0)


def test_a_smoothness_that_the_slopes_refute_guarantees_nothing():
    y = np.ones((2, 1), np.float32)
    honest, wrong = (uj.certify(quartic(0.5), None, y, smoothness=L) for L in (3.0, 0.5))
    assert np.all(honest.by_smoothness)
    assert np.all(wrong.curvature[0] > 0.5)
    assert not np.any(wrong.by_smoothness)
    assert np.all(wrong.outcome == Outcome.DESCENDED)


def test_a_step_too_long_is_seen_to_rise():
    y = np.array([[1.0], [0.1]], np.float32)
    certified = uj.certify(quartic(4.0), None, y, smoothness=3.0)  # 0.03 at the second
    assert list(certified.outcome[0]) == [Outcome.ROSE, Outcome.DESCENDED]
    assert list(np.asarray(certified.by_curvature[0])) == [False, True]


def test_a_fixed_point_is_guaranteed():
    y = np.zeros((1, 3), np.float32)
    certified = uj.certify(quartic(0.5), None, y, smoothness=1.0)
    assert np.all(np.isinf(certified.limit))
    assert np.all(certified.outcome == Outcome.GUARANTEED)
