"""Attention lowers the energy it reports: every rho, form, graph and scale, and where the paper's claim fails."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import AttentionParams

NO_WEIGHT = AttentionParams(None)
CAUCHY = uj.Rho(value=lambda z: z / (1.0 + z))  # slope by autodiff, no logarithm given
POWER = uj.Rho(value=lambda z: (z + 0.1) ** 0.3)
GRAPHS = {
    "complete": None,
    "empty": np.zeros((6, 6), bool),
    "star": np.array([[(u == 0) != (v == 0) for v in range(6)] for u in range(6)]),
    "two components": np.kron(np.eye(2, dtype=bool), np.ones((3, 3), bool)),
    "isolated token": np.pad(np.ones((5, 5), bool), (0, 1)),
    "random": reference.random_graph(np.random.default_rng(7), 6),
}


def tokens(seed, shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def attention(**options):
    """The factory's layer, compiled: quicker here than one operation at a time."""
    layer = uj.attention(**options)
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


def rounding(energy, y, x, ridge, dtype):
    """How much the energy may seem to rise from round-off: of its value, and of distances at this spread."""
    spread = jnp.max(jnp.sum((y - y.mean(-2, keepdims=True)) ** 2, -1), -1)
    pull = ridge * jnp.sum((y if x is None else y - x) ** 2, axis=(-2, -1))
    pairs = y.shape[-2] ** 2
    return 20.0 * jnp.finfo(dtype).eps * (jnp.abs(energy) + pull + pairs * (1.0 + jnp.minimum(spread, 1.0 / 1e-3)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("rho", [*uj.RHOS, CAUCHY, POWER], ids=[*uj.RHOS, "cauchy", "power"])
def test_no_step_raises_its_energy(rho, form, dtype):
    """200 points for each setting, over six orders of magnitude of scale, most of them off centre."""
    with jax.enable_x64(dtype == "float64"):
        scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
        y = jnp.asarray(scales * (tokens(0, (200, 6, 3)) + 3.0 * tokens(1, (200, 1, 3))), dtype)
        x = jnp.asarray(scales * tokens(2, (200, 6, 3)), dtype)
        options = [(0.0, 1.0), (0.0, 0.3), (0.1, 1.0), (100.0, 0.01)]
        for graph, (ridge, step_size) in itertools.product(GRAPHS, options):
            layer = uj.attention(rho=rho, form=form, ridge=ridge, step_size=step_size, mask=GRAPHS[graph])
            before = layer.energy(NO_WEIGHT, y, x)
            after = layer.energy(NO_WEIGHT, layer.step(NO_WEIGHT, y, x), x)
            assert jnp.all(after <= before + rounding(before, y, x, ridge, dtype)), (graph, ridge, step_size)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rho=st.sampled_from([*uj.RHOS, CAUCHY]),
    form=st.sampled_from(["jacobi", "softmax"]),
    ridge=st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),
    step_size=st.floats(0.0, 1.0, exclude_min=True),
    exponent=st.floats(-5.0, 5.0),
    share=st.floats(0.0, 1.0),
    rank=st.sampled_from([None, 1, 4]),
    anchored=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_option_makes_a_step_raise_its_energy(rho, form, ridge, step_size, exponent, share, rank, anchored, seed):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        dim = None if rank is None else 4
        mask = reference.random_graph(rng, 5, share)
        layer = uj.attention(rho=rho, form=form, ridge=ridge, step_size=step_size, mask=mask, dim=dim, rank=rank)
        params = AttentionParams(None if rank is None else jnp.asarray(rng.normal(size=(4, rank))))
        y = jnp.asarray(10.0**exponent * rng.normal(size=(5, 4)))
        x = jnp.asarray(10.0**exponent * rng.normal(size=(5, 4))) if anchored else None
        stepped = layer.step(params, y, x)
        before, after = layer.energy(params, y, x), layer.energy(params, stepped, x)
        chex.assert_tree_all_finite((stepped, before, after))
        assert after <= before + 1e-12 * (1.0 + jnp.abs(before) + ridge * jnp.sum(y**2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_attention_raises_the_papers_energy_where_the_exact_step_lowers_it(dtype):
    """The counterexample to Theorem 3.1 of Yang et al. (2022): a hub and six leaves, far from the origin."""
    with jax.enable_x64(dtype == "float64"):
        leaves = np.concatenate([np.full((6, 1), 999.5), 2.0 * np.eye(6)], axis=1)
        y = jnp.asarray(np.concatenate([1000.0 * np.eye(1, 7), leaves]), dtype)
        papers, softmax = attention(ridge=1.0), attention(form="softmax")
        before = papers.energy(NO_WEIGHT, y)
        rise = papers.energy(NO_WEIGHT, softmax.step(NO_WEIGHT, y)) - before
        assert rise == pytest.approx(81.0, abs=1.0)
        assert papers.energy(NO_WEIGHT, papers.step(NO_WEIGHT, y)) < before - 1e6
        # What the softmax step does lower is the pair energy, which is the one it reports.
        assert softmax.energy(NO_WEIGHT, softmax.step(NO_WEIGHT, y)) < softmax.energy(NO_WEIGHT, y) - 1.0


@pytest.mark.usefixtures("x64")
def test_at_a_consensus_the_softmax_step_rests_though_the_papers_energy_is_not_stationary():
    y = jnp.ones((4, 3))
    papers, softmax = attention(ridge=1.0), attention(form="softmax")
    np.testing.assert_allclose(softmax.step(NO_WEIGHT, y), y, rtol=1e-15)
    np.testing.assert_allclose(jax.grad(papers.energy, 1)(NO_WEIGHT, y), y, rtol=1e-12)
