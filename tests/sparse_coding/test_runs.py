"""Runs of sparse coding from training to report, and their models without data."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from tests.sparse_coding.conftest import BLOBS, NOISY, small, task_of
from tests.tasks import assert_resumes, without_data
from tests.train.commands import read

pytestmark = [
    pytest.mark.xdist_group("sparse-coding"),
    pytest.mark.slow,
    pytest.mark.usefixtures("in_memory"),
]
FLOORS = ("ISTA", "FISTA", "linear map")


def test_evaluations_hold_errors_under_noise_and_of_floors(
    finished,
):
    for folder in finished[0]:
        evaluation, levels = read(folder / "evaluation.json"), {"0.0", "0.5"}
        assert set(evaluation["relative_error"]) == levels
        assert {
            name: set(errors) for name, errors in evaluation["floors"].items()
        } == dict.fromkeys(FLOORS, levels)
        for name in ("", "ista_"):
            assert list(evaluation[f"{name}layer_noise_relative_error"]) == [
                "0.1",
                "0.2",
            ]
            assert list(evaluation[f"{name}lost_layer_relative_error"]) == [
                "1",
                "2",
                "3",
            ]
        error = evaluation["layer_losses"][-1] / (0.5 * BLOBS.square_norms["test"])
        assert evaluation["relative_error"]["0.0"] == pytest.approx(error, rel=1e-5)
        assert (
            evaluation["floors"]["FISTA"]["0.0"]
            < evaluation["floors"]["ISTA"]["0.0"]
            < 1.0
        )


def test_a_run_cut_back_ends_like_the_whole(finished, tmp_path):
    config = dict(small(**NOISY).variants())["constrained"]
    assert_resumes(
        config,
        finished[0][-1],
        tmp_path / "run",
        experiment="sparse-coding",
        steps=(2, 4),
    )


def test_codes_come_from_a_run_and_its_export(finished, tmp_path):
    image = BLOBS.whole("test").images[0].reshape(4, 4)
    Image.fromarray(image).save(tmp_path / "image.png")
    with without_data(
        finished[0][-1],
        tmp_path / "model",
        "unroll_jax.train.tasks.sparse_coding.task.load",
    ) as models:
        expected = task_of(small()).predict(models[0].params, image)
        codes = [
            model.predict(given)
            for model in models
            for given in (image, tmp_path / "image.png")
        ]
        for one in codes:
            assert (one.code.shape, one.image.shape, one.image.dtype) == (
                (20,),
                (4, 4),
                np.uint8,
            )
            assert_array_equal(one.code, codes[0].code)
            assert_allclose(one.code, expected.code, rtol=1e-5, atol=1e-6)
