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
from tests.energies.comparing import Case, assert_equal
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
    need not be. What no head sees stays, in the reference."""
    y = tokens(0, (6, 4))
    x = tokens(1, (6, 4))
    num_heads, rank = SHAPES[shape]
    place = list(SHAPES).index(shape)
    W_a = tokens(2, (num_heads, 4, rank))
    for i, (ridge, step_size, graph, block) in enumerate(
        ((0.7, 1.0, None, None), (0.0, 0.3, GRAPHS["random"], 4))
    ):
        form = ("jacobi", "softmax")[(place // 2 + i) % 2]
        shared = {"rho": list(uj.RHOS)[(3 * place + 2 * i) % len(uj.RHOS)]}
        shared["ridge"] = ridge
        of_step = {"form": form, "step_size": step_size}
        layer = multihead_attention(
            4,
            num_heads=num_heads,
            rank=rank,
            mask=graph,
            block=block,
            **shared,
            **of_step,
        )
        system = {**shared, "graph": graph, "anchor": x}
        energy = reference.heads_energy(y, W_a, **system)
        step = reference.heads_step(y, W_a, **system, **of_step)
        case = Case(layer, HeadsParams(W_a), y, x, energy, step)
        near = 1e-12 if ridge > 0.0 or form == "softmax" else 1e-9
        assert_equal({f"{shared}, {of_step}": case}, rtol=1e-12, atol=near)


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
