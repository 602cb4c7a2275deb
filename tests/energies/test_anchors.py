"""An anchor may be smaller than the tokens: it broadcasts to them, in every layer that takes one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.descent import Anchor
from unroll_jax.energies import attention, hopfield, multihead_attention, sweep_attention

LAYERS = {
    "attention": attention(ridge=0.7),
    "attention-low-rank": attention(ridge=0.7, dim=4, rank=2),
    "attention-softmax": attention(ridge=0.7, form="softmax"),
    "hopfield": hopfield(4, num_patterns=3),
    "multihead-block": multihead_attention(4, num_heads=2, ridge=0.7),
    "multihead-scalar": multihead_attention(4, num_heads=2, ridge=0.7, majoriser="scalar"),
    "multihead-orthogonal": multihead_attention(4, num_heads=2, ridge=0.7, majoriser="orthogonal"),
    "sweep": sweep_attention(ridge=0.7),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(4,), (1, 4), (6, 4), (1, 6, 4), (2, 1, 4)])
@pytest.mark.parametrize("name", LAYERS)
def test_an_anchor_that_broadcasts_is_one_written_out(name, shape):
    layer, generator = LAYERS[name], np.random.default_rng(0)
    y, x = (jnp.asarray(generator.normal(size=size)) for size in ((2, 6, 4), shape))
    params, whole = layer.init(jax.random.key(0)), jnp.broadcast_to(x, y.shape)
    step, energy = jax.jit(layer.step), jax.jit(layer.energy)
    moved = step(params, y, x)
    assert jnp.max(jnp.abs(moved - step(params, y, 2.0 * whole))) > 0.01, "the anchor does nothing"
    np.testing.assert_allclose(moved, step(params, y, whole), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(energy(params, y, x), energy(params, y, whole), rtol=1e-12)
    there = jnp.arange(6) < 4
    padded, full = (step(params, y, Anchor(anchor, there)) for anchor in (x, whole))
    np.testing.assert_allclose(padded, full, rtol=1e-12, atol=1e-12)
