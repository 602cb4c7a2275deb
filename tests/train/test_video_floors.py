"""Floors of video, least squares on the models' noise, and disturbed frames, against
NumPy, scikit-learn and SciPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import ndimage

from tests.tasks import drawn
from tests.train.conftest import Clips, traced_task
from unroll_jax.train.core.evaluate import evaluate_trials
from unroll_jax.train.tasks.video import models as video_models
from unroll_jax.train.tasks.video.data import (
    VideoSpec,
    disturbed_windows,
    frames_from,
    patch_sequences,
)
from unroll_jax.train.tasks.video.models import (
    CLASSICAL,
    LINEAR,
    LinearLayer,
    build_video_model,
    fit_linear,
    floors,
    total_variation,
)
from unroll_jax.train.tasks.video.options import Disturbance, ModelConfig, VideoConfig
from unroll_jax.train.tasks.video.task import make

LENGTH, PIXELS, VARIANCE = 4, 6, 0.03


@pytest.fixture(scope="module")
def sequences():
    """60 sequences of 4 frames of 6 pixels that are alike, uint8."""
    rng = np.random.default_rng(0)
    place, drift = (
        rng.uniform(40, 200, (60, 1, PIXELS)),
        rng.normal(0, 12, (60, LENGTH, 1)),
    )
    return np.clip(
        place + drift + rng.normal(0, 8, (60, LENGTH, PIXELS)), 0, 255
    ).astype(np.uint8)


def _inputs(sequences):
    means = np.broadcast_to(sequences.mean(axis=1, keepdims=True), sequences.shape)
    return np.concatenate([sequences, means], axis=-1).reshape(
        -1, 2 * sequences.shape[-1]
    )


def test_the_linear_layer_is_least_squares_under_expected_noise(sequences):
    layer = fit_linear([sequences[:25], sequences[25:]], VARIANCE)
    clean = sequences / 255.0
    inputs, targets = _inputs(clean), clean.reshape(-1, PIXELS)
    # The products of these rows are added to the normal equations by the noise of
    # frames and their means.
    of_both = [[1.0, 1.0 / LENGTH], [1.0 / LENGTH, 1.0 / LENGTH]]
    noise = VARIANCE * np.kron(of_both, np.eye(PIXELS))
    rows = np.sqrt(len(inputs)) * np.linalg.cholesky(noise).T
    ones, zeros = np.ones((len(inputs), 1)), np.zeros((len(rows), 1 + PIXELS))
    left = np.block([[inputs, ones], [rows, zeros[:, :1]]])
    right = np.concatenate([targets, zeros[:, 1:]])
    expected = np.linalg.lstsq(left, right)[0]
    coefficients = np.concatenate([layer.frame.T, layer.mean.T, layer.constant[None]])
    assert_allclose(coefficients, expected, rtol=1e-9, atol=1e-11)


def test_total_variation_cleans_frames():
    rng, clean = np.random.default_rng(4), np.zeros((8, 24, 24), np.float32)
    clean[:, 6:18, 6:18] = 1.0
    noisy = clean + 0.2 * rng.standard_normal(clean.shape).astype(np.float32)
    assert np.sqrt(np.mean((total_variation(noisy, 0.2) - clean) ** 2)) < 0.07


def test_the_floors_are_fitted_on_train_and_meet_the_noise(clips, changed, monkeypatch):
    """The noise that the models meet."""
    # ten sequences: two batches
    for module in ("task", "data"):
        monkeypatch.setattr(f"unroll_jax.train.tasks.video.{module}.BATCH_SIZE", 7)
    nothing, fitted = LinearLayer(np.eye(16), np.zeros((16, 16)), np.zeros(16)), []

    def spy(batches, variance):
        fitted.append((np.concatenate(list(batches)), variance))
        return nothing

    monkeypatch.setattr(video_models, "fit_linear", spy)
    monkeypatch.setattr(video_models, "total_variation", lambda noisy, deviation: noisy)
    floors.cache_clear()
    task = traced_task(changed(method="plain"), clips)
    params = drawn(task)
    figures = task.baselines(params, evaluate_trials(task, params)[1])
    floors.cache_clear()
    for name in (LINEAR, CLASSICAL):
        assert figures["floors"][name] == pytest.approx(
            figures["noisy_rmse"], rel=1e-5, abs=1e-9
        )
        assert figures["floor_shares"][name] == 1.0
    ((sequences, variance),) = fitted
    assert_array_equal(sequences, clips.splits["train"])
    assert variance == pytest.approx(0.15 * clips.spec.pixel_std)


SIDE, PATCH, FRAMES, WINDOWS = 12, 4, 6, 24


class Frames(Clips):
    def __init__(self):
        frames = np.random.default_rng(0).integers(
            1, 255, (WINDOWS, FRAMES, SIDE, SIDE), np.uint8
        )
        whole = np.concatenate(
            [patch_sequences(window, side=PATCH) for window in frames]
        )
        self.frames, self.splits = (
            frames / 255.0,
            {"train": whole[:90], "validation": whole[:18], "test": whole},
        )
        self.spec = VideoSpec(float(np.std(whole / 255.0)), FRAMES, PATCH**2, SIDE)


FRAMES_OF = Frames()


def seen(disturbance, gamma=0.0):
    batches = disturbed_windows(
        FRAMES_OF, "test", FRAMES_OF.spec, disturbance, gamma * FRAMES_OF.spec.pixel_std
    )
    return pictures(np.concatenate([noisy for noisy, _ in batches]))


def pictures(sequences):
    windows = np.asarray(sequences).reshape(WINDOWS, -1, FRAMES, PATCH**2)
    return np.stack(
        [frames_from(window, (SIDE, SIDE), side=PATCH) for window in windows]
    )


def test_a_blur_crosses_patches_and_no_frames(
    monkeypatch,
):
    expected = ndimage.gaussian_filter(FRAMES_OF.frames, (0.0, 0.0, 1.3, 1.3))
    assert_allclose(seen(Disturbance("blur", 1.3)), expected, atol=1e-6)
    whole = seen(Disturbance("dropped", 0.4), gamma=0.1)
    monkeypatch.setattr("unroll_jax.train.tasks.video.data.BATCH_SIZE", 7 * 9)
    assert_allclose(seen(Disturbance("dropped", 0.4), gamma=0.1), whole, atol=1e-6)


def test_salt_and_pepper_are_the_stated_share_of_pixels():
    noisy = seen(Disturbance("salt-and-pepper", 0.2))
    for value in (0.0, 1.0):
        assert np.mean(noisy == value) == pytest.approx(
            0.1, abs=5 * np.sqrt(0.1 / noisy.size)
        )
    kept = (noisy != 0.0) & (noisy != 1.0)
    assert_allclose(noisy[kept], FRAMES_OF.frames[kept], rtol=1e-6)


def test_a_lost_frame_shows_the_last_that_arrived():
    frames, clean = seen(Disturbance("dropped", 0.4)), FRAMES_OF.frames
    lost = np.any(~np.isclose(frames, clean), axis=(2, 3))
    assert np.mean(lost) == pytest.approx(0.4, abs=5 * np.sqrt(0.24 / lost.size))
    for window in range(WINDOWS):
        shown = np.zeros((SIDE, SIDE))
        for frame in range(FRAMES):
            shown = shown if lost[window, frame] else clean[window, frame]
            assert_allclose(frames[window, frame], shown, atol=1e-6)
    assert len(np.unique(lost, axis=0)) > 10  # windows have different draws


@pytest.mark.slow
def test_an_evaluation_has_the_rmse_of_disturbed_frames():
    words = ("blur=1.3", "dropped=0.4")
    model = ModelConfig(num_layers=1, rank=4)
    options = {"train_gamma": 0.0, "test_gammas": (0.0,), "test_disturbances": words}
    config = VideoConfig(method="plain", model=model, **options)
    task = make(config, FRAMES_OF)
    params = drawn(task)
    scores, readings = evaluate_trials(task, params)
    of_input = task.baselines(params, readings)["input_disturbed_rmse"]
    assert tuple(scores["disturbed_rmse"]) == tuple(of_input) == words
    clean = FRAMES_OF.frames
    blurred = ndimage.gaussian_filter(clean, (0.0, 0.0, 1.3, 1.3))
    patches = np.concatenate([patch_sequences(each, side=PATCH) for each in blurred])
    module = build_video_model(config, FRAMES_OF.spec, np.float32).module
    outputs = pictures(module.apply(params, jnp.float32(patches))[-1])
    for found, shown in ((of_input, blurred), (scores["disturbed_rmse"], outputs)):
        rmse = 255.0 * np.sqrt(np.mean((shown - clean) ** 2))
        assert found["blur=1.3"] == pytest.approx(rmse, rel=1e-4)
