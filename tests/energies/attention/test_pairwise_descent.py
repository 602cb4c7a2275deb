"""Attention lowers the energy it reports: every rho, form, graph and scale, and where the paper's claim fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
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
