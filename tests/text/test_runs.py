"""Text runs from the first step to the report."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest

from tests.text.conftest import MANY, PARTS, newest_state
from unroll_jax.train.config.tokens import UnrolledConfig
from unroll_jax.train.loop import train, train_run
from unroll_jax.train.main import fit
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.tasks.text import TextTask
from unroll_jax.train.tasks.tokens import area_under

pytestmark = [pytest.mark.xdist_group("text-runs"), pytest.mark.slow]


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_both_methods_train_evaluate_and_report(finished, experiment):
    whole = finished(experiment)
    for method, folder in whole.runs.items():
        evaluation = read(folder, "evaluation.json")
        assert (evaluation["method"], evaluation["num_examples"], evaluation["num_layers"]) == (method, 20, 2)
        assert list(evaluation["accuracy"]) == ["0.0", "0.6", "2.0"]
        assert evaluation["area"] == pytest.approx(evaluation["accuracy"]["0.0"] + evaluation["accuracy"]["2.0"])
        for name in ("layer_losses", "error_rates", "bounds", "multipliers"):
            assert len(evaluation[name]) == 3
        assert evaluation["error_rates"][-1] == pytest.approx(1.0 - evaluation["accuracy"]["0.6"])
        assert sum(map(sum, evaluation["ratio_histogram"]["counts"])) == 2 * 20
        assert evaluation["early_exit"]["curve"]["mean_depths"][0] == 2.0
        assert evaluation["early_exit"]["curve"]["accuracies"][0] == evaluation["early_exit"]["full_accuracy"]
        rows = read_metrics(folder / "metrics.jsonl")
        assert [row["step"] for row in rows if row["kind"] == "validation"] == [2, 4]
        assert all(0.0 <= row["accuracy"] <= 1.0 for row in rows if row["kind"] == "validation")
    page = (whole.report / "index.html").read_text()
    names = {path.stem for path in whole.report.glob("*.png")}
    assert names >= {"score_curve", "layer_losses", "ratios", "early_exit", "multipliers"}
    methods = "plain against constrained" if len(whole.runs) == 2 else "constrained training"
    for words in ("Area: under the accuracy", "Early exit", "error %", methods, "majority class"):
        assert words in page
    assert any("Area: under the accuracy" in line for line in whole.log)


def test_a_run_with_many_options_goes_on_as_if_it_had_not_been_interrupted(small, finished, tmp_path):
    whole, again, log = finished("text-ut").runs["constrained"], tmp_path / "run", []
    shutil.copytree(whole, again)
    for name in ("status.json", "evaluation.json"):
        (again / name).unlink()
    shutil.rmtree(again / "checkpoints" / "4")
    config = small("text-ut", method="constrained", accumulate=PARTS["text-ut"], **MANY)
    fit(config, out=again, experiment="text-ut", log=log.append)
    assert "going on from the checkpoint of step 2" in log
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    one, other = (read(folder, "evaluation.json") for folder in (whole, again))
    for evaluation in (one, other):
        del evaluation["train_seconds"]
    assert one == other
    assert (one["bind"], len(one["slacks"])) == ("tail", 3)
    first = read_metrics(whole / "metrics.jsonl")[0]
    for figure in ("violation", "multiplier", "slack"):
        assert {f"{figure}/{name}" for name in ("f_0", "layer 1", "layer 2")} <= first.keys()


def test_a_run_with_frozen_embeddings_goes_on_as_if_it_had_not_been_interrupted(small, write_folder, tmp_path):
    folder, log = str(write_folder(config={"vocab_size": 20})), []
    config = small("text-ut", model=UnrolledConfig(num_layers=2, embeddings=folder, dim=64), steps=2, validate_every=1)
    whole, again = tmp_path / "whole", tmp_path / "run"
    task = TextTask.open(config, log.append)
    train_run(task, whole, experiment="text-ut", log=log.append)
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "2")
    (again / "status.json").unlink()
    train_run(TextTask.open(config, log.append), again, experiment="text-ut", log=log.append)
    assert "going on from the checkpoint of step 1" in log
    assert (whole / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    one, other = (jax.device_get(newest_state(folder, task)) for folder in (whole, again))
    assert one.step == 2
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_loop_compiles_once_for_each_length_of_batch(task_of, monkeypatch, tmp_path):
    steps = {"steps": 5, "validate_every": 5}
    task = task_of("text-ut", **steps, max_length=32, batch_size=2, method="plain")
    lengths, traced = [batch.tokens.shape[1] for batch in itertools.islice(task.batches(0, None), 5)], []
    assert 1 < len(set(lengths)) < len(lengths)
    sample_noise = task.sample_noise

    def counted(batch, key):
        traced.append(batch.tokens.shape[1])
        return sample_noise(batch, key)

    monkeypatch.setattr(task, "sample_noise", counted)
    train(task, tmp_path, log=lambda line: None)
    assert sorted(traced) == sorted(set(lengths))
    assert read(tmp_path, "status.json")["state"] == "finished"


def test_the_area_is_that_of_trapezoids():
    assert area_under({2.0: 0.5, 0.0: 0.9, 0.5: 0.8}) == pytest.approx(0.5 * 0.85 + 1.5 * 0.65)
    assert area_under({gamma / 4: 1.0 for gamma in range(9)}) == pytest.approx(2.0)
    assert area_under({0.5: 0.9}) is None
