"""The whole transformer layer, and the layer of the unrolled transformer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests import reference
from tests.marks import in_float64, nightly
from tests.reference import compiled
from unroll_jax.energies import (
    TransformerParams,
    UnrolledLayerParams,
    attention,
    examples,
    unrolled_layer,
)
from unroll_jax.energies.attention.pairwise import AttentionParams
from unroll_jax.energies.transformer import EXAMPLE

N, DIM = 5, 3


@in_float64
def test_the_default_layer_is_equation_20():
    """prox_phi([softmax_beta(Y W_a W_a^T Y^T) Y] W_f^s + a B), the Y that the
    paper's print drops included."""
    rng = np.random.default_rng(1)
    y, x, W_a, W_f = (
        rng.uniform(size=(N, DIM)),
        *(rng.normal(size=s) for s in ((N, DIM), (DIM, 2), (DIM, DIM))),
    )
    mixing = 0.5 * np.eye(DIM) - 0.5 * (W_f + W_f.T) / 2
    expected = np.maximum(reference.softmax_attention(y, W_a) @ mixing + 0.5 * x, 0.0)
    actual = compiled(uj.transformer(DIM, rank=2).step)(
        TransformerParams(W_a, W_f), y, x
    )
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@in_float64
def test_the_unrolled_layer_with_a_mask_equals_the_reference():
    """Without one, in batches, it is in tests/models/test_every_model.py."""
    rng = np.random.default_rng(8)
    y, V, W, U = (
        rng.normal(size=shape) for shape in ((N, DIM), (2, DIM), (3, 3), (3, 3))
    )
    params = UnrolledLayerParams(V, W, U)
    present = np.arange(N) < 3
    padded = np.where(present[:, None], y, np.nan)

    @compiled
    def run(params, y, padded, present):
        def total(params, y, mask):
            stepped = unrolled_layer(params, y, mask)
            return jnp.sum(stepped[:3]), stepped

        slope = jax.grad(total, has_aux=True)
        return slope(params, padded, present), slope(params, y[:3], None)

    (gradient, stepped), (expected, alone) = run(params, y, padded, present)
    assert_allclose(stepped[:3], alone, rtol=1e-12, atol=1e-14)
    by_hand = reference.unrolled_layer(y[:3], V, W, U)
    assert_allclose(alone, by_hand, rtol=1e-12, atol=1e-14)
    assert_array_equal(stepped[3:], padded[3:])
    chex.assert_trees_all_close(gradient, expected, rtol=1e-10, atol=1e-12)


@nightly
def test_the_condition_that_the_table_checks_is_the_stated_one():
    entry = uj.DESCENTS["transformer"]
    a = EXAMPLE["step_size"]
    pair = attention(form="softmax", dim=examples.DIM)

    @compiled
    @jax.vmap
    def measure(key):
        layer, y, x = entry.example(key, ())
        params = layer.init(jax.random.fold_in(key, 0))
        W_a = AttentionParams(params.W_a)
        symmetric = (params.W_f + params.W_f.T) / 2
        left = (pair.step(W_a, y) - y) @ (
            (1.0 - a) * jnp.eye(examples.DIM) - a * symmetric
        )
        error = jnp.linalg.norm(a * jax.grad(pair.energy, 1)(W_a, y) + left)
        smoothness = (
            examples.TOKENS * jnp.sum(W_a.W_a**2) + jnp.linalg.norm(params.W_f) + 1.0
        )
        return (
            entry.condition(params, y, x),
            error / jnp.linalg.norm(layer.step(params, y, x) - y),
            a * smoothness,
        )

    held, share, length = measure(jax.random.split(jax.random.key(2), 1000))
    assert np.sum((share > 0.51) & (share < 0.99) & (length <= 0.99)) > 10
    clear = (np.abs(share - 0.5) > 1e-3) & (np.abs(length - 1.0) > 1e-3)
    assert_array_equal(held[clear], ((share <= 0.5) & (length <= 1.0))[clear])
