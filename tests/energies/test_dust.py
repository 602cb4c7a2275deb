"""Sparse coding of sequences (DUST)."""

import jax
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
from tests.reference import compiled
from unroll_jax.descent import Anchor
from unroll_jax.energies import DustParams, dust

# arrays are float64 unless a test makes them float32
pytestmark = in_float64


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
    full, damped = (
        dust(
            DIM,
            ATOMS,
            attention_step_size=damping,
            rank=RANK,
            sparsity=0.2,
            curvature=9.0,
            form=form,
            mask=graph,
        )
        for damping in (1.0, 0.4)
    )
    fixed = dust(DIM, ATOMS, form=form, sparsity=0.2, attention_scale=0.3)
    assert jax.eval_shape(fixed.init, jax.random.key(0)).V is None
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

    @compiled
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
