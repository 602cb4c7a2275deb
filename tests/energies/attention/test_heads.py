"""Attention with several heads."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests import reference
from tests.energies.attention.examples import GRAPHS, tokens
from tests.energies.comparing import both
from tests.marks import in_float64
from tests.reference import compiled
from unroll_jax.energies.attention.heads import HeadsParams, multihead_attention

# Heads and rank for tokens of width 4: fewer columns than the width, as many, and more.
SHAPES = {"narrow": (2, 1), "square": (2, 2), "one": (1, 4), "wide": (3, 2)}


@pytest.mark.slow
@in_float64
@pytest.mark.parametrize("shape", SHAPES)
def test_energy_and_step_equal_the_reference(shape):
    """Rhos and forms in turn; with a ridge, far from singular, and without, where it
    need not be."""
    y = tokens(0, (6, 4))
    x = tokens(1, (6, 4))
    (num_heads, rank), place = SHAPES[shape], list(SHAPES).index(shape)
    W_a = tokens(2, (num_heads, 4, rank))
    entries = []
    for i, (ridge, step_size, graph) in enumerate(
        ((0.7, 1.0, None), (0.0, 0.3, GRAPHS["random"]))
    ):
        form = ("jacobi", "softmax")[(place // 2 + i) % 2]
        rho = list(uj.RHOS)[(3 * place + 2 * i) % len(uj.RHOS)]
        numbers = {"ridge": ridge, "step_size": step_size, "block": (None, 4)[i]}
        entries.append({"rho": rho, "form": form, "mask": graph, **numbers})
    layers = [
        multihead_attention(4, num_heads=num_heads, rank=rank, **entry)
        for entry in entries
    ]

    @compiled
    def all_of(W_a, y, x):
        return [both(layer, HeadsParams(W_a), y, x) for layer in layers]

    for entry, (energy, stepped) in zip(entries, all_of(W_a, y, x), strict=True):
        system = {
            "rho": entry["rho"],
            "graph": entry["mask"],
            "ridge": entry["ridge"],
            "anchor": x,
        }
        expected = reference.heads_energy(y, W_a, **system)
        assert_allclose(energy, expected, rtol=1e-12, err_msg=str(entry))
        system |= {"form": entry["form"], "step_size": entry["step_size"]}
        expected = reference.heads_step(y, W_a, **system)
        tolerance = (
            1e-12 if entry["ridge"] > 0.0 or entry["form"] == "softmax" else 1e-9
        )
        assert_allclose(
            stepped, expected, rtol=tolerance, atol=tolerance, err_msg=str(entry)
        )
        joined = np.concatenate(list(W_a), axis=1)
        unseen = np.eye(4) - joined @ np.linalg.pinv(joined)
        # what no head sees stays
        assert_allclose(stepped @ unseen, y @ unseen, atol=1e-12)


def test_a_token_without_weight_stays_with_finite_gradients():
    """Any tokens far apart are in tests/test_gradients_conformance.py."""
    layer = multihead_attention(4, num_heads=2, rho="truncated_quadratic")
    W_a = np.float32(tokens(2, (2, 4, 2)))
    y = np.float32([[0.0] * 4, [0.1] * 4, [50.0, 80.0, -70.0, 90.0]])

    def total(W_a, y):
        stepped = layer.step(HeadsParams(W_a), y)
        return jnp.sum(tokens(3, (3, 4)).astype("float32") * stepped), stepped

    slopes, stepped = compiled(jax.grad(total, (0, 1), has_aux=True))(W_a, y)
    assert_allclose(stepped[2], y[2], rtol=1e-6)
    chex.assert_tree_all_finite(slopes)
