"""Sequences padded to a common length: `Anchor.present` says which tokens are there."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.descent import Anchor, check_tokens
from unroll_jax.energies import AttentionParams

N, DIM = 7, 4
LENGTHS = (4, 7, 1)
PRESENT = np.arange(N) < np.array(LENGTHS)[:, None]
GRAPHS = {"complete": None, "band": np.abs(np.subtract.outer(np.arange(N), np.arange(N))) <= 2}


def draw(filler=np.nan):
    """Parameters, tokens and anchor; the padding holds what must not matter."""
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=(2, 3, N, DIM))
    padded = (jnp.asarray(np.where(PRESENT[..., None], a, filler), jnp.float32) for a in (y, x))
    return AttentionParams(jnp.asarray(rng.normal(size=(DIM, 2)), jnp.float32)), *padded


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("rho", list(uj.RHOS))
def test_padded_sentences_equal_sentences_alone(rho, form, graph):
    params, y, x = draw()
    anchor = Anchor(x, jnp.asarray(PRESENT))
    mask = GRAPHS[graph]
    layer = uj.attention(rho=rho, form=form, ridge=0.5, mask=mask, dim=DIM, rank=2)
    energy, stepped = jax.jit(lambda *a: (layer.energy(*a), layer.step(*a)))(params, y, anchor)
    for i, length in enumerate(LENGTHS):
        alone = (
            layer
            if mask is None
            else uj.attention(rho=rho, form=form, ridge=0.5, mask=mask[:length, :length], dim=DIM, rank=2)
        )
        args = params, y[i, :length], x[i, :length]
        chex.assert_trees_all_close(energy[i], alone.energy(*args), rtol=1e-6, atol=1e-6)
        chex.assert_trees_all_close(stepped[i, :length], alone.step(*args), rtol=1e-6, atol=1e-6)


def test_absent_tokens_stay_where_they_are():
    params, y, x = draw(filler=1e4)
    layer = uj.attention(form="softmax", ridge=0.5, dim=DIM, rank=2)
    stepped = layer.step(params, y, Anchor(x, jnp.asarray(PRESENT)))
    chex.assert_trees_all_equal(stepped[~PRESENT], y[~PRESENT])


def test_what_padding_holds_reaches_no_gradient():
    """Neither of parameters nor of tokens, not even where it is NaN."""
    gradients = []
    layer = uj.attention(form="softmax", ridge=0.5, dim=DIM, rank=2)
    for filler in (np.nan, 0.0):
        params, y, x = draw(filler)

        def loss(params, y, x):
            anchor = Anchor(x, jnp.asarray(PRESENT))
            stepped = jnp.where(PRESENT[..., None], layer.step(params, y, anchor), 0.0)
            return jnp.sum(layer.energy(params, y, anchor)) + jnp.sum(stepped**2)

        gradients.append(jax.jit(jax.grad(loss, (0, 1, 2)))(params, y, x))
    chex.assert_tree_all_finite(gradients)
    chex.assert_trees_all_close(*gradients, rtol=1e-6)
    assert not np.any(gradients[0][1][~PRESENT])


def test_a_mask_of_tokens_is_shared_by_the_batch_unrolled_and_mapped_over():
    params, y, _ = draw(filler=1e4)
    layer = uj.attention(form="softmax", dim=DIM, rank=2)
    shared = Anchor(None, jnp.asarray(PRESENT[0]))
    per_example = Anchor(None, jnp.broadcast_to(PRESENT[0], (3, N)))
    unrolled = [uj.unroll(layer, params, y, anchor, num_layers=3) for anchor in (shared, per_example)]
    mapped = jax.vmap(lambda y, anchor: uj.unroll(layer, params, y, anchor, num_layers=3), (0, 0), (0, 1))(
        y, per_example
    )
    for other in (unrolled[1], mapped):
        chex.assert_trees_all_close(unrolled[0], other, rtol=1e-5, atol=1e-5)


def test_nobody_absent_changes_nothing():
    params, y, x = draw(filler=1.0)
    layer = uj.attention(ridge=0.5, dim=DIM, rank=2)
    everyone = Anchor(x, jnp.ones((3, N), bool))
    for function in (layer.energy, layer.step):
        expected = function(params, y, x)
        chex.assert_trees_all_close(function(params, y, everyone), expected, rtol=1e-6, atol=1e-6)
        chex.assert_trees_all_equal(function(params, y, Anchor(x)), expected)


BAD_ANCHORS = [
    (Anchor(None, jnp.ones((3, N))), TypeError, "x.present must be boolean, got float32"),
    (
        Anchor(None, jnp.ones((2, N), bool)),
        ValueError,
        r"x.present must broadcast to y's tokens \(3, 7\), got .*\(2, 7",
    ),
    (Anchor(None, jnp.ones((3, N, 1), bool)), ValueError, r"x.present must broadcast .* got shape \(3, 7, 1\)"),
    (Anchor(jnp.ones((2, DIM))), ValueError, r"x must broadcast to y's shape \(3, 7, 4\), got shape \(2, 4\)"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("anchor", "error", "message"), BAD_ANCHORS, ids=[row[2] for row in BAD_ANCHORS])
def test_a_bad_anchor_is_named(anchor, error, message):
    layer, y = uj.attention(), jnp.ones((3, N, DIM))
    for function in (layer.energy, layer.step, jax.jit(layer.step)):
        with pytest.raises(error, match=message):
            function(AttentionParams(None), y, anchor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_known_value_that_is_not_finite_is_named_with_its_place(bad, dtype):
    y = jnp.ones((2, N, DIM), dtype)
    with pytest.raises(ValueError, match=rf"y must be finite, but y\[1, 3, 2\] is {bad}"):
        uj.attention().step(AttentionParams(None), y.at[1, 3, 2].set(bad))
    with pytest.raises(ValueError, match=rf"x must be finite, but x\[1, 3, 2\] is {bad}"):
        uj.attention().energy(AttentionParams(None), y, y.at[1, 3, 2].set(bad))
    with pytest.raises(ValueError, match=rf"y must be finite, but y\[0, 4, 0\] is {bad}"):
        check_tokens(y.at[:, 4:].set(bad), Anchor(None, jnp.arange(N) < 5))
    check_tokens(y.at[:, 4:].set(bad), Anchor(None, jnp.arange(N) < 4))
