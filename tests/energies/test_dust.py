"""Sparse coding of sequences (DUST)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests import reference
from tests.energies.comparing import Case, assert_equal
from tests.energies.dust_reference import (
    ATOMS,
    DIM,
    RANK,
    N,
    coding_energy,
    coding_step,
    draw,
    mixing_step,
)
from tests.marks import in_float64
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, DustParams, attention, dust

# arrays are float64 unless a test makes them float32
pytestmark = in_float64
DRAWS = 5_000


@pytest.mark.parametrize("form", ["softmax", "jacobi", "plain"])
def test_dust_equals_the_reference(form):
    """Full and damped steps with a V, a scale in its place, and codes whose |V h|
    are equal."""
    H, D, V, x = draw(1)
    alike = H / np.linalg.norm(H @ V.T, axis=1, keepdims=True)
    scaled = 0.3 * np.eye(ATOMS)
    graph = (
        None
        if form == "plain"
        else reference.random_graph(np.random.default_rng(2), N, 0.7)
    )
    options = {
        "rank": RANK,
        "sparsity": 0.2,
        "curvature": 9.0,
        "form": form,
        "mask": graph,
    }
    full, damped = (
        dust(DIM, ATOMS, attention_step_size=damping, **options)
        for damping in (1.0, 0.4)
    )
    fixed = dust(DIM, ATOMS, form=form, sparsity=0.2, attention_scale=0.3)
    assert fixed.init(jax.random.key(0)).V is None
    cases = {}
    for name, layer, codes, weight, damping, mask, c in (
        ("full", full, H, V, 1.0, graph, 9.0),
        ("damped", damped, H, V, 0.4, graph, 9.0),
        ("scale", fixed, H, scaled, 1.0, None, None),
        ("alike", full, alike, V, 1.0, graph, 9.0),
    ):
        energy = reference.pair_energy(codes, W_a=weight.T, graph=mask) + coding_energy(
            codes, D, x, 0.2
        )
        mixed = mixing_step(codes, weight, form, damping=damping, graph=mask)
        params = DustParams(D, None if name == "scale" else V)
        cases[name] = Case(
            layer, params, codes, x, energy, coding_step(mixed, D, x, 0.2, c)
        )
    assert_equal(cases, rtol=1e-11)
    # the published softmax is the exact one among codes of one length
    if form == "plain":
        assert_allclose(mixed, mixing_step(alike, V, "softmax"), rtol=1e-12)


def test_without_self_loops_tokens_attend_only_to_others():
    H, D, V, x = draw(19)
    layer = dust(
        DIM,
        ATOMS,
        rank=RANK,
        form="plain",
        self_loops=False,
        sparsity=0.2,
        curvature=9.0,
    )

    @jax.jit
    def step(params, H, x, there):
        return layer.step(params, H, Anchor(x, there))

    for count in (N, 3, 1):
        stepped = step(DustParams(D, V), H, x, np.arange(N) < count)
        mixed = (
            mixing_step(H[:count], V, "plain", self_loops=False) if count > 1 else H[:1]
        )
        assert_allclose(
            stepped[:count],
            coding_step(mixed, D, x[:count], 0.2, 9.0),
            rtol=1e-11,
            atol=1e-13,
        )
        assert_array_equal(stepped[count:], H[count:])


def test_the_energy_rises_only_where_the_condition_breaks():
    """Random layers and codes of the softmax form, whose curvature is 2 L; some do
    rise."""
    H, D, V, x = draw(10, (DRAWS,))
    rng = np.random.default_rng(11)
    D, V = (a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None] for a in (D, V))
    V = V * 10.0 ** rng.uniform(-2, 0, size=(DRAWS, 1, 1))
    x = x * 10.0 ** rng.uniform(0, 2, size=(DRAWS, 1, 1))
    smoothness = 1.0 + N * np.linalg.norm(V, 2, axis=(1, 2)).max() ** 2
    curvature = 2.0 * smoothness
    pair = attention(form="softmax", dim=ATOMS, rank=RANK)
    layer = dust(
        DIM, ATOMS, rank=RANK, form="softmax", sparsity=0.05, curvature=curvature
    )

    @jax.jit
    @jax.vmap
    def measure(H, D, V, x):
        params = DustParams(D, V)
        W_a = AttentionParams(V.T)
        mixed = pair.step(W_a, H)
        stepped = layer.step(params, H, x)
        left = jax.grad(pair.energy, 1)(W_a, H) / curvature + (mixed - H) @ (
            jnp.eye(ATOMS) - D @ D.T / curvature
        )
        room = (1.0 - 0.5 * smoothness / curvature) * jnp.linalg.norm(stepped - H)
        return (
            layer.energy(params, H, x),
            layer.energy(params, stepped, x),
            jnp.linalg.norm(left) > room,
        )

    before, after, broken = map(
        np.asarray, measure(3.0 * rng.normal(size=(DRAWS, 1, ATOMS)) + H, D, V, x)
    )
    assert np.all((after <= before + 1e-12 * (1.0 + np.abs(before)))[~broken])
    assert np.sum(~broken) > DRAWS // 50  # the condition is not empty
    assert (
        np.sum((after > before + 1e-3 * (1.0 + np.abs(before))) & broken) > DRAWS // 500
    )
