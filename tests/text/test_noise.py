"""The noise that judging a run takes, which is that of its training, and what gamma is stated beside."""

import jax
import numpy as np
import pytest

from unroll_jax.train.step import init_state, validate
from unroll_jax.train.tasks.common import Trial


def test_validation_is_at_the_noise_of_training(task_of):
    task = task_of("text-ut", train_gamma=0.6)
    state = init_state(task)
    row, _ = validate(task, state)
    noisy, clean = (task.reading(state.params, "validation", Trial(gamma)).losses.mean(axis=0) for gamma in (0.6, 0.0))
    np.testing.assert_allclose(row["layer_losses"], noisy, rtol=1e-5)
    assert not np.allclose(noisy, clean, rtol=1e-3)


def test_embeddings_that_are_drawn_have_the_standard_deviation_that_noise_is_stated_beside(built, experiment):
    task, params = built(experiment)
    table = params["params"].get("encoder", params["params"])["embeddings"]["word"]["embedding"]
    assert table.shape[0] == task.data.vocabulary_size
    assert np.std(jax.device_get(table)) == pytest.approx(task.data.embedding_std, rel=0.1)
    assert task.data.embedding_std == 1.0
