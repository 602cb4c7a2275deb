"""Runs of sparse coding from training to report, and what comes back of them without data."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.sparse_coding.conftest import BLOBS, small
from unroll_jax.train import load
from unroll_jax.train.exporting import export
from unroll_jax.train.main import fit

pytestmark = [pytest.mark.xdist_group("sparse-coding"), pytest.mark.slow]
FLOORS = ("ISTA", "FISTA", "linear map")


def quiet(line):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folders of a plain and a constrained run, what was logged, and where."""
    root, log = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unroll_jax.train.tasks.sparse_coding.load", lambda config, *, log: BLOBS)
        config = small(method="both", test_layer_noises=(0.2, 0.1))
        folders = fit(config, out=root, experiment="sparse-coding", log=log.append)
    return folders, log, root


def test_evaluations_hold_errors_under_noise_with_disturbed_layers_and_without_training(finished):
    folders, log, _ = finished
    for folder in folders:
        evaluation = json.loads((folder / "evaluation.json").read_text())
        levels = {"0.0", "0.5"}
        assert set(evaluation["relative_error"]) == levels
        assert {name: set(errors) for name, errors in evaluation["floors"].items()} == dict.fromkeys(FLOORS, levels)
        assert evaluation["floor_shares"] == dict.fromkeys(FLOORS, 1.0)
        for name in ("", "ista_"):
            assert list(evaluation[f"{name}layer_noise_relative_error"]) == ["0.1", "0.2"]
            assert list(evaluation[f"{name}lost_layer_relative_error"]) == ["1", "2", "3"]
        assert evaluation["num_examples"] == 20
        assert evaluation["parameters"] == 3 * (20 * 20 + 20 * 16 + 20)
        error = evaluation["layer_losses"][-1] / (0.5 * BLOBS.square_norms["test"])
        assert evaluation["relative_error"]["0.0"] == pytest.approx(error, rel=1e-5)
        assert evaluation["floors"]["FISTA"]["0.0"] < evaluation["floors"]["ISTA"]["0.0"] < 1.0
    assert any("relative error 0." in line and "of ISTA at gamma 0.0, unconstrained" in line for line in log)


def test_codes_come_from_a_run_and_from_its_export_without_data(finished, in_memory, tmp_path, monkeypatch):
    folder, image = finished[0][-1], BLOBS.whole("test").images[0].reshape(4, 4)
    export(folder, tmp_path / "model", log=quiet)

    def refuse(*arguments, **options):
        raise AssertionError("data are read")

    monkeypatch.setattr("unroll_jax.train.tasks.sparse_coding.load", refuse)
    Image.fromarray(image).save(tmp_path / "image.png")
    models, given = [load(place) for place in (folder, tmp_path / "model")], (image, tmp_path / "image.png")
    predictions = [model.predict(one) for model in models for one in given]
    for one in predictions:
        assert (one.code.shape, one.image.shape, one.image.dtype) == ((20,), (4, 4), np.uint8)
        np.testing.assert_array_equal(one.code, predictions[0].code)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "coded.code, coded.image" in card
