"""Supervised runs from the first step to the report, and the accuracies that the README names."""

import dataclasses
import shutil

import numpy as np
import pytest

from tests.errors import one_line
from tests.supervised.conftest import small
from tests.tasks import assert_resumes
from tests.train.commands import quiet, read, status_of
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.experiments.images import QUICK
from unroll_jax.train.main import fit, report
from unroll_jax.train.metrics import read_metrics, read_predictions
from unroll_jax.train.report.figures import scenes

pytestmark = pytest.mark.xdist_group("supervised-runs")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", QUICK)
def test_every_experiment_trains_evaluates_and_reports(experiment, trained):
    folder, log = trained(experiment)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [12, 24]
    train = [row["loss"] for row in rows if row["kind"] == "train"]
    assert np.mean(train[-6:]) < np.mean(train[:6])
    figures = read(folder / "evaluation.json")
    assert (figures["experiment"], figures["num_examples"]) == (experiment, 10)
    assert figures["accuracy"] > 0.6
    assert sum(map(sum, figures["confusion"])) == (10 if figures["class_names"] == ["left", "right"] else 10 * 7 * 8)
    assert (figures["iterations"] is not None) == ("opteq" in experiment or "mon" in experiment)
    layers = {"image-opteq": {"layer_1", "layer_2"}, "segment-opteq": {"layer_1"}}
    assert figures["weight_norms"].keys() == layers.get(experiment, set())
    assert (folder / "report" / "predictions.png").exists() == experiment.startswith("segment")
    assert (folder / "report" / "confusion.png").exists()
    assert any("accuracy" in line or "mIoU" in line for line in log)


@pytest.mark.slow
@pytest.mark.usefixtures("in_memory")
def test_a_run_that_was_cut_back_ends_like_the_whole_one(trained, tmp_path):
    whole, _ = trained("image-dnn")
    assert_resumes(small("image-dnn"), whole, tmp_path / "run", experiment="image-dnn", steps=(12, 24))


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
    with one_line("segment-opteq, segment-fcn were tested on different scenes"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])
    (folders[1] / "predictions.npz").write_bytes(b"half")
    with one_line(r"predictions\.npz is damaged .*`unroll-jax evaluate"):
        report([*map(str, folders), "--out", str(tmp_path / "report")])


def test_a_loss_that_is_not_finite_stops_the_run(start, stripes, tmp_path):
    stripes.std = np.array([0.0])
    with one_line(r"loss is not finite at step 1; .* mend data"):
        start(small("image-dnn"), "image-dnn")
    assert status_of(tmp_path / "run")["state"] == "failed"


@pytest.mark.slow
def test_opteq_knows_97_percent_of_the_digits_however_it_is_trained(tmp_path, monkeypatch):
    """Accuracies on 400 digits, with one seed; means over seeds are above 97% and within half a point."""
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    config, accuracies = EXPERIMENTS["image-opteq"].config, {}
    for way in ("implicit", "unrolled", "averaged"):
        trained = dataclasses.replace(config, network=dataclasses.replace(config.network, way=way))
        (folder,) = fit(trained, out=tmp_path / way, experiment="image-opteq", log=quiet)
        accuracies[way] = read(folder / "evaluation.json")["accuracy"]
    assert min(accuracies.values()) >= 0.965, accuracies
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.015, accuracies
