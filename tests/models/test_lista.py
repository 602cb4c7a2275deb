"""LISTA as a Flax module, against ISTA in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from tests.models.drawing import drawn, float64, normal
from unroll_jax.energies import ListaLayerParams, cosine_dictionary
from unroll_jax.models import LISTA
from unroll_jax.perturbations import lost_layer

DIM, ATOMS, LAYERS, SPARSITY = 4, 7, 3, 0.2
X = jax.ShapeDtypeStruct((DIM,), jnp.float32)


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def reference_codes(params, x, start=0.0):
    layers = float64(params["params"]["layers"])
    codes = [np.zeros((*x.shape[:-1], ATOMS)) + start]
    for A, B, theta in zip(*layers, strict=True):
        codes.append(soft(codes[-1] @ A.T + np.asarray(x) @ B.T, np.abs(theta)))
    return np.stack(codes)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("given", [False, True])
def test_initially_its_layers_are_the_iterates_of_ista(given):
    x = normal(5, DIM)
    D = np.random.default_rng(2).normal(size=(ATOMS, DIM)) if given else cosine_dictionary(ATOMS, DIM)
    options = {"dictionary_init": jax.nn.initializers.constant(D)} if given else {}
    model = LISTA(DIM, ATOMS, LAYERS, sparsity=SPARSITY, param_dtype=jnp.float64, **options)
    actual = jax.jit(lambda key: model.apply(model.init(key, x), x))(jax.random.key(0))
    curvature, codes = np.linalg.norm(D, 2) ** 2, [np.zeros((5, ATOMS))]
    for _ in range(LAYERS):
        codes.append(soft(codes[-1] + (np.asarray(x) - codes[-1] @ D) @ D.T / curvature, SPARSITY / curvature))
    assert 0 < np.count_nonzero(codes[-1]) < codes[-1].size
    np.testing.assert_allclose(actual, np.stack(codes), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_all_codes_and_gradients_equal_the_reference_from_any_start_with_thresholds_that_are_never_negative():
    model, x, start = LISTA(DIM, ATOMS, LAYERS, param_dtype=jnp.float64), normal(2, 5, DIM), normal(2, 5, ATOMS, seed=3)
    params, direction = (drawn(model, x, seed=seed) for seed in (0, 1))
    assert np.min(params["params"]["layers"].theta) < 0.0
    weight = np.random.default_rng(0).normal(size=(LAYERS + 1, 2, 5, ATOMS))

    @jax.jit
    def both(params):
        codes, pull = jax.vjp(lambda params: model.apply(params, x, start), params)
        return pull(jnp.asarray(weight))[0], codes

    gradient, codes = both(params)
    np.testing.assert_allclose(codes, reference_codes(params, x, start), rtol=1e-12, atol=1e-13)
    along = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))

    def shifted(distance):
        moved = jax.tree.map(lambda leaf, d: np.asarray(leaf) + distance * np.asarray(d), params, direction)
        return np.sum(weight * reference_codes(moved, x, start))

    np.testing.assert_allclose(along, reference.directional_derivative(shifted, 0.0, 1.0, width=1e-6), rtol=1e-6)


def test_records_losses_and_a_lost_layer():
    model, x, target = LISTA(DIM, ATOMS, LAYERS), normal(5, DIM, dtype=jnp.float32), normal(5, ATOMS, dtype=jnp.float32)
    params = drawn(model, X)
    loss = lambda z: jnp.sum((z - target) ** 2, axis=-1)  # noqa: E731
    run = jax.jit(lambda lost: model.apply(params, x, record=loss, perturb=lost_layer(lost)))
    np.testing.assert_allclose(run(0), np.sum((reference_codes(params, x) - target) ** 2, axis=-1), rtol=1e-4)
    without = jax.tree.map(lambda leaf: np.delete(leaf, 1, axis=0), params)
    shorter = np.sum((reference_codes(without, x) - target) ** 2, axis=-1)
    np.testing.assert_allclose(np.delete(run(2), 2, axis=0), shorter, rtol=1e-4)


def test_weights_may_start_as_noise():
    model = LISTA(DIM, 300, LAYERS, noise=0.01)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros(DIM))["params"]["layers"]
    assert jax.tree.map(jnp.shape, params) == ListaLayerParams((LAYERS, 300, 300), (LAYERS, 300, DIM), (LAYERS, 300))
    for leaf in params:
        np.testing.assert_allclose(np.std(leaf), 0.01, rtol=0.1)
        assert abs(np.mean(leaf)) < 0.001
