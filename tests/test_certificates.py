"""Certificates against loops, dense Hessians and the real forward passes they speak of."""

import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax import certificates as certified
from unroll_jax.certificates import Outcome, certify
from unroll_jax.descent import Anchor
from unroll_jax.energies import transformer_parts
from unroll_jax.energies.transformer import TransformerParams

BATCHES = [(), (3,), (2, 3)]
every_batch = pytest.mark.parametrize("batch", BATCHES, ids=["rank0", "rank1", "rank2"])


def quadratic(A, b: Any = 0.0):
    """The energy (y - b) A (y - b) / 2 of states (*batch, d)."""
    return lambda y: 0.5 * jnp.sum(((y - b) @ jnp.asarray(A, y.dtype)) * (y - b), axis=-1)


def attention_case(getkey, batch=(4,), scale=2.0, dim=4, tokens=6, **options):
    parts = transformer_parts(dim, **options)
    params, y = parts.attention.init(getkey()), scale * jax.random.uniform(getkey(), (*batch, tokens, dim))
    keywords = {"f_step": parts.attention.step, "phi": parts.phi, "g_step_size": parts.step_size}
    return parts, params, y, (parts.attention.energy, parts.feedforward.energy), keywords


@every_batch
def test_a_certificate_speaks_of_the_forward_pass_of_the_transformer(batch, getkey):
    _, params, y, halves, keywords = attention_case(getkey, batch, step_size=0.1)
    x = jax.random.uniform(getkey(), y.shape)

    def both(params, y):
        found = certify(*halves, params, y, x, **keywords, smoothness_f=9.0, smoothness_g=1.95, num_layers=5)
        return found, uj.unroll(uj.transformer(4, step_size=0.1), params, y, x, num_layers=5)[1].energy

    found, energy = jax.jit(both)(params, y)
    assert found.energy.shape == (6, *batch)
    assert all(leaf.shape == (5, *batch) for name, leaf in found._asdict().items() if name != "energy")
    np.testing.assert_allclose(found.energy, energy, rtol=1e-5, atol=1e-5)
    rose = np.diff(energy, axis=0) > 1e-5
    assert np.all((found.outcome == Outcome.ROSE) >= rose)
    np.testing.assert_array_equal(
        (found.outcome == Outcome.GUARANTEED) & ~rose, (found.by_theorem | found.by_noise) & ~rose
    )


@pytest.mark.parametrize("phi", ["tanh", "sigmoid", "elu"])
def test_an_activation_by_name_is_certified_as_the_transformer_applies_it(phi, getkey):
    parts, params, y, halves, keywords = attention_case(getkey, scale=0.9, step_size=0.1, phi=phi)
    known = {"smoothness_f": 9.0, "smoothness_g": 1.95, "num_layers": 3}

    @jax.jit
    def all_three(params, y):
        by_name, by_pair = (certify(*halves, params, y, **(keywords | known | {"phi": p})) for p in (phi, parts.phi))
        layer = uj.transformer(4, step_size=0.1, phi=phi)
        return by_name, by_pair, uj.unroll(layer, params, y, num_layers=3)[1].energy

    by_name, by_pair, energy = all_three(params, y)
    chex.assert_trees_all_close(by_name, by_pair, rtol=1e-6)
    np.testing.assert_allclose(by_name.energy, energy, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("phi", ["relu", "tanh", "group_shrinkage"])
def test_padding_does_not_change_a_certificate(phi, getkey):
    """Whatever it holds; examples of near tokens, whose smoothness counts the tokens, and of far ones, guaranteed."""
    _, params, y, halves, keywords = attention_case(getkey, (2,), 1.0, dim=32, step_size=0.3, phi=phi)
    params = jax.tree.map(lambda leaf: leaf.astype(float), params)
    y = y * jnp.array([0.01, 0.99 if phi == "tanh" else 8.0])[:, None, None]
    # After two layers near tokens have met, and what is left of them is round-off.
    known = keywords | {"smoothness_f": certified.pairwise_smoothness(), "smoothness_g": 1.95, "num_layers": 2}
    check = jax.jit(lambda y, x: certify(*halves, params, y, x, **known))
    plain = check(y, y[:, :1])
    for padding in (0.0, -1.0, jnp.nan):
        filled = jnp.full((2, 9, 32), padding).at[:, 1:7].set(y)
        anchor = jnp.full((2, 9, 32), padding).at[:, 1:7].set(y[:, :1])
        found = check(filled, Anchor(anchor, (jnp.arange(9) > 0) & (jnp.arange(9) < 7)))
        chex.assert_trees_all_close(found, plain, rtol=1e-9, atol=1e-12)
    assert np.all(np.isfinite(plain.energy))
    assert phi != "relu" or np.all(plain.outcome[:, 1] == Outcome.GUARANTEED)


@pytest.mark.usefixtures("x64")
def test_the_noise_of_a_transformer_is_what_its_docstring_states(getkey):
    parts, params, y, halves, keywords = attention_case(getkey, (), step_size=0.2)
    params, y = jax.tree.map(lambda leaf: leaf.astype(float), (params, y))
    found = jax.jit(lambda p, y: certify(*halves, p, y, **keywords, smoothness_f=1.0, smoothness_g=1.5))(params, y)
    steps = jax.jit(lambda p, y: (parts.attention.step(p, y, None), uj.transformer(4, step_size=0.2).step(p, y, None)))
    f_gradient, (moved, after) = jax.jit(jax.grad(parts.attention.energy, 1))(params, y, None), steps(params, y)
    mixing = 0.8 * np.eye(4) - 0.1 * (params.W_f + params.W_f.T)
    noise = np.linalg.norm(0.2 * f_gradient + (moved - y) @ mixing) / np.linalg.norm(after - y)
    np.testing.assert_allclose(found.noise, [noise], rtol=1e-10)
    np.testing.assert_allclose(found.noise_limit, [1.0 - 0.5 * 0.2 * 2.5], rtol=1e-12)


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
    found = certify(
        f, g, None, jnp.asarray(y), f_step_size=a1, g_step_size=a2, phi=phi,
        smoothness_f=measured[0], smoothness_g=measured[1],
    )  # fmt: skip
    np.testing.assert_allclose(found.smoothness_h, L_f + L_g, rtol=1e-10)
    np.testing.assert_allclose(found.smoothness_g, L_g, rtol=1e-10)
    of_f, of_h = (y - 1.0) @ A, (y - 1.0) @ A + (y - 0.3) @ B
    size = lambda array: np.linalg.norm(array, axis=(-2, -1))  # noqa: E731
    C = a2 / (a2 - a1 + a1 * a2 * L_g)
    moved = a2 * of_h if phi is None else y - np.maximum(y - a2 * of_h, 0.0)
    np.testing.assert_allclose(found.delta[0], size(of_f) / size(of_h), rtol=1e-9)
    np.testing.assert_allclose(found.constant[0], C * size(moved) / size(a2 * of_h), rtol=1e-9)
    np.testing.assert_array_equal(found.by_theorem, found.delta <= found.constant)
    assert 0 < np.sum(found.by_theorem) < 200
    assert not np.any(found.by_theorem & (found.outcome == Outcome.ROSE))
    assert {int(value) for value in found.outcome.ravel()} == set(Outcome)


def test_a_layer_norm_is_part_of_the_first_half(getkey):
    parts, params, y, _, keywords = attention_case(getkey, (3,), step_size=0.1, norm_radius=2.0)
    assert parts.layer_norm is not None
    norm = parts.layer_norm

    def f(params, y, x):
        return norm.energy(params, y, x) + parts.attention.energy(params, y, x)

    def f_step(params, y, x):
        return parts.attention.step(params, norm.step(params, y, x), x)

    @jax.jit
    def both(params, y):
        known = keywords | {"f_step": f_step, "smoothness_f": 9.0, "smoothness_g": 1.95, "num_layers": 3}
        found = certify(f, parts.feedforward.energy, params, y, **known)
        return found, uj.unroll(uj.transformer(4, step_size=0.1, norm_radius=2.0), params, y, num_layers=3)[1].energy

    found, energy = both(params, y)
    np.testing.assert_allclose(found.energy, energy, rtol=1e-5, atol=1e-5)


def test_far_tokens_are_guaranteed_and_steps_too_long_are_not(getkey):
    """Longer than 2 / L_h neither condition holds, whatever the energy does."""
    _, params, y, halves, keywords = attention_case(getkey, scale=8.0, dim=32, step_size=0.3)
    known = {"smoothness_f": certified.pairwise_smoothness(), "smoothness_g": 1.95, "num_layers": 2}
    far = jax.jit(lambda params, y: certify(*halves, params, y, **keywords, **known))(params, y)
    assert np.all(far.outcome == Outcome.GUARANTEED)
    assert np.all(far.by_theorem)
    long = certify(*halves, params, y, **(keywords | {"g_step_size": 1.1}), **(known | {"smoothness_f": 0.0}))
    assert not np.any(long.outcome == Outcome.GUARANTEED)


def test_a_rise_under_a_false_smoothness_is_told_as_a_rise():
    f = g = lambda params, y, x: 5.0 * jnp.sum(y**2, (-2, -1))
    found = certify(f, g, None, jnp.ones((1, 1)), f_step_size=0.3, g_step_size=0.3, smoothness_f=0.0, smoothness_g=0.0)
    assert found.by_theorem
    assert found.outcome == Outcome.ROSE


@pytest.mark.usefixtures("x64")
def test_layers_may_have_parameters_of_their_own(getkey):
    _, _, y, halves, keywords = attention_case(getkey, (), step_size=0.1)
    layers = [TransformerParams(*(jax.random.normal(getkey(), (4, 4)) / 4 for _ in range(2))) for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    known = {"smoothness_f": 2.0, "smoothness_g": 1.95}
    whole = certify(*halves, stacked, y, **keywords, **known, num_layers=3, tied=False)
    layer = uj.transformer(4, step_size=0.1)
    single = jax.jit(lambda params, y: certify(*halves, params, y, **keywords, **known))
    for place, params in enumerate(layers):
        one = single(params, y)
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf: leaf[0], one._replace(energy=one.energy[:1])),
            jax.tree.map(lambda leaf, place=place: leaf[place], whole),
            rtol=1e-9,
        )  # fmt: skip
        y = layer.step(params, y, None)
    assert whole.energy.shape == (4,)


OPTIONS = {"f_step_size": 0.1, "g_step_size": 0.1, "smoothness_f": 1.0, "smoothness_g": 1.0}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"g_step_size": 0.0}, "g_step_size must be positive and finite, got 0.0"),
        ({"f_step_size": float("nan")}, "f_step_size must be positive and finite, got nan"),
        ({"f_step_size": None}, "give either f_step_size or f_step"),
        ({"smoothness_f": -1.0}, "smoothness_f must be at least 0, got -1.0"),
        ({"smoothness_g": float("nan")}, "smoothness_g must be at least 0, got nan"),
        ({"smoothness_h": -2.0}, "smoothness_h must be at least 0, got -2.0"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"phi": "rleu"}, "phi must be one of"),
    ],
)
def test_options_out_of_range_are_one_clear_error_each(changed, message):
    f = lambda params, y, x: jnp.sum(y**2, (-2, -1))  # noqa: E731
    with pytest.raises(ValueError, match=re.escape(message)):
        certify(f, f, None, jnp.ones((2, 2)), **(OPTIONS | changed))
