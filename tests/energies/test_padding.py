"""Sequences padded to a common length: `Anchor.present` says which tokens are there."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.any_rho import of_every_rho
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams

N, DIM = 7, 4
LENGTHS = (4, 7, 1)
PRESENT = np.arange(N) < np.array(LENGTHS)[:, None]
GRAPHS = {"complete": None, "band": np.abs(np.subtract.outer(np.arange(N), np.arange(N))) <= 2}


def draw(filler=np.nan):
    """Parameters, tokens and anchor; the padding holds what must not matter."""
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=(2, 3, N, DIM))
    padded = (np.where(PRESENT[..., None], a, filler).astype(np.float32) for a in (y, x))
    return AttentionParams(rng.normal(size=(DIM, 2)).astype(np.float32)), *padded


def padded_and_alone(rho, form, params, y, x):
    """Energy and step on every graph, of all sentences padded and of each by itself."""
    results = {}
    for name, mask in GRAPHS.items():
        options = {"rho": rho, "form": form, "ridge": 0.5, "dim": DIM, "rank": 2}
        layer, args = uj.attention(mask=mask, **options), (params, y, Anchor(x, jnp.asarray(PRESENT)))
        results[name] = [(layer.energy(*args), layer.step(*args))]
        for i, length in enumerate(LENGTHS):
            alone = uj.attention(mask=None if mask is None else mask[:length, :length], **options)
            args = params, y[i, :length], x[i, :length]
            results[name].append((alone.energy(*args), alone.step(*args)))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
def test_padded_sentences_equal_sentences_alone(form):
    args = draw()
    of_rhos = of_every_rho(lambda rho, *args: padded_and_alone(rho, form, *args))(*args)
    results = [(rho, jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], of_rhos)) for i, rho in enumerate(uj.RHOS)]
    if form == "softmax":  # which has sums of its own for this form
        results.append(("softmax, by name", jax.jit(lambda *args: padded_and_alone("softmax", form, *args))(*args)))
    for (rho, of_graphs), graph in itertools.product(results, GRAPHS):
        (energy, stepped), *alone = of_graphs[graph]
        for i, (expected, moved) in enumerate(alone):
            message = f"{rho}, {graph}, sentence {i}"
            np.testing.assert_allclose(energy[i], expected, rtol=1e-6, atol=1e-6, err_msg=message)
            np.testing.assert_allclose(stepped[i, : LENGTHS[i]], moved, rtol=1e-6, atol=1e-6, err_msg=message)


def test_a_mask_of_tokens_is_shared_by_the_batch_unrolled_and_mapped_over():
    params, y, _ = draw(filler=1e4)
    layer = uj.attention(form="softmax", dim=DIM, rank=2)

    @jax.jit
    def all_of(params, y, present, each):
        of_batch = lambda y, present: uj.unroll(layer, params, y, Anchor(None, present), num_layers=3)  # noqa: E731
        return of_batch(y, present), of_batch(y, each), jax.vmap(of_batch, (0, 0), (0, 1))(y, each)

    shared, *others = all_of(params, y, PRESENT[0], np.broadcast_to(PRESENT[0], (3, N)))
    for other in others:
        chex.assert_trees_all_close(shared, other, rtol=1e-5, atol=1e-5)


def test_nobody_absent_changes_nothing():
    layer = uj.attention(ridge=0.5, dim=DIM, rank=2)

    @jax.jit
    def all_of(params, y, x, everyone):
        return [(layer.energy(params, y, z), layer.step(params, y, z)) for z in (x, Anchor(x, everyone), Anchor(x))]

    expected, everyone, unsaid = all_of(*draw(filler=1.0), np.ones((3, N), bool))
    chex.assert_trees_all_close(everyone, expected, rtol=1e-6, atol=1e-6)
    chex.assert_trees_all_equal(unsaid, expected)
