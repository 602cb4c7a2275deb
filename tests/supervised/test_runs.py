"""Supervised runs from the first step to the report."""

import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest

from tests.supervised.conftest import Fields, Stripes
from unroll_jax.train.config.data import ImageConfig, SceneConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.experiments.images import QUICK
from unroll_jax.train.main import fit, report
from unroll_jax.train.metrics import read_metrics, read_predictions
from unroll_jax.train.report.figures import scenes

pytestmark = pytest.mark.xdist_group("supervised-runs")

SMALL = {
    "OptEqConfig": {"convolutional": False, "channels": 4, "widths": (4, 4), "features": 4},
    "SegmenterConfig": {"channels": 4, "widths": (4,), "stem": (4,)},
    "MonConfig": {"convolutional": False, "channels": 4},
    "OdeConfig": {"convolutional": False, "widths": (4,), "features": 4},
    "FeedForwardConfig": {"convolutional": False, "widths": (4, 4), "features": 4},
    "FcnConfig": {"widths": (4,), "stem": (4,)},
}


def small(experiment, **options):
    """The experiment's configuration, made so small that a run takes a second."""
    config = EXPERIMENTS[experiment].config
    network = dataclasses.replace(config.network, **SMALL[type(config.network).__name__])
    rates = dataclasses.replace(config.optimizer, learning_rate=0.03)
    usual = {"epochs": 4, "batch_size": 8, "validate_every": 2, "augment": False}
    return dataclasses.replace(config, network=network, optimizer=rates, **usual | options)


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``trained(experiment)``: the folder of a finished run, to be read, and its log."""
    root, data = tmp_path_factory.mktemp("trained"), {ImageConfig: Stripes(), SceneConfig: Fields()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unroll_jax.train.data.images.load", lambda config, *, log: data[type(config)])

        @functools.cache
        def go(experiment, seed=0):
            folder, log = root / f"{experiment}-{seed}", []
            fit(small(experiment, seed=seed), out=folder, experiment=experiment, log=log.append)
            return folder, log

        yield go


@pytest.mark.slow
@pytest.mark.parametrize("experiment", QUICK)
def test_every_experiment_trains_evaluates_and_reports(experiment, trained):
    folder, log = trained(experiment)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [12, 24]
    train = [row["loss"] for row in rows if row["kind"] == "train"]
    assert np.mean(train[-6:]) < np.mean(train[:6])
    figures = read(folder, "evaluation.json")
    assert (figures["experiment"], figures["num_examples"]) == (experiment, 10)
    assert figures["accuracy"] > 0.6
    assert sum(map(sum, figures["confusion"])) == (10 if figures["class_names"] == ["left", "right"] else 10 * 7 * 8)
    has_equilibrium = "opteq" in experiment or "mon" in experiment
    assert (figures["iterations"] is not None) == has_equilibrium
    layers = {"image-opteq": {"layer_1", "layer_2"}, "segment-opteq": {"layer_1"}}
    assert figures["weight_norms"].keys() == layers.get(experiment, set())
    assert (folder / "report" / "predictions.png").exists() == experiment.startswith("segment")
    assert (folder / "report" / "confusion.png").exists()
    assert any("accuracy" in line or "mIoU" in line for line in log)


@pytest.mark.slow
@pytest.mark.usefixtures("stripes")
def test_a_run_that_was_cut_back_ends_like_the_whole_one(trained, start, tmp_path):
    whole, _ = trained("image-dnn")
    again = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(again / "checkpoints" / "24")
    for name in ("status.json", "evaluation.json"):
        (again / name).unlink()
    assert "going on from the checkpoint of step 12" in start(small("image-dnn"), "image-dnn")
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    same = [read(folder, "evaluation.json") for folder in (whole, again)]
    for figures in same:
        del figures["train_seconds"]
    assert same[0] == same[1]


@pytest.mark.slow
def test_scenes_of_a_report_are_the_same_and_whole(trained, tmp_path):
    names = ("segment-opteq", "segment-fcn")
    folders = [shutil.copytree(trained(name)[0], tmp_path / name) for name in names]
    report([*map(str, folders), "--out", str(tmp_path / "report")])
    first, predictions = read_predictions(folders[0]), {folder.name: read_predictions(folder) for folder in folders}
    axes = scenes(predictions, ("dark", "bright")).axes[:4]
    assert [one.get_title() for one in axes] == ["scene", "labels (black: not counted)", *names]
    shown, labels = (np.asarray(one.images[0].get_array()) for one in axes[:2])
    np.testing.assert_array_equal(shown, first.images[0])
    assert not labels[first.labels[0] == NOT_COUNTED].any()
    np.savez(folders[1] / "predictions.npz", **first._replace(images=255 - first.images)._asdict())
    with pytest.raises(UserError, match="segment-opteq, segment-fcn were tested on different scenes"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])
    (folders[1] / "predictions.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"predictions\.npz is damaged .*`unroll-jax evaluate"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])


def test_a_loss_that_is_not_finite_stops_the_run(start, stripes, tmp_path):
    stripes.std = np.array([0.0])
    with pytest.raises(UserError, match=r"loss is not finite at step 1; .* mend data"):
        start(small("image-dnn"), "image-dnn")
    assert read(tmp_path / "run", "status.json")["state"] == "failed"
