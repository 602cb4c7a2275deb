"""Runs with many options at once: they go on exactly, say what they do by name, and never save what is not finite."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.conftest import MANY, evaluated_again, events, traced_task
from unroll_jax.constrained import feasibility_report
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.constraints import DescentConstraints
from unroll_jax.train.loop import UNJUDGED, train
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import init_state, state_like, validate
from unroll_jax.train.tasks.common import Trial

pytestmark = [pytest.mark.xdist_group("video-runs"), pytest.mark.usefixtures("in_memory")]


@pytest.mark.slow
def test_a_run_with_many_options_goes_on_as_if_it_had_not_been_interrupted(many, start, changed, tmp_path):
    config, folder = changed(**MANY), shutil.copytree(many, tmp_path / "run")
    logged = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["slack/layer 1"] for row in logged] == [row["multiplier/layer 1"] / 2.0 for row in logged]
    assert logged[-1]["slack/layer 1"] > 0.0
    rows, evaluation = ((folder / name).read_bytes() for name in ("metrics.jsonl", "evaluation.json"))
    for name in ("status.json", "evaluation.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints" / "6")
    assert "going on from the checkpoint of step 4" in start(config)
    assert (folder / "metrics.jsonl").read_bytes() == rows
    after = json.loads((folder / "evaluation.json").read_bytes())
    assert {**after, "train_seconds": 0} == {**json.loads(evaluation), "train_seconds": 0}
    assert len(after["slacks"]) == 3
    assert after["bind"] == "tail"


def test_constraints_are_logged_by_name_and_layer(many):
    rows = read_metrics(many / "metrics.jsonl")
    names = ["f_0", "layer 1", "layer 2"]
    for row in rows:
        for figure in ("violation", "multiplier") if row["kind"] == "train" else ("violation",):
            assert [row[f"{figure}/{name}"] for name in names] == row[f"{figure}s"]
    logged = [row for row in rows if row["kind"] == "train"]
    assert all(f"slack/{name}" in row for row in logged for name in names)
    (file,) = (many / "tensorboard").glob("events.*")
    tags = {value.tag for event in events(file) for value in event.summary.value}
    figures = ["train/violation", "train/multiplier", "train/slack", "validation/violation"]
    assert {f"{figure}/{name}" for figure in figures for name in ("f_0", "layer_1", "layer_2")} <= tags
    assert "train/layer_losses/0" in tags
    assert not {tag for tag in tags if tag.startswith(("train/violations", "train/multipliers"))}


BINDS = ("mean", "tail")


def test_feasibility_is_judged_by_what_is_bound(changed, clips, many, tmp_path):
    fields = {"constraints.alpha": (0.05,), "constraints.reference": None, "train_gamma": 0.5}
    task, worst = traced_task(changed(**fields), clips), {}
    state = init_state(task)
    _, losses = task.evaluate(state.params, tmp_path)
    for bind in BINDS:
        config = changed(**{"constraints.bind": bind, "constraints.level": 0.9 if bind == "tail" else 0.7, **fields})
        objective = DescentConstraints(config, num_layers=2, steps_an_epoch=16, num_steps=config.steps)
        worst[bind] = np.array(objective.report(losses, state.moving)["violations"][1:], float)
    assert np.all(worst["tail"] > worst["mean"])
    before = json.loads((many / "evaluation.json").read_text())
    again = evaluated_again(shutil.copytree(many, tmp_path / "tail"))
    assert (again["bind"], again["violations"]) == ("tail", before["violations"])


def test_validation_judges_as_the_report_on_the_same_samples_does(changed, clips):
    for bind in BINDS:
        fields = {"constraints.bind": bind, "constraints.level": 0.9 if bind == "tail" else 0.7}
        task = traced_task(changed(**fields, **{"constraints.alpha": (0.3,)}), clips)
        state, objective = init_state(task), task.training.objective
        reading = task.reading(state.params, "validation", Trial(task.config.train_gamma))
        report = feasibility_report(
            jnp.asarray(reading.losses), state.moving.multipliers, objective.stated, reduction=objective.reduction
        )
        row, _ = validate(task, state)
        excess = max(group.worst / group.bound for group in report.groups)
        np.testing.assert_allclose(row["worst_excess"], excess, rtol=1e-5, err_msg=bind)
        assert row["feasible"] == report.feasible, bind
        assert excess > 0.0, f"the case violates something: {bind}"


@pytest.fixture
def task(changed, clips):
    return lambda **fields: traced_task(changed(**fields), clips)


def _saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


OVERFLOW = {
    "dual.optimizer": "sgd",
    "dual.learning_rate": 3e38,
    "constraints.alpha": (0.99,),
    "train_gamma": 5.0,
    "constraints.reference": 99.0,
}


@pytest.mark.slow
def test_multipliers_that_overflow_are_never_saved(task, tmp_path):
    # Losses, gradient and validation of the first step are finite, what it leaves behind is not.
    with pytest.raises(UserError, match=r"multipliers is not finite after step 1; no checkpoint was saved before"):
        train(task(**OVERFLOW, validate_every=1), tmp_path, log=lambda _: None)
    assert _saved(tmp_path) == []
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


def test_a_save_in_a_hurry_keeps_what_is_finite(task, tmp_path, monkeypatch):
    monkeypatch.setattr("unroll_jax.train.system.distributed.Stop.at", lambda self, step: step == 1)
    made, save, written = task(), Checkpoints.save, []

    def saved(*arguments, **options):
        written.append([row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")])
        return save(*arguments, **options)

    monkeypatch.setattr(Checkpoints, "save", saved)
    with pytest.raises(BaseException, match="asked to end"):
        train(made, tmp_path, log=lambda _: None)
    assert written == [[1]], "metrics are on disk before the checkpoint that they belong to"
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "interrupted"
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        step, _, notes = checkpoints.newest(state_like(made))
    assert (step, notes["score"]) == (1, UNJUDGED)
