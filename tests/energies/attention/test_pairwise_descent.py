"""Attention lowers the energy it reports: every rho, form, graph and scale, and where the paper's claim fails."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unroll_jax as uj
from tests import reference
from tests.energies.any_rho import of_every_rho
from tests.energies.attention.examples import CAUCHY, GRAPHS, tokens
from unroll_jax.energies import AttentionParams

NO_WEIGHT = AttentionParams(None)
POWER = uj.Rho(value=lambda z: (z + 0.1) ** 0.3)


def rounding(energy, y, x, ridge, dtype):
    """How much the energy may seem to rise from round-off: of its value, and of distances at this spread."""
    spread = np.max(np.sum((y - y.mean(-2, keepdims=True)) ** 2, -1), -1)
    pull = ridge * np.sum((y - x) ** 2, axis=(-2, -1))
    pairs = y.shape[-2] ** 2
    return 20.0 * jnp.finfo(dtype).eps * (np.abs(energy) + pull + pairs * (1.0 + np.minimum(spread, 1.0 / 1e-3)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
def test_no_step_raises_its_energy(form, dtype):
    """200 points for each rho and graph, over six orders of magnitude of scale, most of them off centre."""
    rhos, options = [*uj.RHOS, CAUCHY, POWER], [(0.0, 1.0), (0.1, 1.0), (0.0, 0.3), (100.0, 0.01)]
    start = (form == "softmax") + 2 * (dtype == "float64")
    table = [(graph, *options[(start + place) % len(options)]) for place, graph in enumerate(GRAPHS)]
    scales = np.repeat(np.logspace(-3, 3, 20), 10)[:, None, None]
    y = (scales * (tokens(0, (200, 6, 3)) + 3.0 * tokens(1, (200, 1, 3)))).astype(dtype)
    x = (scales * tokens(2, (200, 6, 3))).astype(dtype)

    def energies(rho, y, x, table):
        pairs = []
        for graph, ridge, step_size in table:
            layer = uj.attention(rho=rho, form=form, ridge=ridge, step_size=step_size, mask=GRAPHS[graph])
            pairs.append(layer.energy(NO_WEIGHT, jnp.stack([y, layer.step(NO_WEIGHT, y, x)]), x))
        return jnp.stack(pairs)

    with jax.enable_x64(dtype == "float64"):
        by_name = jax.jit(lambda y, x: energies("softmax", y, x, table[::3]))(y, x)  # which has sums of its own
        others = of_every_rho(lambda rho, y, x: energies(rho, y, x, table), rhos)(y, x)
        assert by_name.dtype == others.dtype == dtype
    for rho, of_rho in (("softmax, by name", by_name), *zip(rhos, others, strict=True)):
        for entry, (before, after) in zip(
            table[::3] if of_rho is by_name else table, np.asarray(of_rho, np.float64), strict=True
        ):
            assert np.all(after <= before + rounding(before, y, x, entry[1], dtype)), (rho, entry)


def any_options(seed):
    """Options drawn at random, the graph among them, and whether there is an anchor."""
    rng = np.random.default_rng(seed)
    rank = [None, 1, 4][rng.integers(3)]
    return {
        "rho": [*uj.RHOS, CAUCHY][rng.integers(len(uj.RHOS) + 1)],
        "form": ["jacobi", "softmax"][rng.integers(2)],
        "ridge": [0.0, 10.0 ** rng.uniform(-6.0, 6.0)][rng.integers(2)],
        "step_size": rng.uniform(1e-6, 1.0),
        "mask": reference.random_graph(rng, 5, rng.uniform()),
        "dim": None if rank is None else 4,
        "rank": rank,
    }, rng.random() < 0.5


@functools.cache
def program(seed):
    """State, and energies before and after, of a layer with options of its own."""
    options, anchored = any_options(seed)
    layer = uj.attention(**options)

    def states_and_energies(W_a, y, x):
        params = AttentionParams(None if options["rank"] is None else W_a[:, : options["rank"]])
        anchor = x if anchored else None
        stepped = layer.step(params, y, anchor)
        return stepped, layer.energy(params, y, anchor), layer.energy(params, stepped, anchor)

    return jax.jit(states_and_energies)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(number=st.integers(0, 23), exponent=st.floats(-5.0, 5.0), seed=st.integers(0, 2**32 - 1))
def test_no_option_makes_a_step_raise_its_energy(number, exponent, seed):
    rng = np.random.default_rng(seed)
    W_a, y, x = rng.normal(size=(4, 4)), *(10.0**exponent * rng.normal(size=(2, 5, 4)))
    with jax.enable_x64(True):
        stepped, before, after = (np.asarray(array) for array in program(number)(W_a, y, x))
    chex.assert_tree_all_finite((stepped, before, after))
    ridge = any_options(number)[0]["ridge"]
    assert after <= before + 1e-12 * (1.0 + np.abs(before) + ridge * np.sum(y**2)), any_options(number)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_attention_raises_the_papers_energy_where_the_exact_step_lowers_it(dtype):
    """The counterexample to Theorem 3.1 of Yang et al. (2022): a hub and six leaves, far from the origin."""
    leaves = np.concatenate([np.full((6, 1), 999.5), 2.0 * np.eye(6)], axis=1)
    y = np.concatenate([1000.0 * np.eye(1, 7), leaves]).astype(dtype)
    papers, softmax = uj.attention(ridge=1.0), uj.attention(form="softmax")

    @jax.jit
    def energies(y):
        exact, attended = papers.step(NO_WEIGHT, y), softmax.step(NO_WEIGHT, y)
        of_papers = [papers.energy(NO_WEIGHT, state) for state in (y, exact, attended)]
        return of_papers, [softmax.energy(NO_WEIGHT, state) for state in (y, attended)]

    with jax.enable_x64(dtype == "float64"):
        (before, exact, attended), (pairs_before, pairs_after) = jax.tree.map(np.asarray, energies(y))
    assert attended - before == pytest.approx(81.0, abs=1.0)
    assert exact < before - 1e6
    # What the softmax step does lower is the pair energy, which is the one it reports.
    assert pairs_after < pairs_before - 1.0


@pytest.mark.usefixtures("x64")
def test_at_a_consensus_the_softmax_step_rests_though_the_papers_energy_is_not_stationary():
    y, papers, softmax = np.ones((4, 3)), uj.attention(ridge=1.0), uj.attention(form="softmax")
    stepped, slope = jax.jit(lambda y: (softmax.step(NO_WEIGHT, y), jax.grad(papers.energy, 1)(NO_WEIGHT, y)))(y)
    np.testing.assert_allclose(stepped, y, rtol=1e-15)
    np.testing.assert_allclose(slope, y, rtol=1e-12)
