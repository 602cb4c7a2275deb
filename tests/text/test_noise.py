"""The noise that judging a run takes, which is that of its training, and what gamma is stated beside."""

import jax
import numpy as np
import pytest

from train.constrained import init_state
from train.text.early_exit import calibrate
from train.text.evaluate import evaluate_text
from train.text.reading import make_split_reading
from train.text.recipe import text_recipe


def test_validation_is_at_the_noise_of_training(built):
    config, material, task, _ = built("text-ut", train_gamma=0.6)
    state = init_state(config, task)
    row = text_recipe(config, task, material).validate(state).row
    reading = make_split_reading(task, material)
    noisy, clean = (reading(state.params, "validation", gamma).losses.mean(axis=0) for gamma in (0.6, 0.0))
    np.testing.assert_allclose(row["layer_losses"], noisy, rtol=1e-5)
    assert not np.allclose(noisy, clean, rtol=1e-3)


def test_early_exit_is_calibrated_at_the_noise_of_training(built):
    config, material, task, params = built("text-ut", train_gamma=0.6, test_gammas=(0.0, 2.0))
    found = evaluate_text(config, task, material, params, np.zeros(3))["early_exit"]["calibration"]
    validation = make_split_reading(task, material)(params, "validation", 0.6)
    expected = calibrate(validation.losses, validation.entropies)
    for layer, entropies, improvements in zip(found, *expected, strict=True):
        assert layer["entropies"] == pytest.approx(entropies, rel=1e-5)
        assert layer["improvements"] == pytest.approx(improvements, rel=1e-4, abs=1e-6)


def test_embeddings_that_are_drawn_have_the_standard_deviation_that_noise_is_stated_beside(built, experiment):
    _, material, _, params = built(experiment)
    own = params["params"].get("encoder", params["params"])["embeddings"]["word"]["embedding"]
    assert own.shape[0] == material.vocabulary_size
    assert np.std(jax.device_get(own)) == pytest.approx(material.embedding_std, rel=0.1)
    assert material.embedding_std == 1.0
