"""The transformer layer in every residual form, with layer norm, and taken apart."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, TransformerParams

N, DIM = 5, 3
STEP = 0.05
MAP = np.random.default_rng(11).normal(size=(DIM, DIM))

# Options of the layer, and in the reference: what x makes of the two anchors, given the learnable rows.
FORMS = {
    "plain": ({}, lambda x, row, other: (None, x)),
    "damped": ({"attention_step_size": 0.4}, lambda x, row, other: (None, x)),
    "jacobi": ({"form": "jacobi"}, lambda x, row, other: (None, x)),
    "both anchors": ({"ridge": 0.7, "form": "jacobi", "attention_step_size": 0.01}, lambda x, row, other: (x, x)),
    "row": ({"anchor": "row"}, lambda x, row, other: (None, row)),
    "input and row": (
        {"anchor": "row", "ridge": 1.0, "form": "jacobi", "attention_step_size": 0.01},
        lambda x, row, other: (x, row),
    ),
    "row and input": ({"attention_anchor": "row", "ridge": 0.3}, lambda x, row, other: (other, x)),
    "rows": ({"anchor": "row", "attention_anchor": "row", "ridge": 0.3}, lambda x, row, other: (other, row)),
    "function": ({"anchor": lambda x: x @ MAP}, lambda x, row, other: (None, x @ MAP)),
    "norm": ({"norm_radius": 1.3, "phi": "identity"}, lambda x, row, other: (None, x)),
    "spectrum": ({"spectrum": (0.0, 0.5)}, lambda x, row, other: (None, x)),
    "tanh": ({"phi": "tanh", "ridge": 0.2}, lambda x, row, other: (x, x)),
}
every_form = pytest.mark.parametrize("form", FORMS)


def build(form, **options):
    return {"rank": 2, "step_size": STEP, **FORMS[form][0], **options}


def draw(form, seed=0):
    """Parameters, tokens where phi is finite and input, in float64 NumPy."""
    rng = np.random.default_rng(seed)
    wants = FORMS[form][0]
    params = TransformerParams(
        rng.normal(size=(DIM, 2)),
        rng.normal(size=(DIM, DIM)),
        rng.normal(size=(1, DIM)) if wants.get("anchor") == "row" else None,
        rng.normal(size=(1, DIM)) if "attention_anchor" in wants else None,
    )
    return params, rng.uniform(0.1, 0.9, size=(N, DIM)), rng.normal(size=(N, DIM))


def reference_layer(form, params, y, x):
    """Energy and step, from the equations."""
    options, anchors = FORMS[form]
    A, B = anchors(x, params.row, params.attention_row)
    W_f = params.W_f
    if "spectrum" in options:
        values, basis = np.linalg.eigh((W_f + W_f.T) / 2)
        W_f = (basis * np.clip(values, *options["spectrum"])) @ basis.T
    pair = {"W_a": params.W_a, "ridge": options.get("ridge", 0.0), "anchor": A}
    energy = reference.pair_energy(y, **pair) + reference.feedforward_energy(y, W_f, B)
    tokens, activation = y, lambda u, step_size: np.maximum(u, 0.0)
    if "norm_radius" in options:
        centred = y - y.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        energy += np.sum(y.sum(axis=1) ** 2) / (2 * DIM) + 0.5 * np.sum((norms - options["norm_radius"]) ** 2)
        tokens = options["norm_radius"] * centred / norms
    if options.get("phi") == "identity":
        activation = lambda u, step_size: u  # noqa: E731
    if options.get("phi") == "tanh":
        activation = lambda u, step_size: np.tanh(u)  # noqa: E731
        conjugate = 0.5 * ((1.0 + y) * np.log(1.0 + y) + (1.0 - y) * np.log(1.0 - y))
        energy += np.sum(conjugate - 0.5 * y**2) / STEP
    damping = options.get("attention_step_size", 1.0)
    mixed = reference.pair_step(tokens, form=options.get("form", "softmax"), step_size=damping, **pair)
    return energy, reference.feedforward_step(mixed, W_f, B, step_size=STEP, prox=activation)


@pytest.mark.usefixtures("x64")
@every_form
def test_energy_and_step_equal_the_reference(form):
    layer = uj.transformer(DIM, **build(form))
    params, y, x = draw(form)
    energy, step = reference_layer(form, params, y, x)
    arrays = jax.tree.map(jnp.asarray, (params, y, x))
    np.testing.assert_allclose(layer.energy(*arrays), energy, rtol=1e-12)
    np.testing.assert_allclose(layer.step(*arrays), step, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
@every_form
def test_gradients_equal_finite_differences_of_the_reference(form):
    """With respect to every parameter, rows included, the tokens and the input."""
    layer = uj.transformer(DIM, **build(form))
    point = draw(form, seed=1)
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(N, DIM))
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), point)
    both = lambda *p: (layer.energy(*p), jnp.sum(weight * layer.step(*p)))  # noqa: E731
    slopes = jax.jit(lambda p, d: jax.jvp(both, p, d)[1])(*jax.tree.map(jnp.asarray, (point, direction)))
    gradients = jax.jit(jax.jacrev(both, (0, 1, 2)))(*jax.tree.map(jnp.asarray, point))

    def along(place, leaf_place):
        leaves, tree = jax.tree.flatten(point)

        def moved(value):
            new = jax.tree.unflatten(tree, [*leaves[:leaf_place], value, *leaves[leaf_place + 1 :]])
            energy, step = reference_layer(form, *new)
            return energy if place == 0 else np.sum(weight * step)

        return moved

    for place in (0, 1):
        total = 0.0
        pairs = zip(jax.tree.leaves(gradients[place]), jax.tree.leaves(direction), strict=True)
        for leaf_place, (gradient, way) in enumerate(pairs):
            expected = reference.directional_derivative(
                along(place, leaf_place), jax.tree.leaves(point)[leaf_place], way, width=1e-4
            )
            np.testing.assert_allclose(np.sum(gradient * way), expected, rtol=1e-8, atol=1e-10)
            total += expected
        assert slopes[place] == pytest.approx(total, rel=1e-8, abs=1e-9)


@pytest.mark.usefixtures("x64")
@every_form
def test_under_the_stated_condition_no_step_raises_the_whole_energy(form):
    """1000 draws; a2 L <= 1 by construction, the rest of the condition as the docstring prints it."""
    layer, parts = uj.transformer(DIM, **build(form)), uj.transformer_parts(DIM, **build(form))
    ridge = FORMS[form][0].get("ridge", 0.0)

    def example(key):
        keys = jax.random.split(key, 6)
        params = layer.init(keys[0])
        W_a = params.W_a * 10.0 ** jax.random.uniform(keys[1], minval=-2.0, maxval=0.0)
        params = params._replace(W_a=W_a)
        spread = 10.0 ** jax.random.uniform(keys[2], minval=-3.0, maxval=0.0)
        y = jnp.abs(0.7 * jax.random.uniform(keys[3], (1, DIM)) + 0.3 * spread * jax.random.uniform(keys[4], (N, DIM)))
        x = jax.random.normal(keys[5], (N, DIM))
        if parts.layer_norm is not None:  # a projection is a long step: the condition holds near the sphere alone
            y = parts.layer_norm.step(params, y, x) + 0.01 * spread * y
        smoothness = (N + ridge) * jnp.sum(W_a**2) + jnp.linalg.norm(params.W_f) + 2.0  # by Frobenius's norms

        def f(y):
            norm = 0.0 if parts.layer_norm is None else parts.layer_norm.energy(params, y, x)
            return parts.attention.energy(params, y, x) + norm

        normed = y if parts.layer_norm is None else parts.layer_norm.step(params, y, x)
        attended = parts.attention.step(params, normed, x)
        zero = jnp.zeros_like(y)
        mix = lambda u: parts.feedforward.step(params, u, x) - parts.feedforward.step(params, zero, x)  # noqa: E731
        stepped = layer.step(params, y, x)
        error = jnp.linalg.norm(STEP * jax.grad(f)(y) + mix(attended - y))
        held = (STEP * smoothness <= 1.0) & (error <= 0.5 * jnp.linalg.norm(stepped - y))
        return held, layer.energy(params, y, x), layer.energy(params, stepped, x)

    # One key at a time: decompositions of many matrices side by side can block each other, see test_transformer.
    keys = jax.random.split(jax.random.key(3, impl="rbg"), 1000)
    held, before, after = jax.jit(lambda keys: jax.lax.map(example, keys))(keys)
    assert jnp.sum(held) > 50
    assert jnp.all(jnp.where(held, after <= before + 1e-12 * (1.0 + jnp.abs(before)), True))


@pytest.mark.usefixtures("x64")
@every_form
def test_the_parts_make_up_the_layer(form):
    layer, parts = uj.transformer(DIM, **build(form)), uj.transformer_parts(DIM, **build(form))
    params, y, x = jax.tree.map(jnp.asarray, draw(form))
    terms = [part.energy(params, y, x) for part in (parts.attention, parts.feedforward, parts.layer_norm) if part]
    np.testing.assert_allclose(layer.energy(params, y, x), sum(terms) + parts.phi.penalty(y), rtol=1e-13)
    normed = y if parts.layer_norm is None else parts.layer_norm.step(params, y, x)
    moved = parts.feedforward.step(params, parts.attention.step(params, normed, x), x)
    np.testing.assert_array_equal(layer.step(params, y, x), parts.phi.prox(moved, parts.step_size))
    gradient = jax.grad(parts.feedforward.energy, 1)(params, y, x)
    np.testing.assert_allclose(parts.feedforward.step(params, y, x), y - STEP * gradient, rtol=1e-10, atol=1e-12)
    assert (parts.layer_norm is not None) == (form == "norm")


@every_form
def test_padded_sequences_equal_sequences_alone(form):
    layer = uj.transformer(DIM, **build(form))
    params, y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draw(form))
    lengths = (3, 5, 1)
    present = np.arange(N) < np.array(lengths)[:, None]
    stack = lambda leaf: jnp.where(present[..., None], jnp.stack([leaf] * 3), jnp.nan)  # noqa: E731
    # A function of x sees the padding too; what it makes of it must not matter.
    anchor = Anchor(stack(x), jnp.asarray(present))
    energy, stepped = jax.jit(lambda *a: (layer.energy(*a), layer.step(*a)))(params, stack(y), anchor)
    for i, length in enumerate(lengths):
        alone = params, y[:length], x[:length]
        chex.assert_trees_all_close(energy[i], layer.energy(*alone), rtol=1e-5, atol=1e-5)
        chex.assert_trees_all_close(stepped[i, :length], layer.step(*alone), rtol=1e-5, atol=1e-6)
    assert jnp.all(jnp.isnan(stepped[~present]))


@pytest.mark.usefixtures("x64")
def test_after_layer_norm_beta_is_constant_for_a_multiple_of_an_orthogonal_matrix_only():
    rng = np.random.default_rng(5)
    y = rng.normal(size=(N, DIM))
    centred = y - y.mean(axis=1, keepdims=True)
    normed = 1.3 * centred / np.linalg.norm(centred, axis=1, keepdims=True)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(DIM, DIM)))
    for W_a, constant in ((1.7 * orthogonal, True), (rng.normal(size=(DIM, DIM)), False)):
        params = TransformerParams(jnp.asarray(W_a), jnp.eye(DIM))
        layer = uj.transformer(DIM, phi="identity", step_size=0.25, norm_radius=1.3)
        logits = normed @ W_a @ W_a.T @ normed.T  # no beta
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        plain = 0.5 * (weights / weights.sum(axis=1, keepdims=True) @ normed)  # W_f = I, a2 = 1/4: W_f^s = I/2
        assert np.allclose(layer.step(params, jnp.asarray(y)), plain, rtol=1e-12, atol=1e-14) == constant


@pytest.mark.usefixtures("x64")
@every_form
def test_step_and_energy_at_once_are_the_two(form):
    """Where attention offers both at once, but after layer norm, where it sees other tokens."""
    layer, parts = uj.transformer(DIM, **build(form)), uj.transformer_parts(DIM, **build(form))
    arrays = jax.tree.map(jnp.asarray, draw(form))
    if form == "norm" or parts.attention.step_and_energy is None:
        assert layer.step_and_energy is None
        return
    stepped, energy = layer.step_and_energy(*arrays)
    np.testing.assert_allclose(stepped, layer.step(*arrays), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(energy, layer.energy(*arrays), rtol=1e-13)


class Scaled(NamedTuple):
    W_a: Any


def scaled_attention(*, dim, rank, **options):
    """An attention half of one's own, with params of its own: W_a and a head that sees half as far, in one array."""
    plain = uj.attention(dim=dim, rank=rank, **options)
    halved = lambda params: AttentionParams(0.5 * params.W_a[0])  # noqa: E731
    return uj.Descent(
        lambda key: Scaled(plain.init(key).W_a[None]),
        lambda params, y, x: plain.energy(halved(params), y, x),
        lambda params, y, x: plain.step(halved(params), y, x),
    )


@pytest.mark.usefixtures("x64")
def test_another_attention_half_takes_the_place_of_attention(getkey):
    layer = uj.transformer(DIM, attention_factory=scaled_attention)
    params = layer.init(getkey())
    assert params.W_a.shape == (1, DIM, DIM)
    y, x = jax.random.uniform(getkey(), (2, N, DIM), jnp.float64)
    expected = params._replace(W_a=0.5 * params.W_a[0])
    for name in ("energy", "step"):
        found = getattr(layer, name)(params, y, x)
        np.testing.assert_allclose(found, getattr(uj.transformer(DIM), name)(expected, y, x), rtol=1e-12, atol=1e-15)
    assert layer.step_and_energy is None


def test_only_the_rows_asked_for_are_parameters(getkey):
    for form, (options, _) in FORMS.items():
        params = uj.transformer(DIM, **build(form)).init(getkey())
        assert (params.row is not None) == (options.get("anchor") == "row")
        assert (params.attention_row is not None) == (options.get("attention_anchor") == "row")
    both = uj.transformer(DIM, anchor="row", attention_anchor="row", ridge=1.0).init(getkey())
    assert both.row.shape == both.attention_row.shape == (1, DIM)
    assert not jnp.allclose(both.row, both.attention_row)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor": "output"}, "anchor must be 'input', 'row' or a function of x, got 'output'"),
        ({"attention_anchor": 3, "ridge": 1.0}, "attention_anchor must be 'input', 'row' .* got 3"),
        ({"attention_anchor": "row"}, "attention_anchor must be 'input' while ridge is 0, got 'row'"),
        ({"ridge": -1.0}, "ridge must be finite and at least 0, got -1.0"),
        ({"norm_radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"spectrum": (1.0, 0.0)}, "spectrum must be finite with lower < upper"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(options, message):
    for factory in (uj.transformer, uj.transformer_parts):
        with pytest.raises(ValueError, match=message):
            factory(DIM, **options)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="headz"):
        uj.transformer(DIM, headz=3)
