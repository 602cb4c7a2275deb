"""The training loop: what it records, when it stops, and what it leaves behind."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from train.checkpoint import Checkpoints
from train.errors import UserError
from train.loop import train
from train.metrics import read_metrics
from train.video.recipe import video_recipe
from train.video.state import init_state
from train.video.task import video_task


@pytest.fixture
def loop(clips, tmp_path):
    """Trains a configuration in ``tmp_path``; ``poison(params, batch)`` is added to the layer losses."""

    def go(config, poison=None, data=clips):
        task = video_task(config, clips)
        if poison is not None:
            task = task._replace(sample_losses=_poisoned(task.sample_losses, poison))
        log = []
        train(video_recipe(config, task, data), tmp_path, log=log.append)
        return log

    return go


def _poisoned(sample_losses, poison):
    return lambda params, drawn: sample_losses(params, drawn) + poison(params, drawn.clean)


def _at_layer(layer, value):
    return lambda params, batch: jnp.zeros(3).at[layer].set(jnp.where(jnp.all(batch == 0), value, 0.0))


def _root_of_nothing(params, batch):
    """Where the batch is 0 it is 0, but its slope is not finite."""
    return jnp.sqrt(1e-12 * jnp.mean(batch, dtype=jnp.float32) * jnp.sum(params["params"]["layers"].U ** 2))


@pytest.fixture
def black_fifth_batch(clips, monkeypatch):
    ordinary = clips.batches

    def batches(split, **options):
        for step, batch in enumerate(ordinary(split, **options), start=options["start_step"] + 1):
            yield np.zeros_like(batch) if step == 5 else batch

    monkeypatch.setattr(clips, "batches", batches)


def _status(folder):
    return json.loads((folder / "status.json").read_text())


def _saved_steps(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def test_every_step_and_every_validation_is_recorded_once(loop, config, changed, tmp_path):
    loop(changed(steps=5))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("train", 1),
        ("train", 2),
        ("validation", 2),
        ("train", 3),
        ("train", 4),
        ("validation", 4),
        ("train", 5),
        ("validation", 5),
    ]
    for row in rows:
        assert len(row["layer_losses"]) == len(row["violations"]) == config.model.num_layers + 1
    status = _status(tmp_path)
    assert (status["state"], status["steps"], status["messages"]) == ("finished", 5, [])
    assert status["train_seconds"] > 0
    assert status["compile_seconds"] > 0
    assert status["environment"]["jax"]


def test_a_validation_row_is_of_the_state_saved_with_it(loop, config, clips, tmp_path):
    loop(config)
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    task = video_task(config, clips)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        step, state, notes = checkpoints.newest(init_state(config, task))
    assert step == last["step"] == int(state.step) == 6
    outputs_loss = last["layer_losses"][-1]
    assert notes["score"] == pytest.approx(-outputs_loss) if last["feasible"] else notes["score"] <= -1e6


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        (_at_layer(1, jnp.nan), ["loss is not finite at step 5", "layer 1"]),
        (_at_layer(2, jnp.inf), ["loss is not finite at step 5", "layer 2"]),
        (_root_of_nothing, ["gradient is not finite at step 5"]),
    ],
    ids=["loss nan", "loss inf", "gradient nan"],
)
@pytest.mark.usefixtures("black_fifth_batch")
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_at_its_last_good_checkpoint(
    loop, config, tmp_path, poison, words
):
    with pytest.raises(UserError) as caught:
        loop(config, poison)
    for word in (*words, "checkpoint is kept"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert _saved_steps(tmp_path) == [2, 4]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3, 4]
    status = _status(tmp_path)
    assert (status["state"], status["steps"]) == ("failed", 4)
    assert status["messages"] == [str(caught.value)]


@pytest.mark.usefixtures("black_fifth_batch")
def test_a_failed_run_fails_again_in_the_same_way_and_goes_on_once_mended(loop, config, tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match="step 5"):
            loop(config, _at_layer(0, jnp.nan))
    assert _saved_steps(tmp_path) == [2, 4]
    assert loop(config) == ["going on from the checkpoint of step 4"]
    assert _status(tmp_path)["state"] == "finished"
    assert _status(tmp_path)["messages"] == []


def test_parameters_that_overflow_are_never_saved(loop, changed, tmp_path):
    with pytest.raises(UserError, match=r"not finite at step \d"):
        loop(changed(**{"primal.learning_rate": 1e30, "primal.warmup_share": 0.0}, validate_every=1))
    assert _saved_steps(tmp_path) == []


def test_a_run_that_collapses_stops_after_two_validations_and_says_why(loop, changed, tmp_path):
    # A step of 3 a weight silences every ReLU.
    loop(changed(steps=20, method="erm", **{"primal.learning_rate": 3.0, "primal.warmup_share": 0.0}))
    status = _status(tmp_path)
    assert status["state"] == "stopped"
    assert 4 <= status["steps"] < 20
    assert len(status["messages"]) >= 2
    for message in status["messages"][-2:]:
        assert "collapsed" in message
        assert "dead units" in message or "constant output" in message
    assert status["messages"][-1].startswith(f"step {status['steps']}: ")


@pytest.mark.parametrize(
    ("collapsed", "on_collapse", "state", "steps"),
    [([2, 4], "stop", "stopped", 4), ([2, 4], "warn", "finished", 6), ([2, 6], "stop", "finished", 6)],
)
def test_two_collapses_in_a_row_stop_a_run(loop, changed, tmp_path, monkeypatch, collapsed, on_collapse, state, steps):
    validations = iter(range(2, 100, 2))
    monkeypatch.setattr(
        "train.video.recipe.describe_collapse",
        lambda *_: "the model has collapsed" if next(validations) in collapsed else None,
    )
    loop(changed(on_collapse=on_collapse))
    status = _status(tmp_path)
    assert (status["state"], status["steps"]) == (state, steps)
    assert status["messages"] == [f"step {step}: the model has collapsed" for step in collapsed]
    rows = (tmp_path / "metrics.jsonl").read_bytes()
    loop(changed(on_collapse=on_collapse))
    assert _status(tmp_path)["state"] == state
    assert (tmp_path / "metrics.jsonl").read_bytes() == rows


@pytest.mark.parametrize("fields", [{"method": "erm", "train_gamma": 0.0}, {"constraints.reference": None}])
def test_runs_without_noise_or_reference_end_well(loop, changed, tmp_path, fields):
    loop(changed(**fields))
    assert _status(tmp_path)["state"] == "finished"
    for row in read_metrics(tmp_path / "metrics.jsonl"):
        assert len(row["violations"]) == 3
        assert (row["violations"][0] is None) == ("constraints.reference" in fields)
