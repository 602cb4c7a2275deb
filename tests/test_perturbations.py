"""Layers with noise on them and layers that are lost, against loops in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.errors import assert_names
from unroll_jax.perturbations import layer_noise, lost_layer

ROWS = jnp.asarray(np.random.default_rng(0).uniform(size=(3, 4)).astype(np.float32))


def affine(params, y, x):
    return params * y + x


@pytest.mark.parametrize("tied", [True, False])
def test_a_lost_layer_is_the_loop_without_it(tied):
    params, x = jnp.float32(0.5) if tied else jnp.array([0.5, 2.0, -1.0]), 0.1 * ROWS
    options = {"num_layers": 3, "tied": tied, "record": lambda p, y, x: y}
    run = jax.jit(lambda lost: uj.unroll(affine, params, ROWS, x, perturb=lost_layer(lost), **options))
    for lost in (0, 1, 3):
        expected = [ROWS]
        for layer in range(1, 4):
            scale = params if tied else params[layer - 1]
            expected.append(expected[-1] if layer == lost else scale * expected[-1] + x)
        last, trace = run(lost)
        np.testing.assert_allclose(trace, jnp.stack(expected), rtol=1e-6)
        np.testing.assert_allclose(last, expected[-1], rtol=1e-6)


@pytest.mark.parametrize("remat", [False, True])
def test_noise_reaches_the_next_layer_and_the_record(remat):
    perturb = layer_noise(jax.random.key(3), 0.1)
    last, trace = uj.unroll(
        affine, 0.5, ROWS, 0.0, num_layers=3, record=lambda p, y, x: y, perturb=perturb, remat=remat
    )
    y, seen = ROWS, []
    for layer in range(1, 4):
        y = perturb(jnp.int32(layer), y, 0.5 * y)
        seen.append(y)
    np.testing.assert_allclose(trace[1:], jnp.stack(seen), rtol=1e-5)
    np.testing.assert_allclose(last, y, rtol=1e-5)
    np.testing.assert_allclose(trace[0], ROWS)


def test_noise_has_the_scale_given_and_is_drawn_anew_for_each_layer_and_leaf():
    zeros = {"a": jnp.zeros((100, 200)), "b": jnp.zeros((100, 200), jnp.bfloat16)}
    draws = [layer_noise(jax.random.key(0), 2.0)(jnp.int32(layer), None, zeros) for layer in (1, 2)]
    flat = np.stack([np.asarray(leaf, np.float32).ravel() for draw in draws for leaf in jax.tree.leaves(draw)])
    np.testing.assert_allclose(flat.mean(axis=1), 0.0, atol=0.06)
    np.testing.assert_allclose(np.cov(flat), 4.0 * np.eye(4), atol=0.12)
    assert draws[0]["b"].dtype == jnp.bfloat16


def test_with_keys_of_rows_a_row_has_the_same_noise_in_any_batch():
    keys = jax.random.split(jax.random.key(0), 3)
    whole = layer_noise(keys, 1.0)(jnp.int32(2), None, ROWS)
    np.testing.assert_array_equal(whole[1:], layer_noise(keys[1:], 1.0)(jnp.int32(2), None, ROWS[1:]))
    assert np.unique(np.asarray(whole - ROWS)).size == ROWS.size


def test_a_scale_that_cannot_be_is_refused():
    for scale in (-0.1, float("nan"), float("inf")):
        assert_names(ValueError, layer_noise, {"key": jax.random.key(0), "scale": scale})


def test_a_perturbation_that_changes_the_state_s_kind_is_refused():
    with pytest.raises(ValueError, match="perturb must keep shape and dtype, y float32"):
        uj.unroll(affine, 0.5, ROWS, 0.0, num_layers=2, record=None, perturb=lambda layer, before, after: after[:1])
