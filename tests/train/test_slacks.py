"""Explicit slacks of a run: their steps and those of multipliers in NumPy, and the
restart after every epoch."""

import jax
import numpy as np
from numpy.testing import assert_allclose

from tests.train.ladder import batches, train

RATE, SLACK_RATE, BETA, STEPS = 0.3, 0.2, 2.0, 6
OPTIONS = {
    "steps": STEPS,
    "batch_size": 32,
    "dual.optimizer": "sgd",
    "dual.learning_rate": RATE,
    "constraints.reference": 0.4,
    "constraints.alpha": (0.6,),
    "constraints.resilience": BETA,
    "constraints.slacks": "explicit",
    "constraints.slack_rate": SLACK_RATE,
}


def test_slacks_descend_beside_the_parameters_and_restart_after_an_epoch(changed):
    config = changed(**OPTIONS)
    config.check()
    data = batches(STEPS, 32)
    _, rows = jax.device_get(jax.jit(lambda: train(config, data))())
    slacks = multipliers = np.zeros(3)
    largest = 0.0
    for step, violations in enumerate(rows.prices.violations.astype(np.float64)):
        assert_allclose(rows.prices.slacks[step], slacks, atol=1e-5)
        assert_allclose(
            rows.prices.multipliers[step], multipliers, rtol=1e-4, atol=1e-5
        )
        gradient = (BETA * slacks - multipliers) / (1.0 + multipliers.sum())
        multipliers = np.maximum(multipliers + RATE * (violations - slacks), 0.0)
        slacks = np.maximum(slacks - SLACK_RATE * gradient, 0.0)
        if step % 2 == 1:  # an epoch has two steps
            slacks = np.zeros(3)
        largest = max(largest, slacks.max())
    assert largest > 0.01, "no slack ever rose"
