"""Supervised runs from the first step to the report, models that were loaded without
their data, and accuracies."""

import numpy as np
import pytest
from sklearn import metrics

from tests.supervised.conftest import DATA, small
from tests.tasks import assert_resumes, without_data, without_report
from tests.train.commands import quiet, read
from unroll_jax.train.config.options import with_value
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.data.pictures import NOT_COUNTED
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.images.experiments import QUICK

pytestmark = [pytest.mark.xdist_group("supervised-runs"), pytest.mark.slow]


# The others train networks that other quick tests hold.
every_night = [
    name
    if name in ("image-opteq", "segment-fcn")
    else pytest.param(name, marks=pytest.mark.nightly)
    for name in QUICK
]


@pytest.mark.parametrize("experiment", every_night)
def test_every_experiment_trains_evaluates_and_reports(experiment, trained):
    folder, _ = trained(experiment)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [12, 24]
    train = [row["loss"] for row in rows if row["kind"] == "train"]
    assert np.mean(train[-6:]) < np.mean(train[:6])
    figures = read(folder / "evaluation.json")
    assert (figures["experiment"], figures["num_examples"]) == (experiment, 10)
    assert figures["accuracy"] > 0.6
    has_solves = "opteq" in experiment or "mon" in experiment
    assert (figures["iterations"] is not None) == has_solves
    assert (folder / "report" / "confusion.png").exists()


@pytest.mark.usefixtures("in_memory")
def test_a_run_cut_back_ends_like_the_whole(trained, tmp_path):
    whole, _ = trained("image-dnn")
    assert_resumes(
        small("image-dnn"),
        whole,
        tmp_path / "run",
        experiment="image-dnn",
        steps=(12, 24),
    )


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("experiment", ["image-opteq", "segment-fcn"])
def test_a_loaded_model_is_right_as_the_evaluation_says(trained, experiment, tmp_path):
    run, _ = trained(experiment)
    evaluation = read(run / "evaluation.json")
    pictures, labels = DATA[type(small(experiment).data)].splits["test"]
    load = "unroll_jax.train.tasks.images.data.load"
    with without_data(run, tmp_path / "model", load) as models:
        each = [model.predict(list(pictures)) for model in models]
    for predictions in each:
        if experiment.startswith("image"):
            shares = np.stack([one.probabilities for one in predictions])
            loss = -np.log(shares[np.arange(len(labels)), labels]).mean()
            assert loss == pytest.approx(evaluation["loss"], rel=1e-4)
            names = evaluation["class_names"]
            predicted = np.array([names.index(one.label) for one in predictions])
        else:
            predicted = np.stack(predictions)
        there = labels != NOT_COUNTED
        confusion = metrics.confusion_matrix(labels[there], predicted[there])
        assert confusion.tolist() == evaluation["confusion"]


@pytest.mark.nightly
def test_opteq_knows_97_percent_of_the_digits(tmp_path, monkeypatch):
    """Accuracies on 400 digits, with one seed. Means over seeds are above 97% and
    within half a point."""
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    without_report(monkeypatch)
    config, accuracies = EXPERIMENTS["image-opteq"].config, {}
    config = with_value(config, "validate_every", 10)
    for way in ("implicit", "unrolled", "averaged"):
        trained = with_value(config, "network.way", way)
        (folder,) = fit(
            trained, out=tmp_path / way, experiment="image-opteq", log=quiet
        )
        accuracies[way] = read(folder / "evaluation.json")["accuracy"]
    assert min(accuracies.values()) >= 0.965, accuracies
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.015, accuracies
