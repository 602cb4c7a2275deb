"""Attention to predecessors, what it lowers and what it does not, and the sweep that lowers the whole."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from tests.energies.any_rho import of_every_rho
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention.causal import causal_attention

NO_WEIGHT = AttentionParams(None)
every_form = pytest.mark.parametrize("form", ["jacobi", "softmax"])
every_rho = pytest.mark.parametrize("rho", list(uj.RHOS))
both_dtypes = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])


def tokens(seed, shape=(6, 3), scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def draws(dtype):
    """200 states and contexts over six orders of magnitude of scale."""
    scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
    return [(scales * tokens(seed, (200, 6, 3))).astype(dtype) for seed in (0, 1)]


def rounding(energy, y, dtype):
    """Of the energy's value, and of its distances (which are rounded to the tokens' squares) times slopes up to 4/3."""
    squares = np.max(np.sum(y**2, -1), -1)
    return 50.0 * jnp.finfo(dtype).eps * (np.abs(energy) + 36.0 * (1.0 + np.minimum(squares, 1e3)))


def both(layer, *args):
    return layer.energy(*args), layer.step(*args)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@every_rho
def test_energy_and_step_equal_the_reference(rho):
    """Either form; weights and step sizes, and whether there is a context, go round."""
    y, c, W_a, row = tokens(0), tokens(1), tokens(2, (3, 2)), list(uj.RHOS).index(rho)
    table = [
        (form, *((None, 1.0), (W_a, 0.3))[(f + row) % 2], (c, None)[(f + row // 2) % 2])
        for f, form in enumerate(("jacobi", "softmax"))
    ]

    @jax.jit
    def all_of(W_a, y, c):
        results = []
        for form, weight, step_size, context in table:
            dim, rank = (None, None) if weight is None else (3, 2)
            layer = causal_attention(rho=rho, form=form, step_size=step_size, dim=dim, rank=rank)
            args = AttentionParams(None if weight is None else W_a), y, None if context is None else c
            results.append(both(layer, *args))
        return results

    for (form, weight, step_size, context), (energy, stepped) in zip(table, all_of(W_a, y, c), strict=True):
        held, system = y if context is None else context, {"rho": rho, "W_a": weight}
        message = f"{form}, step_size={step_size}, context={context is not None}"
        expected = np.sum(reference.causal_energy(y, held, **system))
        np.testing.assert_allclose(energy, expected, rtol=1e-12, atol=1e-12, err_msg=message)
        expected = reference.causal_step(y, held, form=form, step_size=step_size, **system)
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-12, err_msg=message)


@pytest.mark.slow
@every_form
@both_dtypes
def test_no_step_raises_the_energy_to_a_context_that_is_held(form, dtype):
    """For every rho and layer, with a context of its own and with the state as context."""
    options = [1.0, 0.3]

    def energies(rho, y, context):
        pairs = []
        for step_size, (held, x) in itertools.product(options, ((context, context), (y, None))):
            layer = causal_attention(rho=rho, form=form, step_size=step_size)
            states = jnp.stack([y, layer.step(NO_WEIGHT, y, x)])
            pairs.append(layer.energy(NO_WEIGHT, states, held))
        return jnp.stack(pairs)

    with jax.enable_x64(dtype == "float64"):
        y, context = draws(dtype)
        of_rhos = of_every_rho(energies)(y, context)
        assert of_rhos.dtype == dtype
    for rho, of_cases in zip(uj.RHOS, np.asarray(of_rhos, np.float64), strict=True):
        for case, (before, after) in enumerate(of_cases):
            assert np.all(after <= before + rounding(before, y, dtype)), (rho, options[case // 2], case % 2)
            assert np.mean(after < before) > 0.3, (rho, options[case // 2], case % 2)


@pytest.mark.usefixtures("x64")
@every_form
def test_no_token_loses_by_its_step_while_its_predecessors_are_held(form):
    y, context = (np.stack([tokens(seed + start) for seed in range(20)]) for start in (0, 100))
    layers = {rho: causal_attention(rho=rho, form=form) for rho in ("softmax", "student")}
    steps = jax.jit(lambda *args: {rho: layer.step(NO_WEIGHT, *args) for rho, layer in layers.items()})(y, context)
    for rho, seed in itertools.product(layers, range(20)):
        states = y[seed], np.asarray(steps[rho][seed])
        before, after = (reference.causal_energy(state, context[seed], rho=rho) for state in states)
        assert np.all(after <= before + 1e-12), (rho, seed)


@both_dtypes
def test_a_layer_may_raise_the_pair_energy_which_the_undirected_step_lowers(dtype):
    """One token leaves a crowd for the first token: its successors, who came to it, are left behind."""
    y = np.asarray([[0.0], *[[1.0]] * 8], dtype)
    factories = {"causal": causal_attention, "undirected": uj.attention}
    layers = {name: factory(rho="power") for name, factory in factories.items()}  # sqrt(z + 1)

    @jax.jit
    def pair_energies(y):
        states = {"before": y} | {name: layer.step(NO_WEIGHT, y) for name, layer in layers.items()}
        return {name: layers["undirected"].energy(NO_WEIGHT, state) for name, state in states.items()}

    with jax.enable_x64(dtype == "float64"):
        energies = {name: float(energy) for name, energy in pair_energies(y).items()}
    # The same by hand: token 1 goes to 0, token k >= 2 to the mean of 0 and k - 1 ones, weighted by their slopes.
    expected = reference.pair_energy(reference.causal_step(np.float64(y), np.float64(y), rho="power"), rho="power")
    assert energies["causal"] == pytest.approx(expected, rel=1e-5)
    assert energies["causal"] > energies["before"] + 0.4
    assert energies["undirected"] < energies["before"] - 0.5


def test_the_energy_of_a_state_as_its_own_context_is_the_pair_energy():
    energy, pairs = causal_attention().energy, uj.attention().energy
    all_of = jax.jit(lambda y: (energy(NO_WEIGHT, y), energy(NO_WEIGHT, y, y), pairs(NO_WEIGHT, y)))
    *energies, expected = all_of(np.float32(tokens(0, (2, 6, 3))))
    for energy in energies:
        np.testing.assert_allclose(energy, expected, rtol=1e-5)


def test_the_softmax_form_is_causal_softmax_attention():
    """Against the fused primitive, with the bias -|z_v|^2 / 2 of its keys; without a weight and with one."""
    y, W_a = np.float32(tokens(0, (2, 6, 3))), np.float32(tokens(1, (3, 2)))

    @jax.jit
    def both_ways(W_a, y):
        def one(weight):
            dim, rank = (None, None) if weight is None else (3, 2)
            z = y if weight is None else y @ weight
            bias = -0.5 * jnp.sum(z**2, axis=-1)[:, None, None, :]
            key = jnp.pad(z, ((0, 0), (0, 0), (0, 3 - z.shape[-1])))[:, :, None]  # the primitive wants equal widths
            attended = jax.nn.dot_product_attention(key, key, y[:, :, None], bias=bias, scale=1.0, is_causal=True)
            stepped = causal_attention(form="softmax", dim=dim, rank=rank).step(AttentionParams(weight), y)
            return stepped, attended[:, :, 0]

        return one(None), one(W_a)

    for stepped, expected in both_ways(W_a, y):
        np.testing.assert_allclose(stepped, expected, rtol=1e-5, atol=1e-6)


@every_form
def test_no_token_sees_what_comes_after_it(form):
    y, other = np.float32(tokens(0, (2, 6, 3)))
    step = jax.jit(causal_attention(form=form).step)
    stepped, changed = step(NO_WEIGHT, y), step(NO_WEIGHT, np.concatenate([y[:4], other[4:]]))
    np.testing.assert_allclose(stepped[:4], changed[:4], rtol=1e-5)
    np.testing.assert_array_equal(stepped[0], y[0])  # the first has no predecessor


@pytest.mark.usefixtures("x64")
@every_form
def test_the_fixed_points_of_a_layer_are_tokens_like_the_first(form):
    y, layer = tokens(0, (5, 2)), causal_attention(form=form, rho="cauchy")
    consensus = np.broadcast_to(y[:1], y.shape)

    @jax.jit
    def all_of(y, consensus):
        last, _ = uj.unroll(layer, NO_WEIGHT, y, num_layers=2000)
        # To a context that is held the fixed points are the stationary ones instead.
        held, trace = uj.unroll(layer, NO_WEIGHT, y, y, num_layers=2000)
        return layer.step(NO_WEIGHT, consensus), last, trace.energy, jax.grad(layer.energy, 1)(NO_WEIGHT, held, y)

    stepped, last, energies, gradient = all_of(y, consensus)
    np.testing.assert_allclose(stepped, consensus, rtol=1e-14)
    np.testing.assert_allclose(last, consensus, atol=1e-6)
    assert np.all(np.diff(energies) <= 1e-12)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)
