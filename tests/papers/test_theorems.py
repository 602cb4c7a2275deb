"""Quantities of the constrained paper's theorems."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from papers import theorems


def test_the_best_denoiser_is_the_posterior_mean():
    sets = jax.jit(theorems.draw_sets, static_argnums=1)(jax.random.key(0), 5)
    noisy, clean = map(np.asarray, sets)
    tokens, truth = (part.reshape(-1, 1, 16) for part in (noisy, clean))
    atoms = np.asarray(theorems.ATOM, float)
    squares = np.sum((tokens - atoms) ** 2, axis=-1)
    weights = np.exp(-0.5 * squares / theorems.NOISE**2)
    means = weights @ atoms / weights.sum(axis=1, keepdims=True)
    expected = np.mean((means - truth[:, 0]) ** 2) / theorems.NOISE**2
    loss = jax.jit(theorems.bayes_loss)(noisy, clean)
    assert_allclose(loss, expected, rtol=1e-4)


def test_the_sample_complexity_is_vacuous_for_all_networks():
    """Means of losses in [0, 1], the worst for Hoeffding's inequality among them,
    exceed it as rarely as it claims."""
    means = np.mean(
        np.random.default_rng(0).random((2000, theorems.SETS)) < 0.5, axis=1
    )
    assert (
        np.mean(np.abs(means - 0.5) > theorems.sample_complexity(1.0, 0))
        <= theorems.DELTA
    )
    assert theorems.sample_complexity(1.0, 3840) > 1.0


@pytest.mark.nightly
def test_the_gap_is_from_the_last_loss_to_a_lagrangian():
    sets = theorems.draw_sets(jax.random.key(2), 64)
    trained = theorems.train(jax.random.key(3), sets, 10, rate=1.0)
    prices = np.array([trained.multipliers[name] for name in theorems.CONSTRAINTS])
    assert np.all(prices >= 0.0)
    assert np.any(prices > 0.0)
    primal, least = theorems.estimate_gap(trained, sets, 10)
    losses = np.asarray(theorems.layer_losses(trained.params, *sets), float)
    violations = losses[1:] - (1.0 - theorems.ALPHA) * losses[:-1]
    assert primal == pytest.approx(losses[-1])
    assert least <= losses[-1] + prices @ violations + 1e-5
