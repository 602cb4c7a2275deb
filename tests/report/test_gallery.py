"""Frames of clips with and without noise: what the pictures hold, checked against NumPy."""

import io

import numpy as np
import pytest
from PIL import Image

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report.gallery import draw_clip, draw_gallery


@pytest.fixture
def frames():
    generator = np.random.default_rng(0)
    clean = generator.uniform(0, 255, (5, 20, 20)).astype(np.float32)
    noisy = {gamma: clean + generator.normal(0, 255 * gamma, clean.shape).astype(np.float32) for gamma in (0.1, 0.3)}
    return {gamma: {"clean": clean, "noisy": each, "plain": 0.5 * (clean + each)} for gamma, each in noisy.items()}


def test_a_row_for_each_noise_and_the_error_of_the_frame_shown_above_it(frames):
    figure = draw_gallery(frames, frame=2)
    axes = np.array(figure.axes).reshape(2, 3)
    assert [row[0].get_ylabel() for row in axes] == ["test gamma 0.1", "test gamma 0.3"]
    for row, by_name in zip(axes, frames.values(), strict=True):
        for place, name in enumerate(by_name):
            shown = row[place].images[0]
            np.testing.assert_array_equal(shown.get_array(), by_name[name][2])
            assert shown.get_clim() == (0, 255)
        error = by_name["plain"][2].astype(np.float64) - by_name["clean"][2]
        assert row[2].get_title() == f"plain\nRMSE {np.sqrt((error**2).mean()):.1f}"


def test_the_clip_shows_every_frame_side_by_side_in_exact_grey_levels(frames):
    clip = Image.open(io.BytesIO(draw_clip(frames, 0.3)))
    assert (clip.format, clip.n_frames) == ("GIF", 5)
    assert clip.size[0] == 3 * 160
    for frame in range(5):
        clip.seek(frame)
        pixels = np.asarray(clip.convert("L"))[-160:]
        for place, name in enumerate(frames[0.3]):
            expected = np.clip(np.round(frames[0.3][name][frame]), 0, 255)
            np.testing.assert_array_equal(pixels[4::8, 160 * place + 4 : 160 * (place + 1) : 8], expected)


def test_a_gallery_of_too_many_runs_is_refused(frames):
    many = {gamma: by_name | {f"run{i}": by_name["noisy"] for i in range(6)} for gamma, by_name in frames.items()}
    with pytest.raises(UserError, match="a gallery has room for 6 runs, got 7"):
        draw_gallery(many)
