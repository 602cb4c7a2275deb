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
from unroll_jax.energies.tokens import check_tokens

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


def test_absent_tokens_stay_where_they_are():
    params, y, x = draw(filler=1e4)
    layer = uj.attention(form="softmax", ridge=0.5, dim=DIM, rank=2)
    stepped = np.asarray(jax.jit(layer.step)(params, y, Anchor(x, PRESENT)))
    np.testing.assert_array_equal(stepped[~PRESENT], y[~PRESENT])


def test_what_padding_holds_reaches_no_gradient():
    """Neither of parameters nor of tokens, not even where it is NaN."""
    layer = uj.attention(form="softmax", ridge=0.5, dim=DIM, rank=2)

    def loss(params, y, x):
        anchor = Anchor(x, jnp.asarray(PRESENT))
        stepped = jnp.where(PRESENT[..., None], layer.step(params, y, anchor), 0.0)
        return jnp.sum(layer.energy(params, y, anchor)) + jnp.sum(stepped**2)

    differentiate = jax.jit(jax.grad(loss, (0, 1, 2)))
    gradients = [differentiate(*draw(filler)) for filler in (np.nan, 0.0)]
    chex.assert_tree_all_finite(gradients)
    chex.assert_trees_all_close(*gradients, rtol=1e-6)
    assert not np.any(np.asarray(gradients[0][1])[~PRESENT])


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


def ones(*shape, dtype=np.float32):
    return jnp.asarray(np.ones(shape), dtype)


BAD_ANCHORS = [
    (Anchor(None, ones(3, N)), TypeError, "x.present must be boolean, got float32"),
    (
        Anchor(None, ones(2, N, dtype=bool)),
        ValueError,
        r"x.present must broadcast to y's tokens \(3, 7\), got .*\(2, 7",
    ),
    (Anchor(None, ones(3, N, 1, dtype=bool)), ValueError, r"x.present must broadcast .* got shape \(3, 7, 1\)"),
    (Anchor(ones(2, DIM)), ValueError, r"x must broadcast to y's shape \(3, 7, 4\), got shape \(2, 4\)"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("anchor", "error", "message"), BAD_ANCHORS, ids=[row[2] for row in BAD_ANCHORS])
def test_a_bad_anchor_is_named(anchor, error, message):
    layer, y = uj.attention(), ones(3, N, DIM)
    for function in (layer.energy, layer.step, jax.jit(layer.step)):
        with pytest.raises(error, match=message):
            function(AttentionParams(None), y, anchor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_known_value_that_is_not_finite_is_named_with_its_place(bad, dtype):
    def tokens(*place):
        values = np.ones((2, N, DIM))
        values[place] = bad
        return jnp.asarray(values, dtype)

    params, good, wrong, padded = (
        AttentionParams(None),
        ones(2, N, DIM, dtype=dtype),
        tokens(1, 3, 2),
        tokens(..., slice(4, N), 0),
    )
    with pytest.raises(ValueError, match=rf"y must be finite, but y\[1, 3, 2\] is {bad}"):
        uj.attention().step(params, wrong)
    with pytest.raises(ValueError, match=rf"x must be finite, but x\[1, 3, 2\] is {bad}"):
        uj.attention().energy(params, good, wrong)
    with pytest.raises(ValueError, match=rf"y must be finite, but y\[0, 4, 0\] is {bad}"):
        check_tokens(padded, Anchor(None, jnp.asarray(np.arange(N) < 5)))
    check_tokens(padded, Anchor(None, jnp.asarray(np.arange(N) < 4)))
