"""Weights and curricula of early losses, against LayerSkip's definitions written out in NumPy."""

import jax
import numpy as np
import pytest

from unroll_jax.train.config.exit_weights import exit_curriculum, exit_weights

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


def test_weights_are_the_sums_of_their_definitions_and_add_up_to_one():
    """Of layers 0 to 12; with layers counted from 0, as LayerSkip does, l is one less."""
    layerskip = [0.2 * sum(range(layer)) for layer in range(12)] + [11 + 0.2 * sum(range(11))]
    torchtune = [0.2 * sum(range(layer + 1)) for layer in range(12)] + [sum(range(13))]
    for source, expected in (("layerskip", layerskip), ("torchtune", torchtune)):
        actual = exit_weights(range(13), scale=0.2, source=source)
        np.testing.assert_allclose(actual, np.array(expected) / sum(expected), rtol=1e-12)
