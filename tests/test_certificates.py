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
from unroll_jax.energies import transformer_parts
from unroll_jax.energies.transformer import TransformerParams

BATCHES = [(), (3,), (2, 3)]
every_batch = pytest.mark.parametrize("batch", BATCHES, ids=["rank0", "rank1", "rank2"])
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def quadratic(A, b: Any = 0.0):
    """The energy (y - b) A (y - b) / 2 of states (*batch, d)."""
    return lambda y: 0.5 * jnp.sum(((y - b) @ jnp.asarray(A, y.dtype)) * (y - b), axis=-1)


def symmetric(rng, d):
    A = rng.normal(size=(d, d))
    return A + A.T


@every_batch
@both_dtypes
def test_the_gradient_ratio_is_the_quotient_of_the_norms(batch, dtype):
    rng = np.random.default_rng(0)
    A, B, y = symmetric(rng, 4), symmetric(rng, 4), rng.normal(size=(*batch, 4)).astype(dtype)
    expected = np.empty(batch)
    for place in np.ndindex(batch):
        expected[place] = np.linalg.norm(A @ (y[place] - 1.0)) / np.linalg.norm(A @ (y[place] - 1.0) + B @ y[place])
    with jax.enable_x64(dtype == "float64"):
        delta = certified.gradient_ratio(quadratic(A, 1.0), quadratic(B), jnp.asarray(y))
        assert (delta.shape, delta.dtype) == (batch, dtype)
    np.testing.assert_allclose(delta, expected, rtol=1e-12 if dtype == "float64" else 1e-4)


def test_the_gradient_ratio_is_0_where_f_is_stationary_and_infinite_where_only_h_is():
    f, g = quadratic(np.eye(2)), quadratic(np.eye(2), jnp.array([2.0, 0.0]))
    points = jnp.array([[0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(certified.gradient_ratio(f, g, points), [0.0, np.inf])
    np.testing.assert_array_equal(certified.gradient_ratio(f, f, points), [0.0, 0.5])


def test_the_state_of_a_ratio_may_be_a_pytree():
    f = lambda y: jnp.sum(y["a"] ** 2, -1) + y["b"] ** 2  # noqa: E731
    g = lambda y: 3.0 * f(y)  # noqa: E731
    y = {"a": jnp.ones((5, 2)), "b": jnp.arange(5.0)}
    np.testing.assert_allclose(certified.gradient_ratio(f, g, y), 0.25, rtol=1e-6)


def test_the_constants_are_their_formulas():
    np.testing.assert_allclose(certified.descent_constant(0.1, 0.2, 3.0), 0.2 / (0.1 + 0.06), rtol=1e-6)
    np.testing.assert_allclose(certified.descent_constant(0.2, 0.1, 3.0), 0.1 / (0.1 + 0.06), rtol=1e-6)
    assert certified.descent_constant(0.1, 0.1, 0.0) == np.inf
    kappas = jnp.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(
        certified.proximal_constant(0.1, 0.2, 3.0, kappas), 1.25 * np.sqrt([0.5, 0.25, 0.0]), rtol=1e-6
    )


@pytest.mark.parametrize("ratio", [0.7, 1.5])
def test_the_region_s_is_bounded_by_the_apollonian_ball(ratio, getkey):
    """The two panels of Fig. 1, on points in the plane and on states that are matrices."""
    for event in ((2,), (3, 2)):
        at_f, at_h = jax.random.normal(getkey(), (2, *event))
        points = 4.0 * jax.random.normal(getkey(), (500, *event))
        member = certified.in_descent_region(
            points, at_f, at_h, constant=2.0 * ratio, smoothness_f=3.0, convexity_h=1.5
        )
        ball = certified.apollonian_ball(at_f, at_h, ratio)
        distance = np.linalg.norm(np.reshape(points - ball.centre, (500, -1)), axis=-1)
        assert bool(ball.inside) == (ratio < 1.0)
        np.testing.assert_array_equal(member, (distance <= ball.radius) == ball.inside)
        assert 0 < np.sum(member) < 500
        held, other = (at_f, at_h) if ratio < 1.0 else (at_h, at_f)
        assert np.linalg.norm(held - ball.centre) < ball.radius < np.linalg.norm(other - ball.centre)
        assert np.linalg.norm(held - ball.centre) > 0.1 * ball.radius  # it holds the point, but is not centred on it


def test_the_alignment_is_the_sum_over_single_coordinates():
    rng = np.random.default_rng(1)
    p, q = rng.normal(size=(2, 7, 4, 3))
    expected = [
        sum(min(b**2 - a**2, 0.0) for a, b in zip(u.flat, v.flat, strict=True)) for u, v in zip(p, q, strict=True)
    ]
    found = certified.orthant_alignment(jnp.asarray(p), jnp.asarray(q), batch_ndim=1)
    np.testing.assert_allclose(found, expected / np.sum(p**2, (1, 2)), rtol=1e-5)
    assert np.all((found >= -1.0) & (found <= 0.0))
    assert certified.orthant_alignment(jnp.asarray(p), jnp.zeros_like(p)) == -1.0
    assert certified.orthant_alignment(jnp.zeros(3), jnp.ones(3)) == 0.0


def test_lemma_d_3_bounds_the_proximal_step_in_t_of_kappa(getkey):
    """On 10,000 points of either sign, |y - relu(y - p)|^2 is at least (1 - kappa) |p|^2; membership is monotone."""
    h = lambda y: jnp.sum(jnp.array([0.3, 2.0]) * (y - 1.0) ** 2, -1)  # noqa: E731
    y = 2.0 * jax.random.normal(getkey(), (10_000, 2))
    p = 0.4 * jax.vmap(jax.grad(h))(y)
    moved, whole = jnp.sum((y - jax.nn.relu(y - p)) ** 2, -1), jnp.sum(p**2, -1)
    shares = []
    for kappa in (0.2, 0.4, 0.6, 0.8):
        member = certified.in_proximal_region(h, y, step_size=0.4, kappa=kappa)
        assert jnp.all(jnp.where(member, moved >= (1.0 - kappa) * whole * (1 - 1e-5), True))
        shares.append(float(jnp.mean(member)))
    assert 0.0 < shares[0] < shares[1] < shares[2] < shares[3] < 1.0
    assert jnp.any(moved < 0.8 * whole)


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
