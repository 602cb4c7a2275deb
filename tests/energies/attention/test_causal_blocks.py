"""Attention to predecessors in blocks of tokens."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.energies.attention.test_causal import NO_WEIGHT, tokens
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention.causal import causal_attention


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
def test_tokens_in_blocks_are_the_same_as_all_at_once(form):
    """Blocks of four do not divide six tokens, and some of those are absent."""
    there = jnp.asarray(np.arange(6) != np.array([[2], [5]]))
    y, x, W_a = tokens(0, (2, 6, 3)), tokens(1), AttentionParams(tokens(2, (3, 2)))

    def in_blocks(block, *args):
        layer = causal_attention(form=form, rho="log", dim=3, rank=2, block=block)

        def both(W_a, y, x):
            args = W_a, y, Anchor(x, there)
            energy, stepped = layer.energy(*args), layer.step(*args)
            return jnp.sum(energy) + jnp.sum(stepped**3), (energy, stepped)

        return jax.value_and_grad(both, (0, 1, 2), has_aux=True)(*args)

    expected, *others = jax.jit(lambda *args: [in_blocks(block, *args) for block in (None, 4, 1)])(W_a, y, x)
    for block, other in zip((4, 1), others, strict=True):
        chex.assert_trees_all_close(other, expected, rtol=1e-12, atol=1e-12, custom_message=f"block={block}")


@pytest.mark.slow
def test_blocks_hold_no_array_of_all_pairs_and_no_constant_is_one():
    """What the compiled gradient needs beside its inputs and outputs, and what the traced program carries along."""
    n = 2048
    y = jax.ShapeDtypeStruct((n, 4), jnp.float32)

    def compiled(layer):
        return jax.jit(jax.grad(lambda y: jnp.sum(layer.step(NO_WEIGHT, y)) + layer.energy(NO_WEIGHT, y))).lower(y)

    at_once, blocks = (compiled(causal_attention(block=b)).compile().memory_analysis() for b in (None, 64))
    assert at_once.temp_size_in_bytes > 4 * n * n
    assert blocks.temp_size_in_bytes < 4 * n * n // 4
    constants = jax.make_jaxpr(lambda y: causal_attention().step(NO_WEIGHT, y))(y).consts
    assert sum(np.size(constant) for constant in constants) < 10 * n
