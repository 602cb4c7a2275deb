"""Runs resume bit for bit, each in its folder; evaluations read the best checkpoint."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from tests.train.commands import files_of, read
from tests.train.conftest import MANY, Clips, evaluated_again, traced_task
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.step import state_like
from unroll_jax.train.system.files import locked
from unroll_jax.train.tasks.video import VideoTask

pytestmark = pytest.mark.xdist_group("video-runs")


@pytest.fixture
def whole(both):
    return both / "constrained"


def _state(folder, config, clips):
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        checkpoint = checkpoints.newest(state_like(traced_task(config, clips)))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(checkpoint[1])]


def _cut_back(folder, *, keep, metrics):
    """Leaves a run as a kill does: checkpoints up to a step, the metrics cut short, a status of a running run."""
    for path in (folder / "checkpoints").iterdir():
        if int(path.name) > keep:
            shutil.rmtree(path)
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[: int(metrics * len(content))])
    (folder / "status.json").unlink()
    (folder / "evaluation.json").write_text("{}")  # of an earlier checkpoint


def _assert_same(folder, whole, config=None, clips=None):
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = ({**read(one / "evaluation.json"), "train_seconds": 0} for one in (folder, whole))
    assert ours == theirs
    assert config is None or _state(folder, config, clips) == _state(whole, config, clips)


def test_a_run_killed_before_its_first_checkpoint_ends_like_the_whole_one(finished, whole, start, config, clips):
    _cut_back(finished, keep=0, metrics=0.95)
    start(config)
    _assert_same(finished, whole, config, clips)


@pytest.mark.slow
def test_a_run_with_many_options_goes_on_as_if_it_had_not_been_interrupted(many, start, changed, tmp_path):
    config, folder = changed(**MANY), shutil.copytree(many, tmp_path / "run")
    logged = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["slack/layer 1"] for row in logged] == [row["multiplier/layer 1"] / 2.0 for row in logged]
    assert logged[-1]["slack/layer 1"] > 0.0
    _cut_back(folder, keep=4, metrics=1.0)
    assert "going on from the checkpoint of step 4" in start(config)
    _assert_same(folder, many)
    after = read(folder / "evaluation.json")
    assert len(after["slacks"]) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_run_goes_on_in_parts_and_with_recomputed_layers_up_to_rounding(start, changed, tmp_path):
    config = changed(**{"model.dtype": "float64"})
    start(config)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    _cut_back(tmp_path / "again", keep=4, metrics=0.95)
    log = start(dataclasses.replace(config, accumulate=2, remat="everything"), name="again")
    assert "going on from the checkpoint of step 4" in log
    rows, again = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("run", "again"))
    assert [sorted(row) for row in again] == [sorted(row) for row in rows]
    numbers = [
        np.hstack(
            [np.array(value, float).ravel() for row in metrics for name, value in sorted(row.items()) if name != "kind"]
        )
        for metrics in (again, rows)
    ]
    np.testing.assert_allclose(*numbers, rtol=1e-12, atol=1e-14)


def test_a_killed_run_ends_like_the_whole_one_and_damage_costs_one_checkpoint(finished, whole, start, config, clips):
    _cut_back(finished, keep=6, metrics=0.95)
    arrays = (finished / "checkpoints" / "6" / "state" / "ocdbt.process_0" / "d").iterdir()
    largest = max(arrays, key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    log = start(config)
    assert any("checkpoint 6 is damaged" in line and "falling back" in line for line in log)
    assert "going on from the checkpoint of step 4" in log
    assert (finished / "damaged" / "6").is_dir()
    _assert_same(finished, whole, config, clips)


def test_a_finished_run_is_not_trained_again_and_a_second_process_is_refused(finished, start, config):
    def times():
        return {path: path.stat().st_mtime_ns for path in files_of(finished)}

    before = times()
    assert any("finished already after 6 steps" in line for line in start(config))
    (finished / "model.json").unlink()
    with locked(finished), pytest.raises(UserError, match="another process is training"):
        start(config)
    del before[finished / "model.json"]
    assert times() == before, "nothing is written beside the other"
    start(config)


def test_changed_options_and_changed_data_are_refused(finished, start, changed, config, clips, monkeypatch):
    for options, words in (
        ({"steps": 7}, "depend on the end of a run"),
        ({"dual.optimizer": "sgd"}, "was pi, is now sgd"),
    ):
        with pytest.raises(UserError, match=f"{words}.*another --out"):
            start(changed(**options))
    before, other = (finished / "evaluation.json").read_bytes(), Clips(seed=1)
    monkeypatch.delattr(VideoTask, "open")  # not the task that was kept
    for name in ("splits", "spec"):
        monkeypatch.setattr(clips, name, getattr(other, name))  # what `load` gives from here on
    for again in (lambda: start(config), lambda: evaluated_again(finished)):
        with pytest.raises(UserError, match=r"found\.pixel_std was .* is now"):
            again()
    assert (finished / "evaluation.json").read_bytes() == before


def test_the_best_checkpoint_is_the_feasible_one_of_least_loss_or_the_least_infeasible(infeasible):
    folder, log = infeasible
    assert any("the least infeasible one on the validation split" in line for line in log)
    assert any("NOT feasible on the validation and test splits" in line for line in log)
    rows = read_metrics(folder / "metrics.jsonl")
    excess = {row["step"]: row["worst_excess"] for row in rows if row["kind"] == "validation"}
    evaluation = read(folder / "evaluation.json")
    assert evaluation["best_step"] == min(excess, key=excess.__getitem__)
    assert evaluation["feasible"] is evaluation["feasible_on_validation"] is False
