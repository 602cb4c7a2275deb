"""Curricula of early losses, against LayerSkip's definitions written out in NumPy."""

import jax
import numpy as np
import pytest

from unroll_jax.constrained import exit_curriculum

WEIGHTS = (0.1, 0.2, 0.3, 0.15, 0.25)


def expected(counts):
    kept = np.where([*counts, True], WEIGHTS, 0.0)
    return kept * sum(WEIGHTS) / kept.sum()


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
def test_the_rotational_curriculum_counts_every_rth_early_loss_and_moves_on(interval):
    at = jax.jit(exit_curriculum(WEIGHTS, kind="rotational", interval=interval))
    for step in range(8):
        np.testing.assert_allclose(
            at(step), expected([place % interval == step % interval for place in range(4)]), rtol=1e-6
        )


@pytest.mark.parametrize("num_steps", [16, 100, 3])
def test_the_gradual_curriculum_adds_early_losses_from_the_last_one_on(num_steps):
    at = jax.jit(exit_curriculum(WEIGHTS, kind="gradual", num_steps=num_steps))
    for step in range(num_steps):
        joined = int(step // (num_steps / 2 / 4))  # one each T / (2 n) steps
        np.testing.assert_allclose(at(step), expected([4 - place <= joined for place in range(4)]), rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ((1.0,), {"kind": "gradual"}, "weights must be two numbers or more, the last positive"),
        ((1.0, 0.0), {"kind": "gradual"}, "weights must be two numbers or more, the last positive"),
        (WEIGHTS, {"kind": "linear"}, "kind must be one of .*rotational.*, got"),
        (WEIGHTS, {"kind": "rotational", "interval": 0}, "interval must be at least 1"),
    ],
)
def test_a_curriculum_that_cannot_be_is_an_error(weights, options, message):
    with pytest.raises(ValueError, match=message):
        exit_curriculum(weights, **options)
