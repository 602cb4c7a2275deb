"""Mean losses over many batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.constrained import add_losses, empty_mean


@pytest.mark.usefixtures("x64")
def test_batches_of_any_size_give_the_mean_over_all_samples():
    samples = np.random.default_rng(0).uniform(size=(50, 4))
    mean, add = empty_mean(3), jax.jit(add_losses)
    for batch in np.split(samples, [3, 20, 21]):
        mean = add(mean, jnp.asarray(batch.mean(axis=0)), len(batch))
    np.testing.assert_allclose(mean.losses, samples.mean(axis=0), rtol=1e-13)
    assert int(mean.samples) == 50


def test_an_epoch_in_float32_loses_no_digits():
    losses = jnp.asarray(np.random.default_rng(1).uniform(1.0, 2.0, size=(5000, 2)), jnp.float32)
    mean, _ = jax.jit(
        lambda: jax.lax.scan(lambda mean, row: (add_losses(mean, row, 64), None), empty_mean(1), losses)
    )()
    np.testing.assert_allclose(mean.losses, np.asarray(losses, np.float64).mean(axis=0), rtol=1e-5)


def test_an_epochs_dual_step_is_that_of_the_train_set():
    samples = np.random.default_rng(2).uniform(size=(30, 3))
    mean = empty_mean(2)
    for batch in np.split(samples, [10, 25]):
        mean = add_losses(mean, jnp.asarray(batch.mean(axis=0), jnp.float32), len(batch))
    actual = uj.descent_constraints(0.2)(mean.losses)
    whole = samples.mean(axis=0)
    np.testing.assert_allclose(actual, whole[1:] - 0.8 * whole[:-1], rtol=1e-4, atol=1e-6)


def test_no_gradient_flows_to_the_losses():
    gradient = jax.grad(lambda losses: jnp.sum(add_losses(empty_mean(1), losses, 2).losses))(jnp.ones(2))
    assert not jnp.any(gradient)


def test_a_model_has_a_layer():
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        empty_mean(0)
