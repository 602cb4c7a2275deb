"""The noise that judging a run takes, which is that of its training, what gamma is stated beside, and lost tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.data.tokens import TokenBatch
from unroll_jax.train.step import init_state, validate
from unroll_jax.train.tasks.common import Trial
from unroll_jax.train.tasks.early_exit import calibrate
from unroll_jax.train.tasks.text_models import lose_tokens


def test_validation_is_at_the_noise_of_training(task_of):
    task = task_of("text-ut", train_gamma=0.6)
    state = init_state(task)
    row, _, _ = validate(task, state)
    noisy, clean = (task.reading(state.params, "validation", Trial(gamma)).losses.mean(axis=0) for gamma in (0.6, 0.0))
    np.testing.assert_allclose(row["layer_losses"], noisy, rtol=1e-5)
    assert not np.allclose(noisy, clean, rtol=1e-3)


def test_early_exit_is_calibrated_at_the_noise_of_training(built, tmp_path):
    task, params = built("text-ut", train_gamma=0.6, test_gammas=(0.0, 2.0))
    calibration = task.evaluate(params, tmp_path)[0]["early_exit"]["calibration"]
    validation = task.reading(params, "validation", Trial(0.6))
    expected = calibrate(validation.losses, validation.entropies)
    for layer, entropies, improvements in zip(calibration, *expected, strict=True):
        assert layer["entropies"] == pytest.approx(entropies, rel=1e-5)
        assert layer["improvements"] == pytest.approx(improvements, rel=1e-4, abs=1e-6)


def test_embeddings_that_are_drawn_have_the_standard_deviation_that_noise_is_stated_beside(built, experiment):
    task, params = built(experiment)
    table = params["params"].get("encoder", params["params"])["embeddings"]["word"]["embedding"]
    assert table.shape[0] == task.data.vocabulary_size
    assert np.std(jax.device_get(table)) == pytest.approx(task.data.embedding_std, rel=0.1)
    assert task.data.embedding_std == 1.0


def test_lost_tokens_are_the_share_that_is_said_the_first_stays_and_padding_stays_masked():
    lengths = np.random.default_rng(0).integers(1, 33, 2000)
    mask = np.arange(32) < lengths[:, None]
    zeros = np.zeros((2000, 32), np.int32)
    batch = TokenBatch(zeros, mask, zeros, zeros[:, 0])
    arrived = np.asarray(jax.jit(lose_tokens)(batch, jax.random.key(0), 0.3).mask)
    assert arrived[:, 0].all()
    assert not arrived[~mask].any()
    others = mask[:, 1:].sum()
    assert np.mean(~arrived[:, 1:][mask[:, 1:]]) == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / others))
    assert len(np.unique(arrived[lengths == 32], axis=0)) > 30  # each text by a draw of its own


@pytest.mark.slow
def test_an_evaluation_without_any_token_but_the_first_is_that_of_the_first_tokens(built, tmp_path):
    fields = {"train_gamma": 0.0, "method": "erm", "test_gammas": (0.0,), "test_disturbances": ("dropped=1",)}
    task, params = built("text-ut", **fields)
    accuracies = task.evaluate(params, tmp_path)[0]["disturbed_accuracy"]
    right = []
    for tokens, _, types, labels in task.data.tokens.examples("test", batch_size=20):
        first = TokenBatch(*(jnp.asarray(part[:, :1]) for part in (tokens, tokens >= 0, types)), jnp.asarray(labels))
        logits = task.outputs(params, first, None, lambda logits: logits)[-1]
        right.append(np.argmax(logits, axis=-1) == labels)
    assert accuracies == {"dropped=1": pytest.approx(np.mean(np.concatenate(right)))}
