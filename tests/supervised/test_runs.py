"""Supervised runs from the first step to the report."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from train.data.pictures import NOT_COUNTED
from train.errors import UserError
from train.experiments import EXPERIMENTS
from train.metrics import read_metrics
from train.runs import evaluate, report
from train.supervised.experiments import QUICK
from train.supervised.pictures import draw_predictions, read_predictions

pytestmark = pytest.mark.slow

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


@pytest.mark.usefixtures("stripes", "fields")
@pytest.mark.parametrize("experiment", QUICK)
def test_every_experiment_trains_evaluates_and_reports(experiment, start, tmp_path):
    log = start(small(experiment), experiment)
    folder = tmp_path / "run"
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [12, 24]
    train = [row["loss"] for row in rows if row["kind"] == "train"]
    assert np.mean(train[-6:]) < np.mean(train[:6])
    found = read(folder, "evaluation.json")
    assert (found["experiment"], found["num_examples"]) == (experiment, 10)
    assert found["accuracy"] > 0.6
    assert sum(map(sum, found["confusion"])) == (10 if found["class_names"] == ["left", "right"] else 10 * 7 * 8)
    has_equilibrium = "opteq" in experiment or "mon" in experiment
    assert (found["iterations"] is not None) == has_equilibrium
    layers = {"image-opteq": {"layer_1", "layer_2"}, "segment-opteq": {"layer_1"}}
    assert found["weight_norms"].keys() == layers.get(experiment, set())
    assert (folder / "report" / "curves.png").stat().st_size > 10_000
    assert (folder / "report" / "predictions.png").exists() == experiment.startswith("segment")
    assert any("accuracy" in line or "mIoU" in line for line in log)


@pytest.mark.usefixtures("stripes")
def test_a_run_that_was_cut_back_ends_like_the_whole_one(start, tmp_path):
    config = small("image-opteq")
    start(config, "image-opteq", "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "24")
    for name in ("status.json", "evaluation.json"):
        (tmp_path / "run" / name).unlink()
    assert "going on from the checkpoint of step 12" in start(config, "image-opteq")
    whole, again = tmp_path / "whole", tmp_path / "run"
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    same = [read(folder, "evaluation.json") for folder in (whole, again)]
    for found in same:
        del found["train_seconds"], found["seconds_an_example"]
    assert same[0] == same[1]


@pytest.mark.usefixtures("stripes")
def test_runs_that_differ_by_the_seed_are_one_row(start, tmp_path):
    for seed in (0, 1):
        start(small("image-opteq", seed=seed), "image-opteq", f"opteq-{seed}")
    start(small("image-dnn"), "image-dnn", "dnn")
    folders = [tmp_path / name for name in ("opteq-0", "opteq-1", "dnn")]
    lines = []
    report(folders, tmp_path / "report", log=lines.append)
    summary = read(tmp_path / "report", "summary.json")
    assert list(summary) == ["image-opteq", "image-dnn"]
    assert summary["image-opteq"]["seeds"] == [0, 1]
    accuracies = [read(folder, "evaluation.json")["accuracy"] for folder in folders[:2]]
    assert summary["image-opteq"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["image-opteq"]["accuracy_range"] == [min(accuracies), max(accuracies)]
    assert summary["image-dnn"]["iterations"] is None
    assert "image-dnn" in lines[0]
    assert "<table>" in (tmp_path / "report" / "index.html").read_text()


def test_runs_of_different_tests_are_not_compared(start, stripes, tmp_path):
    start(small("image-dnn"), "image-dnn", "one")
    stripes.splits["test"] = type(stripes.splits["test"])(*(part[:5] for part in stripes.splits["test"]))
    start(small("image-dnn"), "image-dnn", "other")
    with pytest.raises(UserError, match="num_examples"):
        report([tmp_path / "one", tmp_path / "other"], tmp_path / "report", log=lambda _: None)


def test_runs_on_different_data_are_not_compared(start, stripes, tmp_path):
    config = small("image-dnn")
    start(config, "image-dnn", "one")
    start(dataclasses.replace(config, data=dataclasses.replace(config.data, source="cifar10")), "image-dnn", "other")
    with pytest.raises(UserError, match=r"differ in data\.source, digits and cifar10"):
        report([tmp_path / "one", tmp_path / "other"], tmp_path / "report", log=lambda _: None)


@pytest.mark.usefixtures("fields")
def test_predictions_of_all_networks_are_one_picture(start, tmp_path):
    names = ("segment-opteq", "segment-fcn")
    folders = [tmp_path / name for name in names]
    for name in names:
        start(small(name, epochs=2), name, name)
    report(folders, tmp_path / "report", log=lambda _: None)
    found = {folder.name: read_predictions(folder) for folder in folders}
    figure = draw_predictions(found, ("dark", "bright"))
    titles = [axes.get_title() for axes in figure.axes[:4]]
    assert titles == ["scene", "labels (black: not counted)", *names]
    drawn = [np.asarray(axes.images[0].get_array()) for axes in figure.axes[:4]]
    first = found["segment-opteq"]
    np.testing.assert_array_equal(drawn[0], first.images[0])
    assert not drawn[1][first.labels[0] == NOT_COUNTED].any()
    for picture, folder in zip(drawn[2:], folders, strict=True):
        guess = found[folder.name].predicted[0]
        assert (len(np.unique(picture.reshape(-1, 3), axis=0))) == len(np.unique(guess))
    np.savez(folders[1] / "predictions.npz", **found["segment-fcn"]._replace(images=255 - first.images)._asdict())
    with pytest.raises(UserError, match="segment-opteq and segment-fcn were tested on other scenes"):
        report(folders, tmp_path / "report", log=lambda _: None)
    (folders[1] / "predictions.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"predictions\.npz is damaged .*train evaluate"):
        report(folders, tmp_path / "report", log=lambda _: None)
    (folders[1] / "predictions.npz").unlink()
    with pytest.raises(UserError, match=r"has no predictions\.npz; run .*train evaluate"):
        report(folders, tmp_path / "report", log=lambda _: None)


def test_changed_data_are_refused(start, stripes, tmp_path):
    start(small("image-dnn"), "image-dnn")
    stripes.mean = np.array([0.4])
    with pytest.raises(UserError, match=r"found\.mean was"):
        evaluate(tmp_path / "run", log=lambda _: None)


@pytest.mark.usefixtures("stripes")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "--epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"augment": True}, "--augment must be False for digits"),
        ({"seed": -1}, "--seed must be"),
        ({"optimizer.learning_rate": 0.0}, "--optimizer.learning-rate must be positive"),
        ({"optimizer.momentum": 1.0}, "--optimizer.momentum must be in"),
        ({"optimizer.decay": 0.0}, "--optimizer.decay must be in"),
        ({"network.stem": (4,)}, "--network.stem must be () for dense layers"),
        ({"network.channels": 0}, "channels must be at least 1"),
        ({"network.skip": 1.5}, "skip must be in"),
        ({"network.activation": "gelu"}, "gelu"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_that_names_it(options, words, start):
    config = small("image-opteq")
    for name, value in options.items():
        group, _, field = name.rpartition(".")
        inner = dataclasses.replace(getattr(config, group), **{field: value}) if group else value
        config = dataclasses.replace(config, **{group or field: inner})
    with pytest.raises(UserError) as caught:
        start(config, "image-opteq")
    assert words in str(caught.value)


def test_a_loss_that_is_not_finite_stops_the_run(start, stripes, tmp_path):
    stripes.std = np.array([0.0])
    with pytest.raises(UserError, match="loss is not finite at step 1"):
        start(small("image-dnn"), "image-dnn")
    assert read(tmp_path / "run", "status.json")["state"] == "failed"
