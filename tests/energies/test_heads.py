"""Attention with several heads, and every choice of its majoriser."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.heads import MAJORISERS, HeadsParams, multihead_attention, orthonormal_heads

GRAPH = reference.random_graph(np.random.default_rng(7), 6)
# Heads and rank for tokens of width 4: fewer columns than the width, as many, and more.
SHAPES = {"narrow": (2, 1), "square": (2, 2), "one": (1, 4), "wide": (3, 2)}
CHOICES = [(m, s) for m, s in itertools.product(MAJORISERS, SHAPES) if (m, s) != ("orthogonal", "wide")]
every_choice = pytest.mark.parametrize(("majoriser", "shape"), CHOICES)
every_majoriser = pytest.mark.parametrize("majoriser", MAJORISERS)
every_form = pytest.mark.parametrize("form", ["jacobi", "softmax"])
every_rho = pytest.mark.parametrize("rho", list(uj.RHOS))


def tokens(seed, shape=(6, 4), scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def weights(shape, majoriser, seed=2):
    """Raw heads, and those that the energy is taken with: Gram-Schmidt's, written out, for orthogonal ones."""
    num_heads, rank = SHAPES[shape]
    raw = tokens(seed, (num_heads, 4, rank))
    if majoriser != "orthogonal":
        return raw, raw
    columns = []
    for column in np.concatenate(list(raw), axis=1).T:
        rest = column - sum((column @ other) * other for other in columns)
        columns.append(rest / np.linalg.norm(rest))
    return raw, np.stack(np.split(np.stack(columns, axis=1), num_heads, axis=1))


def build(majoriser, shape, **options):
    num_heads, rank = SHAPES[shape]
    return compiled(multihead_attention(4, num_heads=num_heads, rank=rank, majoriser=majoriser, **options))


def compiled(layer):
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


@pytest.mark.usefixtures("x64")
@every_choice
@every_form
def test_energy_and_step_equal_the_reference(majoriser, shape, form):
    """Each case its rho, in turn; those with a ridge are far from singular, the others need not be."""
    y, x = tokens(0), tokens(1)
    raw, W_a = weights(shape, majoriser)
    joined, place = np.concatenate(list(W_a), axis=1), 2 * CHOICES.index((majoriser, shape)) + (form == "softmax")
    settings = ((0.7, 1.0, None), (0.0, 0.3, GRAPH))
    for ridge, step_size, graph in settings if majoriser == "block" else settings[place // 2 % 2 :][:1]:
        rho = list(uj.RHOS)[(place + (ridge > 0.0)) % len(uj.RHOS)]
        layer = build(majoriser, shape, rho=rho, form=form, ridge=ridge, step_size=step_size, mask=graph)
        both = jax.jit(lambda *args, layer=layer: (layer.energy(*args), layer.step(*args)))
        energy, stepped = both(HeadsParams(jnp.asarray(raw)), jnp.asarray(y), jnp.asarray(x))
        system = {"rho": rho, "graph": graph, "ridge": ridge, "anchor": x}
        np.testing.assert_allclose(energy, reference.heads_energy(y, W_a, **system), rtol=1e-12)
        expected = reference.heads_step(y, W_a, majoriser=majoriser, form=form, step_size=step_size, **system)
        tolerance = 1e-12 if ridge > 0.0 or form == "softmax" or majoriser != "block" else 1e-9
        np.testing.assert_allclose(stepped, expected, rtol=tolerance, atol=tolerance)
        unseen = np.eye(4) - joined @ np.linalg.pinv(joined)
        np.testing.assert_allclose(stepped @ unseen, y @ unseen, atol=1e-12)  # what no head sees stays


@pytest.mark.usefixtures("x64")
@every_choice
def test_gradients_equal_finite_differences_of_the_reference(majoriser, shape):
    raw, _ = weights(shape, majoriser)
    points = {"W_a": raw, "y": tokens(0), "x": tokens(1)}
    weight, options = tokens(4), {"rho": "student", "ridge": 0.7}
    layer = build(majoriser, shape, **options)

    def ours(W_a, y, x):
        params = HeadsParams(W_a)
        return layer.energy(params, y, x) + jnp.sum(weight * layer.step(params, y, x))

    def expected(W_a, y, x):
        if majoriser == "orthogonal":
            joined, _ = np.linalg.qr(np.concatenate(list(W_a), axis=1))
            W_a = np.stack(np.split(joined, len(W_a), axis=1))
        stepped = reference.heads_step(y, W_a, majoriser=majoriser, anchor=x, **options)
        return reference.heads_energy(y, W_a, anchor=x, **options) + np.sum(weight * stepped)

    gradients = jax.jit(jax.grad(ours, (0, 1, 2)))(*points.values())
    for place, (name, point) in enumerate(points.items()):
        direction = tokens(5, point.shape)
        along = lambda p, name=name: expected(**{**points, name: p})  # noqa: E731
        by_differences = reference.directional_derivative(along, point, direction)
        np.testing.assert_allclose(np.sum(gradients[place] * direction), by_differences, rtol=1e-8, atol=1e-9)


def rises(layer, dtype, batch=()):
    """How far 200 steps over six orders of magnitude raise the energy, in units of round-off."""
    count = 200
    scales = np.logspace(-3, 3, count).reshape(count, 1, 1, *(1 for _ in batch))

    def one(key, scale):
        key_init, *keys = jax.random.split(key, 3)
        y, x = (scale * jax.random.normal(k, (*batch, 6, 4), dtype) for k in keys)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), layer.init(key_init))
        states = jnp.stack([y, layer.step(params, y, x)])
        energies, pullback = jax.vjp(lambda states: jax.vmap(lambda y: layer.energy(params, y, x))(states), states)
        (gradients,) = pullback(jnp.ones_like(energies))
        # Round-off of the tokens is of the energies what their gradients make of it.
        size = jnp.maximum(jnp.max(jnp.abs(states), axis=(0, -2, -1)), jnp.max(jnp.abs(x), axis=(-2, -1)))
        slack = jnp.abs(energies[0]) + size * jnp.sum(jnp.abs(gradients), axis=(0, -2, -1))
        before, after = energies
        assert before.shape == batch
        return (after - before) / (jnp.finfo(dtype).eps * slack + jnp.finfo(dtype).tiny), after < before

    keys = jax.random.split(jax.random.key(3, impl="rbg"), count)
    return jax.jit(jax.vmap(one))(keys, jnp.asarray(scales.reshape(count), dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("majoriser", "shape"), [(m, s) for m, s in CHOICES if m != "orthogonal"])
def test_no_step_raises_the_sum_of_the_heads_energies(majoriser, shape, dtype):
    """200 draws each of weights, tokens and anchors; other options and batch ranks go round over the cases."""
    place = CHOICES.index((majoriser, shape)) + 2 * (dtype == "float64")
    batch = [(), (2,), (2, 1)][place % 3]
    options = {
        "rho": list(uj.RHOS)[place % len(uj.RHOS)],
        "form": ("jacobi", "softmax")[place % 2],
        "ridge": (0.0, 0.1, 10.0)[place % 3],
        "step_size": (1.0, 0.3)[place // 2 % 2],
        "mask": (None, GRAPH)[place // 3 % 2],
    }
    with jax.enable_x64(dtype == "float64"):
        rise, falls = rises(build(majoriser, shape, **options), dtype, batch)
        assert jnp.all(rise <= 32.0), options
        assert jnp.mean(falls) > 0.3, options


@every_rho
def test_no_step_of_a_block_raises_the_energy_for_any_rho(rho):
    """More columns than the tokens are wide and no ridge, where its systems may be singular."""
    rise, falls = rises(build("block", "wide", rho=rho), "float32")
    assert jnp.all(rise <= 32.0)
    assert jnp.mean(falls) > 0.3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", ["narrow", "square", "one"])
def test_no_step_of_orthogonal_heads_raises_the_energy(shape, dtype):
    """Weights drawn once: the decomposition within is not run in batches."""
    with jax.enable_x64(dtype == "float64"):
        params = HeadsParams(jnp.asarray(weights(shape, "orthogonal")[0], dtype))
        scales = np.logspace(-3, 3, 200)[:, None, None]
        y, x = (jnp.asarray(scales * tokens(seed, (200, 6, 4)), dtype) for seed in (0, 1))
        for rho, ridge, form in (("softmax", 0.0, "softmax"), ("student", 0.1, "jacobi")):
            layer = build("orthogonal", shape, rho=rho, ridge=ridge, form=form)
            before, gradient = jax.jit(jax.vmap(jax.value_and_grad(layer.energy, 1), (None, 0, 0)))(params, y, x)
            after = jax.jit(layer.energy)(params, jax.jit(layer.step)(params, y, x), x)
            size = jnp.maximum(jnp.max(jnp.abs(y), (-2, -1)), jnp.max(jnp.abs(x), (-2, -1)))
            slack = jnp.abs(before) + size * jnp.sum(jnp.abs(gradient), axis=(-2, -1))
            assert jnp.all(after <= before + 100.0 * jnp.finfo(dtype).eps * slack)
            assert jnp.mean(after < before) > 0.3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", ["narrow", "square", "one"])
def test_orthogonal_heads_in_softmax_form_are_standard_multi_head_attention(shape):
    """W_h as query, key and value weights, W_h^T as output weights; the fused primitive works in float32."""
    raw, W_a = weights(shape, "orthogonal")
    y = jnp.asarray(tokens(0))
    stepped = build("orthogonal", shape, form="softmax").step(HeadsParams(jnp.asarray(raw)), y)
    z = jnp.einsum("nd,hdk->nhk", y, W_a)
    bias = -0.5 * jnp.sum(z**2, axis=-1).T[:, None, :]
    unseen = np.eye(4) - np.einsum("hdk,hek->de", W_a, W_a)
    fused = jax.nn.dot_product_attention(z, z, z, bias=bias, scale=1.0)
    written = jnp.stack([jax.nn.softmax(z[:, h] @ z[:, h].T + bias[h]) @ z[:, h] for h in range(len(W_a))], axis=1)
    for attended, tolerance in ((fused, 1e-5), (written, 1e-12)):
        expected = jnp.einsum("nhk,hdk->nd", attended, W_a) + y @ unseen
        np.testing.assert_allclose(stepped, expected, rtol=tolerance, atol=tolerance)
    if shape != "narrow":
        np.testing.assert_allclose(unseen, 0.0, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", ["narrow", "square", "one"])
def test_orthogonal_heads_step_as_the_block_majoriser_does_on_them(shape):
    raw, W_a = weights(shape, "orthogonal")
    y, x = jnp.asarray(tokens(0)), jnp.asarray(tokens(1))
    orthogonal, block = (build(m, shape, ridge=0.7) for m in ("orthogonal", "block"))
    params = HeadsParams(jnp.asarray(raw)), HeadsParams(jnp.asarray(W_a))
    np.testing.assert_allclose(orthogonal.step(params[0], y, x), block.step(params[1], y, x), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(orthogonal.energy(params[0], y, x), block.energy(params[1], y, x), rtol=1e-12)


@pytest.mark.usefixtures("x64")
@every_form
@pytest.mark.parametrize("rank", [2, 4])
def test_one_head_has_the_energy_of_attention_and_moves_what_it_sees_alike(form, rank):
    y, x, W_a = (jnp.asarray(v) for v in (tokens(0), tokens(1), tokens(2, (4, rank))))
    options = {"form": form, "ridge": 0.7, "step_size": 0.6, "rho": "log"}
    one = compiled(multihead_attention(4, num_heads=1, rank=rank, **options))
    single = uj.attention(dim=4, rank=rank, **options)
    params, theirs = HeadsParams(W_a[None]), AttentionParams(W_a)
    np.testing.assert_allclose(one.energy(params, y, x), single.energy(theirs, y, x), rtol=1e-13)
    moved, averaged = one.step(params, y, x), single.step(theirs, y, x)
    np.testing.assert_allclose(moved @ W_a, averaged @ W_a, rtol=1e-11, atol=1e-11)
    unseen = np.eye(4) - W_a @ np.linalg.pinv(W_a)
    np.testing.assert_allclose(moved @ unseen, y @ unseen, atol=1e-12)
    assert rank == 4 or jnp.max(jnp.abs((averaged - y) @ unseen)) > 0.1


def test_heads_of_independent_columns_all_get_their_means(getkey):
    layer = compiled(multihead_attention(4, num_heads=2, form="softmax"))
    params, y = HeadsParams(jnp.asarray(tokens(2, (2, 4, 2)), jnp.float32)), jax.random.normal(getkey(), (6, 4))
    stepped = layer.step(params, y)
    for W in params.W_a:
        alone = uj.attention(form="softmax").step(AttentionParams(None), y @ W)
        chex.assert_trees_all_close(stepped @ W, alone, rtol=1e-3, atol=1e-3)


@every_form
@every_majoriser
def test_tokens_far_apart_keep_step_and_gradients_finite(majoriser, form, getkey):
    layer = multihead_attention(4, num_heads=2, majoriser=majoriser, form=form)
    params, y = layer.init(getkey()), 1e8 * jnp.arange(12.0).reshape(3, 4)
    gradients = jax.jit(jax.grad(lambda *args: 1e-8 * jnp.sum(layer.step(*args)), (0, 1)))(params, y)
    chex.assert_tree_all_finite(gradients)


@every_majoriser
def test_tokens_alone_stay_with_finite_gradients_and_a_nan_is_not_hidden(majoriser, getkey):
    layer = compiled(multihead_attention(4, num_heads=2, majoriser=majoriser, rho="truncated_quadratic"))
    params, y = layer.init(getkey()), jnp.asarray([[0.0] * 4, [0.1] * 4, [50.0, 80.0, -70.0, 90.0]])
    stepped = layer.step(params, y)
    chex.assert_trees_all_close(stepped[2], y[2], rtol=1e-6)
    chex.assert_tree_all_finite(jax.jit(jax.jacobian(layer.step, (0, 1)))(params, y))
    assert jnp.all(jnp.any(jnp.isnan(layer.step(params, y.at[0, 0].set(jnp.nan))), axis=-1))


@every_majoriser
def test_absent_tokens_are_as_if_left_out(majoriser, getkey):
    y, x = jax.random.normal(getkey(), (2, 6, 4))
    there = jnp.arange(6) < 4
    layer = compiled(multihead_attention(4, num_heads=2, majoriser=majoriser, ridge=0.5))
    params, padded = layer.init(getkey()), jnp.where(there[:, None], y, jnp.nan)
    stepped = layer.step(params, padded, Anchor(x, there))
    chex.assert_trees_all_close(stepped[:4], layer.step(params, y[:4], x[:4]), rtol=1e-4, atol=1e-4)
    assert jnp.all(jnp.isnan(stepped[4:]))
    energy = layer.energy(params, padded, Anchor(x, there))
    chex.assert_trees_all_close(energy, layer.energy(params, y[:4], x[:4]), rtol=1e-5)


@pytest.mark.usefixtures("x64")
@every_form
def test_step_and_energy_at_once_and_in_blocks_are_the_same(form):
    y, x, params = jnp.asarray(tokens(0)), jnp.asarray(tokens(1)), HeadsParams(jnp.asarray(tokens(2, (2, 4, 2))))
    for block in (None, 4):
        layer = compiled(multihead_attention(4, num_heads=2, ridge=0.7, form=form, block=block))
        stepped, energy = jax.jit(layer.step_and_energy)(params, y, x)
        np.testing.assert_allclose(energy, reference.heads_energy(y, params.W_a, ridge=0.7, anchor=x), rtol=1e-12)
        np.testing.assert_allclose(layer.energy(params, y, x), energy, rtol=1e-12)
        expected = reference.heads_step(y, params.W_a, majoriser="block", ridge=0.7, anchor=x, form=form)
        np.testing.assert_allclose(stepped, expected, rtol=1e-11, atol=1e-11)


def test_init_draws_heads_of_the_stated_shape(getkey):
    assert multihead_attention(6, num_heads=2).init(getkey()).W_a.shape == (2, 6, 3)
    assert multihead_attention(6, num_heads=4, rank=5).init(getkey()).W_a.shape == (4, 6, 5)
    W_a = multihead_attention(6, num_heads=2, majoriser="orthogonal").init(getkey()).W_a
    for heads in (W_a, orthonormal_heads(3.0 * W_a)):
        gram = jnp.einsum("gdj,hdk->gjhk", heads, heads).reshape(6, 6)
        chex.assert_trees_all_close(gram, jnp.eye(6), atol=1e-5)


BAD = [
    ({"dim": 0, "num_heads": 1}, "dim must be at least 1, got 0"),
    ({"num_heads": 0}, "num_heads must be at least 1, .* got 0"),
    ({"num_heads": 5}, "num_heads must be .* at most dim=4 unless rank is given, got 5"),
    ({"rank": 5}, "rank must be between 1 and dim=4, got 5"),
    ({"majoriser": "diagonal"}, "majoriser must be one of .*'diagonal'"),
    ({"majoriser": "orthogonal", "rank": 3}, "rank must be at most dim // num_heads = 2 for orthogonal heads, got 3"),
    ({"form": "gauss"}, "form must be one of .*'gauss'"),
    ({"ridge": -1.0}, "ridge .* got -1.0"),
    ({"step_size": 0.0}, r"step_size must be in \(0, 1\], got 0.0"),
    ({"rho": jnp.square}, "rho 'square' must be concave"),
    ({"mask": np.tri(4, dtype=bool)}, "mask must be symmetric"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), BAD)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        multihead_attention(**{"dim": 4, "num_heads": 2, **options})
