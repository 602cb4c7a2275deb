"""Disturbed frames of video against SciPy and counts, over patches that a frame is cut into; words that are refused."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from tests.train.conftest import Clips
from unroll_jax.train.config.video import Disturbance, ModelConfig, VideoConfig
from unroll_jax.train.data.video import VideoSpec, frames_from, patch_sequences
from unroll_jax.train.tasks.video import VideoTask
from unroll_jax.train.tasks.video_samples import blur, whole_windows, window_disturbance

SIDE, PATCH, FRAMES, WINDOWS = 12, 4, 6, 50


class Frames(Clips):
    """Sequences of 6 frames of 12 x 12 pixels, in 9 patches: 50 windows to test on."""

    def __init__(self):
        frames = np.random.default_rng(0).integers(1, 255, (WINDOWS, FRAMES, SIDE, SIDE), np.uint8)
        whole = np.concatenate([patch_sequences(window, side=PATCH) for window in frames])
        self.frames, self.splits = frames / 255.0, {"train": whole[:90], "validation": whole[:18], "test": whole}
        self.spec = VideoSpec(float(np.std(whole / 255.0)), FRAMES, PATCH**2, SIDE)


FRAMES_OF = Frames()


def seen(disturbance, gamma=0.0):
    """The frames that the model is given under a disturbance, (windows, frames, height, width)."""
    disturb = jax.jit(window_disturbance(FRAMES_OF.spec, disturbance, gamma * FRAMES_OF.spec.pixel_std))
    noisy = np.concatenate(
        [np.asarray(disturb(*batch)[0]) for batch in whole_windows(FRAMES_OF, "test", (SIDE // PATCH) ** 2)]
    )
    windows = noisy.reshape(WINDOWS, -1, FRAMES, PATCH**2)
    return np.stack([frames_from(window, (SIDE, SIDE), side=PATCH) for window in windows])


@functools.cache
def evaluated(words):
    """What an evaluation says of a model of one layer that nothing has trained."""
    model = ModelConfig(num_layers=1, rank=4)
    config = VideoConfig(method="plain", train_gamma=0.0, test_gammas=(0.0,), test_disturbances=words, model=model)
    config.check()
    task = VideoTask(config, FRAMES_OF)
    params = jax.jit(task.init)(jax.random.key(0))
    return task.evaluate(params, Path("unused"))[0], task, params


def test_a_blur_crosses_patches_and_no_frames():
    expected = ndimage.gaussian_filter(FRAMES_OF.frames, (0.0, 0.0, 1.3, 1.3))
    np.testing.assert_allclose(seen(Disturbance("blur", 1.3)), expected, atol=1e-6)


@pytest.mark.parametrize("deviation", [0.1, 0.7, 2.125, 9.0])
def test_a_blur_is_that_of_scipy_also_where_it_is_wider_than_the_picture(deviation):
    frames = np.random.default_rng(0).uniform(size=(2, 13, 20))
    expected = ndimage.gaussian_filter(frames, (0.0, deviation, deviation))
    np.testing.assert_allclose(blur(jnp.asarray(frames, jnp.float32), deviation), expected, atol=1e-6)


def test_salt_and_pepper_are_the_share_of_pixels_that_is_said():
    noisy = seen(Disturbance("salt-and-pepper", 0.2))
    for value in (0.0, 1.0):
        assert np.mean(noisy == value) == pytest.approx(0.1, abs=5 * np.sqrt(0.1 / noisy.size))
    kept = (noisy != 0.0) & (noisy != 1.0)
    np.testing.assert_allclose(noisy[kept], FRAMES_OF.frames[kept], rtol=1e-6)


def test_a_lost_frame_is_lost_whole_and_shows_the_last_that_arrived():
    frames, clean = seen(Disturbance("dropped", 0.4)), FRAMES_OF.frames
    lost = np.array([[not np.allclose(frames[w, t], clean[w, t]) for t in range(FRAMES)] for w in range(WINDOWS)])
    assert np.mean(lost) == pytest.approx(0.4, abs=5 * np.sqrt(0.24 / lost.size))
    for window in range(WINDOWS):
        shown = np.zeros((SIDE, SIDE))
        for frame in range(FRAMES):
            shown = shown if lost[window, frame] else clean[window, frame]
            np.testing.assert_allclose(frames[window, frame], shown, atol=1e-6)
    assert len(np.unique(lost, axis=0)) > 10  # every window by a draw of its own


@pytest.mark.slow
def test_an_evaluation_has_the_rmse_of_the_last_layer_and_of_the_input():
    evaluation, task, params = evaluated(("blur=1.3", "dropped=0.4"))
    assert list(evaluation["disturbed_rmse"]) == list(evaluation["input_disturbed_rmse"]) == ["blur=1.3", "dropped=0.4"]
    blurred = ndimage.gaussian_filter(FRAMES_OF.frames, (0.0, 0.0, 1.3, 1.3))
    rmse = lambda frames: 255.0 * np.sqrt(np.mean((frames - FRAMES_OF.frames) ** 2))  # noqa: E731
    assert evaluation["input_disturbed_rmse"]["blur=1.3"] == pytest.approx(rmse(blurred), rel=1e-4)
    noisy = np.concatenate([patch_sequences(window, side=PATCH) for window in blurred]).astype(np.float32)
    output = np.asarray(task.outputs(params, jnp.asarray(noisy), lambda y: y)[-1]).reshape(
        WINDOWS, -1, FRAMES, PATCH**2
    )
    frames = np.stack([frames_from(window, (SIDE, SIDE), side=PATCH) for window in output])
    assert evaluation["disturbed_rmse"]["blur=1.3"] == pytest.approx(rmse(frames), rel=1e-4)


def test_figures_do_not_depend_on_how_many_windows_are_read_at_once(monkeypatch):
    whole = seen(Disturbance("dropped", 0.4), gamma=0.1)
    monkeypatch.setattr("unroll_jax.train.tasks.video_samples.BATCH_SIZE", 7 * 9)
    np.testing.assert_allclose(seen(Disturbance("dropped", 0.4), gamma=0.1), whole, atol=1e-6)
