"""Attention to predecessors, what it lowers and what it does not, and the sweep that lowers the whole."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.causal import causal_attention, sweep_attention

NO_WEIGHT = AttentionParams(None)
MASKS = {
    "causal": None,
    "causal window": np.tri(6, k=-1, dtype=bool) & ~np.tri(6, k=-3, dtype=bool),
    "prefix": np.tri(6, dtype=bool) | (np.arange(6) < 3),
    "any": np.random.default_rng(7).random((6, 6)) < 0.4,
}
every_form = pytest.mark.parametrize("form", ["jacobi", "softmax"])
every_rho = pytest.mark.parametrize("rho", list(uj.RHOS))
both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def tokens(seed, shape=(6, 3), scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def draws(dtype):
    """200 states and contexts over six orders of magnitude of scale."""
    scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
    return (jnp.asarray(scales * tokens(seed, (200, 6, 3)), dtype) for seed in (0, 1))


def rounding(energy, y, dtype):
    """Of the energy's value, and of its distances (which are rounded to the tokens' squares) times slopes up to 4/3."""
    squares = jnp.max(jnp.sum(y**2, -1), -1)
    return 50.0 * jnp.finfo(dtype).eps * (jnp.abs(energy) + 36.0 * (1.0 + jnp.minimum(squares, 1e3)))


@pytest.mark.usefixtures("x64")
@every_rho
@every_form
@pytest.mark.parametrize("mask", MASKS)
def test_energy_and_step_equal_the_reference(rho, form, mask):
    y, c, W_a = tokens(0), tokens(1), tokens(2, (3, 2))
    for weight, step_size in ((None, 1.0), (W_a, 0.3)):
        dim, rank = (None, None) if weight is None else (3, 2)
        layer = causal_attention(rho=rho, form=form, step_size=step_size, mask=MASKS[mask], dim=dim, rank=rank)
        params = AttentionParams(None if weight is None else jnp.asarray(weight))
        system = {"rho": rho, "graph": MASKS[mask], "W_a": weight}
        for context in (c, None):
            held = y if context is None else context
            args = (params, jnp.asarray(y), None if context is None else jnp.asarray(context))
            expected = np.sum(reference.causal_energy(y, held, **system))
            np.testing.assert_allclose(layer.energy(*args), expected, rtol=1e-12, atol=1e-12)
            expected = reference.causal_step(y, held, form=form, step_size=step_size, **system)
            np.testing.assert_allclose(layer.step(*args), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("x64")
@every_form
def test_gradients_equal_finite_differences_of_the_reference(form):
    points = {"W_a": tokens(2, (3, 2)), "y": tokens(0), "x": tokens(1)}
    weight = tokens(4)
    layer = causal_attention(form=form, rho="log", dim=3, rank=2)

    def ours(W_a, y, x):
        params = AttentionParams(W_a)
        return layer.energy(params, y, x) + jnp.sum(weight * layer.step(params, y, x))

    def expected(W_a, y, x):
        energy = np.sum(reference.causal_energy(y, x, rho="log", W_a=W_a))
        return energy + np.sum(weight * reference.causal_step(y, x, rho="log", form=form, W_a=W_a))

    gradients = jax.jit(jax.grad(ours, (0, 1, 2)))(*points.values())
    for place, (name, point) in enumerate(points.items()):
        direction = tokens(5, point.shape)
        by_differences = reference.directional_derivative(lambda p: expected(**{**points, name: p}), point, direction)  # noqa: B023
        np.testing.assert_allclose(np.sum(gradients[place] * direction), by_differences, rtol=1e-8)


@every_rho
@every_form
@both_dtypes
def test_no_step_raises_the_energy_to_a_context_that_is_held(rho, form, dtype):
    layers = [
        causal_attention(rho=rho, form=form, step_size=step_size, mask=mask)
        for step_size, mask in ((1.0, None), (0.3, MASKS["any"]))
    ]

    @jax.jit
    def energies(y, context):
        """Before and after, for every layer, with a context of its own and with the state as context."""
        cases = [(layer, held, x) for layer in layers for held, x in ((context, context), (y, None))]
        before = [layer.energy(NO_WEIGHT, y, held) for layer, held, _ in cases]
        return jnp.stack(before), jnp.stack(
            [layer.energy(NO_WEIGHT, layer.step(NO_WEIGHT, y, x), held) for layer, held, x in cases]
        )

    with jax.enable_x64(dtype == "float64"):
        y, context = draws(dtype)
        before, after = energies(y, context)
        assert jnp.all(after <= before + rounding(before, y, dtype))
        assert jnp.mean(after < before) > 0.3


@pytest.mark.usefixtures("x64")
@every_form
def test_no_token_loses_by_its_step_while_its_predecessors_are_held(form):
    for seed, rho in itertools.product(range(20), ("softmax", "student")):
        y, context = tokens(seed), tokens(seed + 100)
        stepped = causal_attention(rho=rho, form=form).step(NO_WEIGHT, jnp.asarray(y), jnp.asarray(context))
        before, after = (reference.causal_energy(state, context, rho=rho) for state in (y, np.asarray(stepped)))
        assert np.all(after <= before + 1e-12)


@both_dtypes
def test_a_layer_may_raise_the_pair_energy_which_the_sweep_and_the_undirected_step_lower(dtype):
    """One token leaves a crowd for the first token: its successors, who came to it, are left behind."""
    with jax.enable_x64(dtype == "float64"):
        y = jnp.asarray([[0.0], *[[1.0]] * 8], dtype)
        options = {"rho": "power"}  # sqrt(z + 1)
        pairs = uj.attention(**options).energy
        before = pairs(NO_WEIGHT, y)
        after = {
            name: pairs(NO_WEIGHT, factory(**options).step(NO_WEIGHT, y))
            for name, factory in (
                ("causal", causal_attention),
                ("sweep", sweep_attention),
                ("undirected", uj.attention),
            )
        }
        # The same by hand: token 1 goes to 0, token k >= 2 to the mean of 0 and k - 1 ones, weighted by their slopes.
        expected = reference.pair_energy(reference.causal_step(np.float64(y), np.float64(y), rho="power"), rho="power")
        assert after["causal"] == pytest.approx(expected, rel=1e-5)
        assert after["causal"] > before + 0.4
        assert max(after["sweep"], after["undirected"]) < before - 0.5


def test_the_energy_of_a_state_as_its_own_context_is_the_pair_energy(getkey):
    y = jax.random.normal(getkey(), (2, 6, 3))
    layer, pairs = causal_attention(), uj.attention()
    chex.assert_trees_all_close(layer.energy(NO_WEIGHT, y), pairs.energy(NO_WEIGHT, y), rtol=1e-5)
    chex.assert_trees_all_close(layer.energy(NO_WEIGHT, y, y), pairs.energy(NO_WEIGHT, y), rtol=1e-5)


@pytest.mark.parametrize("rank", [None, 2])
def test_the_softmax_form_is_causal_softmax_attention(getkey, rank):
    """Against the fused primitive, with the bias -|z_v|^2 / 2 of its keys."""
    layer = causal_attention(form="softmax", dim=3 if rank else None, rank=rank)
    params, y = layer.init(getkey()), jax.random.normal(getkey(), (2, 6, 3))
    z = y if params.W_a is None else y @ params.W_a
    bias = -0.5 * jnp.sum(z**2, axis=-1)[:, None, None, :]
    key = jnp.pad(z, ((0, 0), (0, 0), (0, 3 - z.shape[-1])))[:, :, None]  # zeros: the primitive wants equal widths
    expected = jax.nn.dot_product_attention(key, key, y[:, :, None], bias=bias, scale=1.0, is_causal=True)[:, :, 0]
    chex.assert_trees_all_close(layer.step(params, y), expected, rtol=1e-5, atol=1e-6)


@every_form
def test_no_token_sees_what_comes_after_it(getkey, form):
    y, other = jax.random.normal(getkey(), (2, 6, 3))
    layer = causal_attention(form=form)
    chex.assert_trees_all_close(
        layer.step(NO_WEIGHT, y)[:4], layer.step(NO_WEIGHT, y.at[4:].set(other[4:]))[:4], rtol=1e-5
    )
    chex.assert_trees_all_equal(layer.step(NO_WEIGHT, y)[0], y[0])  # the first has no predecessor


@pytest.mark.usefixtures("x64")
@every_form
def test_the_fixed_points_of_a_layer_are_tokens_like_the_first(form):
    y = jnp.asarray(tokens(0, (5, 2)))
    layer = causal_attention(form=form, rho="cauchy")
    consensus = jnp.broadcast_to(y[:1], y.shape)
    np.testing.assert_allclose(layer.step(NO_WEIGHT, consensus), consensus, rtol=1e-14)
    last, trace = uj.unroll(layer, NO_WEIGHT, y, num_layers=2000)
    np.testing.assert_allclose(last, consensus, atol=1e-6)
    # To a context that is held the fixed points are the stationary ones instead.
    last, trace = uj.unroll(layer, NO_WEIGHT, y, y, num_layers=2000)
    assert jnp.all(jnp.diff(trace.energy) <= 1e-12)
    gradient = jax.grad(layer.energy, 1)(NO_WEIGHT, last, y)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@pytest.mark.usefixtures("x64")
@every_rho
def test_the_sweep_is_the_jacobi_step_taken_token_by_token(rho):
    """Against the reference's step on one token at a time."""
    y, x, W_a, graph = tokens(0), tokens(1), tokens(2, (3, 2)), reference.random_graph(np.random.default_rng(3), 6)
    for ridge, weight, step_size in ((0.0, None, 1.0), (0.7, W_a, 0.3)):
        system = {"rho": rho, "graph": graph, "ridge": ridge, "anchor": x, "W_a": weight}
        expected = y.copy()
        for u in range(6):
            expected[u] = reference.pair_step(expected, step_size=step_size, **system)[u]
        dim, rank = (None, None) if weight is None else (3, 2)
        layer = sweep_attention(rho=rho, ridge=ridge, step_size=step_size, mask=graph, dim=dim, rank=rank)
        params = AttentionParams(None if weight is None else jnp.asarray(weight))
        stepped = layer.step(params, jnp.asarray(y), jnp.asarray(x))
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-12)


@every_rho
@both_dtypes
def test_no_sweep_raises_the_pair_energy(rho, dtype):
    layers = [sweep_attention(rho=rho, ridge=ridge, step_size=size) for ridge, size in ((0.0, 1.0), (0.1, 0.3))]

    @jax.jit
    def energies(y, x):
        before = [layer.energy(NO_WEIGHT, y, x) for layer in layers]
        return jnp.stack(before), jnp.stack(
            [layer.energy(NO_WEIGHT, layer.step(NO_WEIGHT, y, x), x) for layer in layers]
        )

    with jax.enable_x64(dtype == "float64"):
        y, x = draws(dtype)
        before, after = energies(y, x)
        pull = 20.0 * jnp.finfo(dtype).eps * 0.1 * jnp.sum((y - x) ** 2, axis=(-2, -1))
        assert jnp.all(after <= before + rounding(before, y, dtype) + pull)


@pytest.mark.parametrize("factory", [causal_attention, sweep_attention])
def test_absent_tokens_are_as_if_left_out(getkey, factory):
    y, x = jax.random.normal(getkey(), (2, 2, 6, 3))
    there = jnp.arange(6) < jnp.array([[4], [6]])
    layer = factory() if factory is causal_attention else factory(ridge=0.5)
    padded = jnp.where(there[..., None], y, jnp.nan)
    stepped = layer.step(NO_WEIGHT, padded, Anchor(x, there))
    energy = layer.energy(NO_WEIGHT, padded, Anchor(x, there))
    for example, length in enumerate((4, 6)):
        alone = y[example, :length], x[example, :length]
        chex.assert_trees_all_close(stepped[example, :length], layer.step(NO_WEIGHT, *alone), rtol=1e-5, atol=1e-6)
        chex.assert_trees_all_close(energy[example], layer.energy(NO_WEIGHT, *alone), rtol=1e-5)
    assert jnp.all(jnp.isnan(stepped[0, 4:]))


BAD = [
    ({"form": "gauss"}, "form must be one of"),
    ({"step_size": 1.5}, r"step_size must be in \(0, 1\], got 1.5"),
    ({"mask": np.ones((3, 3))}, "mask must be a boolean .* got float64"),
    ({"block": 0}, "block must be .* at least 1, got 0"),
    ({"mask": np.ones((3, 2), bool)}, r"mask must be .* shape \(3, 2\)"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), BAD)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        causal_attention(**options)


@pytest.mark.usefixtures("unchecked")
def test_a_bad_input_is_named():
    y = jnp.ones((6, 3))
    with pytest.raises(ValueError, match=r"mask is \(3, 3\), but y has n=6 tokens"):
        causal_attention(mask=np.tri(3, dtype=bool)).step(NO_WEIGHT, y)
    with pytest.raises(ValueError, match=r"x must broadcast to y's shape \(6, 3\)"):
        causal_attention().step(NO_WEIGHT, y, jnp.ones((5, 3)))
    with pytest.raises(ValueError, match="mask must be symmetric"):
        sweep_attention(mask=np.tri(6, dtype=bool))
