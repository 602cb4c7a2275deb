"""Regularisers of equilibria and the layer each appends."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from unroll_jax.energies.deep_opteq import deep_opteq, multi_block
from unroll_jax.energies.opteq import opteq, opteq_conv
from unroll_jax.energies.opteq_objective import deep_opteq_objective, opteq_objective, opteq_preimage
from unroll_jax.energies.regularisers import (
    REGULARISERS,
    absolute,
    decorrelation,
    half_square,
    inverse_square,
    regularised,
)


def correlations(Z):
    """|D Z Z^T D - I|_F^2 / 2 written out, Z with a row per feature."""
    D = np.diag(1.0 / np.linalg.norm(Z, axis=1))
    return 0.5 * np.linalg.norm(D @ Z @ Z.T @ D - np.eye(len(Z))) ** 2


VALUES = {
    "half_square": (half_square(0.7), lambda z: 0.35 * np.sum(z**2)),
    "absolute": (absolute(0.7), lambda z: 0.7 * np.sum(np.abs(z))),
    "inverse_square": (inverse_square(0.7, epsilon=0.5), lambda z: 0.7 / (np.sum(z**2) + 0.5)),
    "decorrelation": (decorrelation(0.7), lambda z: 0.7 * correlations(z.T)),
}


def test_every_regulariser_is_tested():
    assert VALUES.keys() == REGULARISERS.keys()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", VALUES)
def test_values_equal_their_definitions_and_smoothness_bounds_the_curvature(name):
    regulariser, expected = VALUES[name]
    rng = np.random.default_rng(0)
    value, curvature = jax.jit(regulariser.value), jax.jit(jax.hessian(lambda z: regulariser.value(z.reshape(6, 4))))
    lowest = np.inf
    for size in (0.0, 0.1, 1.0, 3.0):
        z = size * rng.normal(size=(6, 4)) + (1e-9 if name == "decorrelation" and size == 0.0 else 0.0)
        np.testing.assert_allclose(value(jnp.asarray(z)), expected(z), rtol=1e-12)
        spectrum = np.linalg.eigvalsh(curvature(jnp.asarray(z).ravel()))
        lowest = min(lowest, spectrum[0])
        if regulariser.smoothness is not None:
            assert np.max(np.abs(spectrum)) <= regulariser.smoothness * (1.0 + 1e-12)
            if size == 0.0:
                assert np.max(np.abs(spectrum)) == pytest.approx(regulariser.smoothness)
    assert (lowest >= -1e-12) == regulariser.convex


@pytest.mark.usefixtures("x64")
def test_features_that_are_0_in_the_whole_batch_do_no_harm():
    z = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4))).at[:, 2].set(0.0)
    value, gradient = jax.value_and_grad(decorrelation().value)(z)
    kept = jnp.asarray([0, 1, 3])
    np.testing.assert_allclose(value, correlations(np.asarray(z[:, kept]).T), rtol=1e-12)
    assert jnp.all(jnp.isfinite(gradient))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", [0.3, 2.0])
@pytest.mark.parametrize("name", ["half_square", "absolute"])
def test_prox_is_the_numerical_minimiser(name, step_size):
    regulariser, value = VALUES[name]
    for z in np.random.default_rng(1).normal(size=(5, 2)):
        objective = lambda u, z=z: value(u) + np.sum((u - z) ** 2) / (2.0 * step_size)  # noqa: E731
        options = {"xatol": 1e-11, "fatol": 1e-15}
        found = minimize(objective, z, method="Nelder-Mead", options=options)
        np.testing.assert_allclose(regulariser.prox(jnp.asarray(z), step_size), found.x, atol=1e-6)


def system(getkey, kind, batch):
    layer, event = (opteq(4, 6, 3), (4,)) if kind == "dense" else (opteq_conv(2, 3, 3), (3, 4, 2))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), layer.init(getkey()))
    x = jax.random.normal(getkey(), (*batch, *event[:-1], 3), jnp.float64)
    return layer, params, jax.random.normal(getkey(), (*batch, *event), jnp.float64), x, event


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("kind", "batch"), [("dense", ()), ("dense", (5,)), ("dense", (2, 3)), ("conv", (2, 3))])
def test_an_appended_layer_is_the_prox_or_the_gradient_step_of_every_example(getkey, kind, batch):
    layer, params, z, x, event = system(getkey, kind, batch)
    if kind == "conv":
        layer = layer._replace(step=jax.jit(layer.step))
    plain = layer.step(params, z, x)
    for (regulariser, _), form in [(VALUES["half_square"], "prox"), (VALUES["absolute"], "prox")]:
        wrapped = regularised(layer, regulariser, step_size=0.4, form=form)
        chex.assert_trees_all_close(wrapped.step(params, z, x), regulariser.prox(plain, 0.4), rtol=1e-12)
    for name in ("half_square", "inverse_square"):
        regulariser = VALUES[name][0]
        stepped = regularised(layer, regulariser, step_size=0.4, form="gradient").step(params, z, x)
        slopes = [jax.grad(regulariser.value)(one) for one in plain.reshape(-1, *event)]
        chex.assert_trees_all_close(stepped, plain - 0.4 * jnp.stack(slopes).reshape(plain.shape), rtol=1e-12)
    coupled = regularised(layer, decorrelation(), step_size=0.4, form="gradient")
    slope = jax.grad(lambda z: decorrelation().value(z.reshape(max(1, z.size // np.prod(event)), -1)))(plain)
    chex.assert_trees_all_close(coupled.step(params, z, x), plain - 0.4 * slope, rtol=1e-12)
    assert coupled.energy(params, z, x).shape == batch


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["prox", "gradient"])
def test_no_step_with_a_convex_regulariser_raises_the_residual(getkey, form):
    layer, params, z, x, _ = system(getkey, "dense", (100,))
    wrapped = regularised(layer, half_square(), step_size=1.9, form=form)
    before, after = jax.jit(
        lambda z: (wrapped.energy(params, z, x), wrapped.energy(params, wrapped.step(params, z, x), x))
    )(z)
    assert before.shape == (100,)
    assert jnp.all(after <= before)
    assert jnp.mean(after < before) > 0.9


@pytest.mark.usefixtures("x64")
def test_a_regulariser_that_is_not_convex_can_raise_the_residual(getkey):
    layer = opteq(4, 4, activation="identity")
    params = layer.init(getkey())._replace(W=jnp.eye(4), b=jnp.zeros(4))
    wrapped = regularised(layer, inverse_square(epsilon=0.1), step_size=1.0, form="gradient")
    z = jnp.full(4, 1e-3)
    assert wrapped.energy(params, wrapped.step(params, z)) > wrapped.energy(params, z)


LAYER = opteq(4, 6, 3)
BAD_OPTIONS = [
    (lambda: half_square(0.0), "strength must be positive and finite, got 0.0"),
    (lambda: absolute(float("inf")), "strength must be positive and finite, got inf"),
    (lambda: inverse_square(epsilon=0.0), "epsilon must be positive and finite, got 0.0"),
    (lambda: decorrelation(-1.0), "strength must be positive and finite, got -1.0"),
    (lambda: regularised(LAYER, half_square(), step_size=0.0), "step_size must be positive and finite, got 0.0"),
    (lambda: regularised(LAYER, half_square(), form="newton"), 'form must be "prox" or "gradient", got \'newton\''),
    (
        lambda: regularised(LAYER, decorrelation()),
        "form must be \"gradient\" for a regulariser without a prox, got 'prox'",
    ),
    (
        lambda: regularised(LAYER, half_square(), step_size=2.1, form="gradient"),
        r"step_size must be at most 2 / smoothness .* got step_size=2.1 and smoothness=1.0",
    ),
    (lambda: regularised(LAYER, absolute(), form="gradient"), "got step_size=1.0 and smoothness=None"),
    (lambda: opteq_objective(LAYER.init(jax.random.key(0)), jnp.ones(4)), r"W must be a square matrix .* \(6, 4\)"),
    (
        lambda: opteq_objective(LAYER.init(jax.random.key(0)), jnp.ones(4), skip=1.5),
        r"skip must be in \(0, 1\], got 1.5",
    ),
    (
        lambda: opteq_preimage(LAYER.init(jax.random.key(0)), jnp.ones(4), skip=1.0),
        r"skip must be in \(0, 1\), got 1.0",
    ),
    (lambda: deep_opteq_objective((), (jnp.ones(4),)), "blocks must be as many as layers, 0, got 1"),
    (
        lambda: multi_block([LAYER]).step((LAYER.init(jax.random.key(0)),), (jnp.ones(4), jnp.ones(4))),
        "z must be a tuple of 1 blocks, got tuple of 2",
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "message"), BAD_OPTIONS, ids=[row[1] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("x64")
def test_the_objective_of_a_convolution_is_that_of_its_matrix(getkey):
    """Images of one pixel: a convolution is then a matrix, its kernel's middle."""
    layer = opteq_conv(2, 3)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), layer.init(getkey()))
    z = jax.random.normal(getkey(), (5, 1, 1, 2), jnp.float64)
    as_matrix = params._replace(W=params.W[1, 1].T)
    images = opteq_objective(params, z, skip=0.5)
    chex.assert_trees_all_close(images, opteq_objective(as_matrix, z[:, 0, 0], skip=0.5), rtol=1e-12)
    deep = deep_opteq_objective((params, params), (z, z), skip=0.5)
    chex.assert_trees_all_close(deep, 2.0 * images, rtol=1e-12)
    assert deep_opteq([layer]).energy((params,), z).shape == (5,)
