"""Frames of a test clip as runs clean them: on the data of their evaluation, with noise of the strength asked for."""

from itertools import islice

import numpy as np
import pytest
from PIL import Image

from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.loading import open_run
from unroll_jax.train.report.gallery import frame_rmse, named_runs
from unroll_jax.train.tasks.video_frames import show_frames

pytestmark = pytest.mark.xdist_group("video-runs")


def test_runs_are_shown_the_frames_and_the_noise_that_their_evaluation_has(both, clips):
    folders = named_runs([both / "erm", both / "constrained"])
    assert list(folders) == ["plain", "constrained"]
    with clips_in_memory():
        shown = show_frames(folders, gammas=(0.0, 0.3), window=1, log=lambda _: None)
        _, task = open_run(folders["plain"], log=lambda _: None)
    window = next(islice(clips.examples("test", batch_size=1), 1, None))
    np.testing.assert_allclose(shown[0.0]["clean"].ravel(), window.ravel(), atol=1e-3)
    np.testing.assert_array_equal(shown[0.0]["noisy"], shown[0.0]["clean"])
    spread = (shown[0.3]["noisy"] - shown[0.3]["clean"]).std() / 255.0
    assert spread == pytest.approx(np.sqrt(0.3 * task.spec.pixel_std), rel=0.3)
    assert not np.array_equal(shown[0.3]["plain"], shown[0.3]["constrained"])
    assert frame_rmse(shown[0.3]["noisy"], shown[0.3]["clean"]) > frame_rmse(shown[0.3]["plain"], shown[0.3]["clean"])


def test_a_report_draws_the_frames_of_its_runs_on_request(both, clips, tmp_path):
    with clips_in_memory():
        assert main(["report", str(both / "erm"), str(both / "constrained"), "--gallery", "--out", str(tmp_path)]) == 0
        with Image.open(tmp_path / "gallery.png") as picture, Image.open(tmp_path / "gallery.gif") as clip:
            assert (picture.format, clip.n_frames) == ("PNG", clips.spec.num_tokens)
        with pytest.raises(UserError, match="the test split has 10 windows of frames, got window 10"):
            show_frames({"plain": both / "erm"}, window=10, log=lambda _: None)
