"""The floors of video denoising: least squares against NumPy and scikit-learn, whole frames, the models' own noise."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.train.conftest import traced_task
from unroll_jax.train.data.video import patch_sequences
from unroll_jax.train.tasks import video_models
from unroll_jax.train.tasks.video_models import (
    CLASSICAL,
    LINEAR,
    LinearLayer,
    fit_linear,
    floors,
    some_squares,
    total_variation,
)

LENGTH, PIXELS, VARIANCE = 4, 6, 0.03


@pytest.fixture(scope="module")
def sequences():
    """60 sequences of 4 frames of 6 pixels that are alike, uint8."""
    rng = np.random.default_rng(0)
    place, drift = rng.uniform(40, 200, (60, 1, PIXELS)), rng.normal(0, 12, (60, LENGTH, 1))
    return np.clip(place + drift + rng.normal(0, 8, (60, LENGTH, PIXELS)), 0, 255).astype(np.uint8)


def _inputs(sequences):
    """Frame and temporal mean, a row for every frame."""
    means = np.broadcast_to(sequences.mean(axis=1, keepdims=True), sequences.shape)
    return np.concatenate([sequences, means], axis=-1).reshape(-1, 2 * sequences.shape[-1])


def test_the_linear_layer_is_least_squares_under_the_expected_noise(sequences):
    layer = fit_linear([sequences[:25], sequences[25:]], VARIANCE)
    clean = sequences / 255.0
    inputs, targets = _inputs(clean), clean.reshape(-1, PIXELS)
    # Rows whose products are what the noise of frames and their means adds to the normal equations.
    noise = VARIANCE * np.kron([[1.0, 1.0 / LENGTH], [1.0 / LENGTH, 1.0 / LENGTH]], np.eye(PIXELS))
    rows = np.sqrt(len(inputs)) * np.linalg.cholesky(noise).T
    left = np.block([[inputs, np.ones((len(inputs), 1))], [rows, np.zeros((len(rows), 1))]])
    expected = np.linalg.lstsq(left, np.concatenate([targets, np.zeros((len(rows), PIXELS))]))[0]
    coefficients = np.concatenate([layer.frame.T, layer.mean.T, layer.constant[None]])
    np.testing.assert_allclose(coefficients, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [1, LENGTH])
def test_without_noise_the_linear_layer_changes_nothing(sequences, length):
    layer = fit_linear([sequences[:, :length]], 0.0)
    clean = (sequences[:, :length] / 255.0).astype(np.float32)
    np.testing.assert_allclose(layer(clean), clean, atol=1e-5)


def test_squares_are_those_of_the_frames_and_tile_them_equally_often():
    rng = np.random.default_rng(2)
    frames = rng.uniform(size=(20, 2, 20, 20))  # 20 windows of 2 frames of 10 x 10 patches
    sequences = np.concatenate([patch_sequences(window, side=2) for window in frames])
    squares = video_models._frames(sequences[some_squares(len(sequences), 10)], 2)
    places = []
    for window, square in zip(frames, squares, strict=True):
        tiles = {(i, j): window[:, i : i + 10, j : j + 10] for i in (0, 10) for j in (0, 10)}
        places += [place for place, tile in tiles.items() if np.array_equal(tile, square)]
    assert [places.count(place) for place in tiles] == [5, 5, 5, 5]


def test_total_variation_cleans_frames_and_leaves_clean_ones():
    rng, clean = np.random.default_rng(4), np.zeros((8, 24, 24), np.float32)
    clean[:, 6:18, 6:18] = 1.0
    noisy = clean + 0.2 * rng.standard_normal(clean.shape).astype(np.float32)
    assert np.sqrt(np.mean((total_variation(noisy, 0.2) - clean) ** 2)) < 0.07
    assert total_variation(clean, 0.0) is clean


@pytest.fixture
def evaluated(changed):
    """``evaluated(clips, **fields)``: the figures of an untrained model, computed anew."""

    def evaluate(clips, **fields):
        floors.cache_clear()
        task = traced_task(changed(method="plain", **fields), clips)
        return task.evaluate(task.init(jax.random.key(0)), Path("unused"))[0]

    return evaluate


def test_the_floors_meet_the_noise_that_the_models_meet(evaluated, clips, monkeypatch):
    monkeypatch.setattr("unroll_jax.train.tasks.video_samples.BATCH_SIZE", 7)  # ten sequences: two batches
    nothing = LinearLayer(np.eye(16), np.zeros((16, 16)), np.zeros(16))
    monkeypatch.setattr(video_models, "fit_linear", lambda *_: nothing)
    monkeypatch.setattr(video_models, "total_variation", lambda noisy, deviation: noisy)
    evaluation = evaluated(clips)
    for name in (LINEAR, CLASSICAL):
        for gamma, rmse in evaluation["noisy_rmse"].items():
            assert evaluation["floors"][name][gamma] == pytest.approx(rmse, rel=1e-5, abs=1e-9), (name, gamma)
    assert evaluation["floor_shares"] == {LINEAR: 1.0, CLASSICAL: 1.0}


def test_the_floors_are_fitted_on_the_train_split_at_its_noise_alone(evaluated, clips, monkeypatch):
    fitted, fit = [], fit_linear

    def spy(batches, variance):
        fitted.append((np.concatenate(list(batches)), variance))
        return fit([fitted[-1][0]], variance)

    monkeypatch.setattr(video_models, "fit_linear", spy)
    evaluated(clips, test_gammas=(0.0, 0.3))
    ((sequences, variance),) = fitted
    np.testing.assert_array_equal(sequences, clips.splits["train"])
    assert variance == pytest.approx(0.15 * clips.spec.pixel_std)
