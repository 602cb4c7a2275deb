"""The transformer layer in every residual form, with layer norm, and taken apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.transformer_layers import DIM, FORMS, STEP, N, build, draw, reference_layer
from unroll_jax.energies import AttentionParams, TransformerParams

DRAWS = 1000
QUICK = ("plain", "norm", "rows")  # all others run in make test-rest
every_form = pytest.mark.parametrize(
    "form", [form if form in QUICK else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]
)


def normalised(parts, params, y, x):
    return y if parts.layer_norm is None else parts.layer_norm.step(params, y, x)


@pytest.mark.usefixtures("x64")
@every_form
def test_energy_and_step_equal_the_reference_and_those_of_the_parts(form):
    layer, parts, point = uj.transformer(DIM, **build(form)), uj.transformer_parts(DIM, **build(form)), draw(form)

    @jax.jit
    def everything(params, y, x):
        terms = [part.energy(params, y, x) for part in (parts.attention, parts.feedforward, parts.layer_norm) if part]
        mixed = parts.feedforward.step(params, parts.attention.step(params, normalised(parts, params, y, x), x), x)
        features = parts.feedforward.step(params, y, x), y - STEP * jax.grad(parts.feedforward.energy, 1)(params, y, x)
        of_parts = sum(terms) + parts.phi.penalty(y), parts.phi.prox(mixed, parts.step_size)
        return (layer.energy(params, y, x), layer.step(params, y, x)), of_parts, features

    (energy, stepped), of_parts, features = everything(*point)
    for expected_energy, expected in (reference_layer(form, *point), of_parts):
        np.testing.assert_allclose(energy, expected_energy, rtol=1e-12)
        np.testing.assert_allclose(stepped, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(*features, rtol=1e-10, atol=1e-12)
    assert (parts.layer_norm is not None) == (form == "norm")
    # After layer norm attention sees other tokens than the energy.
    assert (layer.step_and_energy is None) == (form == "norm")


@pytest.mark.usefixtures("x64")
@every_form
def test_under_the_stated_condition_no_step_raises_the_whole_energy(form):
    """1000 draws, after layer norm near the sphere, as a projection is a long step."""
    layer, parts = uj.transformer(DIM, **build(form)), uj.transformer_parts(DIM, **build(form))
    rng, wants = np.random.default_rng(3), FORMS[form][0]
    W_a = 10.0 ** rng.uniform(-2.0, 0.0, size=(DRAWS, 1, 1)) * np.linalg.qr(rng.normal(size=(DRAWS, DIM, 2)))[0]
    row, other = 0.7 * rng.normal(size=(2, DRAWS, 1, DIM))
    rows = row if wants.get("anchor") == "row" else None, other if "attention_anchor" in wants else None
    params = TransformerParams(W_a, 0.6 * rng.normal(size=(DRAWS, DIM, DIM)), *rows)
    spread = 10.0 ** rng.uniform(-3.0, 0.0, size=(DRAWS, 1, 1))
    y = 0.7 * rng.uniform(size=(DRAWS, 1, DIM)) + 0.3 * spread * rng.uniform(size=(DRAWS, N, DIM))

    def descends(drawn):
        params, y, x, spread = drawn
        if form == "norm":
            y = normalised(parts, params, y, x) + 0.01 * spread * y
        # By Frobenius's norms; a2 L is at most 1 by construction in most of the draws.
        smoothness = (N + wants.get("ridge", 0.0)) * jnp.sum(params.W_a**2) + jnp.linalg.norm(params.W_f) + 2.0
        f = lambda y: sum(part.energy(params, y, x) for part in (parts.attention, parts.layer_norm) if part)  # noqa: E731
        attended = parts.attention.step(params, normalised(parts, params, y, x), x)
        left = parts.feedforward.step(params, attended, x) - parts.feedforward.step(params, y, x)
        stepped = layer.step(params, y, x)
        error = jnp.linalg.norm(STEP * jax.grad(f)(y) + left)
        held = (STEP * smoothness <= 1.0) & (error <= 0.5 * jnp.linalg.norm(stepped - y))
        return held, layer.energy(params, y, x), layer.energy(params, stepped, x)

    # One at a time: decompositions of many matrices side by side can block each other, see test_transformer.
    run = jax.jit(lambda *drawn: jax.lax.map(descends, drawn))
    held, before, after = map(np.asarray, run(params, y, rng.normal(size=(DRAWS, N, DIM)), spread))
    assert np.sum(held) > 50
    assert np.all((after <= before + 1e-12 * (1.0 + np.abs(before)))[held])


@pytest.mark.usefixtures("x64")
def test_after_layer_norm_beta_is_constant_for_a_multiple_of_an_orthogonal_matrix_only():
    rng = np.random.default_rng(5)
    y = rng.normal(size=(N, DIM))
    centred = y - y.mean(axis=1, keepdims=True)
    normed = 1.3 * centred / np.linalg.norm(centred, axis=1, keepdims=True)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(DIM, DIM)))
    for W_a, constant in ((1.7 * orthogonal, True), (rng.normal(size=(DIM, DIM)), False)):
        params = TransformerParams(W_a, np.eye(DIM))
        layer = uj.transformer(DIM, phi="identity", step_size=0.25, norm_radius=1.3)
        logits = normed @ W_a @ W_a.T @ normed.T  # no beta
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        plain = 0.5 * (weights / weights.sum(axis=1, keepdims=True) @ normed)  # W_f = I, a2 = 1/4: W_f^s = I/2
        assert np.allclose(jax.jit(layer.step)(params, y), plain, rtol=1e-12, atol=1e-14) == constant


class Scaled(NamedTuple):
    W_a: Any


def scaled_attention(*, dim, rank, **options):
    """A user's attention half with different params: W_a and a head that sees half as far, in one array."""
    plain = uj.attention(dim=dim, rank=rank, **options)
    halved = lambda params: AttentionParams(0.5 * params.W_a[0])  # noqa: E731
    return uj.Descent(
        lambda key: Scaled(plain.init(key).W_a[None]),
        lambda params, y, x: plain.energy(halved(params), y, x),
        lambda params, y, x: plain.step(halved(params), y, x),
    )


@pytest.mark.usefixtures("x64")
def test_another_attention_half_takes_the_place_of_attention():
    layer, plain = uj.transformer(DIM, attention_factory=scaled_attention), uj.transformer(DIM)
    y, x = np.random.default_rng(6).uniform(size=(2, N, DIM))

    @jax.jit
    def both(y, x):
        params = layer.init(jax.random.key(0))
        assert params.W_a.shape == (1, DIM, DIM)
        halved = params._replace(W_a=0.5 * params.W_a[0])
        pair = lambda layer, params: (layer.energy(params, y, x), layer.step(params, y, x))  # noqa: E731
        return pair(layer, params), pair(plain, halved)

    for actual, expected in zip(*both(y, x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)
    assert layer.step_and_energy is None


def test_only_the_rows_asked_for_are_parameters():
    for form, (options, _) in FORMS.items():
        params = jax.eval_shape(uj.transformer(DIM, **build(form)).init, jax.random.key(0))
        assert (params.row is not None) == (options.get("anchor") == "row"), form
        assert (params.attention_row is not None) == (options.get("attention_anchor") == "row"), form


def test_all_parameters_are_drawn_apart():
    layer = uj.transformer(8, anchor="row", attention_anchor="row", ridge=1.0)
    params = jax.tree.map(np.asarray, jax.jit(layer.init)(jax.random.key(0)))
    assert params.row.shape == params.attention_row.shape == (1, 8)
    assert not np.allclose(params.row, params.attention_row)
    assert abs(np.corrcoef(params.W_a.ravel(), params.W_f.ravel())[0, 1]) < 0.5  # both would be one matrix, scaled
