"""Trials with simulated runs: the proposals, their ranks, and how they resume."""

import math
import sys

import pytest

from tests.train.commands import refused
from tests.train.sweep.conftest import SMALL, record_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import StorageError, UserError
from unroll_jax.train.config.run import Judgement
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.metrics import MetricsWriter
from unroll_jax.train.runs import identity
from unroll_jax.train.sweep import compute
from unroll_jax.train.sweep.results import score
from unroll_jax.train.system.files import write_json

RATE = ("--over.primal.learning-rate", "1e-5:1e-1")
ALPHA = ("--over.constraints.alpha", "0.05:0.9")


def measured(config):
    """Replaces training: the loss is least at a rate of 1e-3, and a steep alpha is not met at high rates."""
    rate, alpha = config.primal.learning_rate, config.constraints.alpha[0]
    return 2.0 + (math.log10(rate) + 3.0) ** 2, 10.0 * alpha * rate - 0.1


def train_run(task, folder, *, experiment, log):
    """Writes the files of a run: the second of three validations is the best, and high rates fail."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", identity(experiment, task.config, task.data_fingerprint()))
    loss, excess = measured(task.config)
    with MetricsWriter(folder, after_step=0) as metrics:
        for step, value, over in ((1, 2 * loss, excess), (2, loss, excess), (3, 0.5 * loss, 1.0)):
            judged = {"layer_losses": [9.0, value], "feasible": over <= 0, "worst_excess": over}
            metrics.write({"kind": "validation", "step": step, **judged})
    failed = task.config.primal.learning_rate > 0.05
    write_json(folder / "status.json", {"state": "failed" if failed else "finished", "steps": 3, "messages": []})
    if failed:
        raise UserError("the loss is not finite")


@pytest.fixture
def go(in_memory, monkeypatch, tmp_path):
    """``go(trials, *words, name=...)``: the command; returns its code and the cells of sweep.json."""
    monkeypatch.setattr(compute, "train_run", train_run)
    monkeypatch.setattr(compute, "evaluate", lambda task, folder, **_: write_json(folder / "evaluation.json", {}))

    def run(trials, *words, name="out", code=0):
        folder = tmp_path / name
        assert main(["sweep", "video-ut", *SMALL, *words, "--trials", str(trials), "--out", str(folder)]) == code
        return record_of(folder)["cells"] if code == 0 else []

    return run


def values_of(cells):
    rows = sorted(cells, key=lambda row: row["cell"])
    return [{name: row[name] for name in row if "." in name} for row in rows]


def test_feasible_trials_come_first_then_the_metric_and_the_best_alone_is_tested(go, tmp_path):
    cells = go(8, *RATE, *ALPHA)
    failed = [row["validation"] is None for row in cells]
    assert failed == sorted(failed)
    ended = cells[: failed.count(False)]
    assert [row["feasible"] for row in ended] == sorted((row["feasible"] for row in ended), reverse=True)
    for feasible, figure in ((True, "validation"), (False, "excess")):
        figures = [row[figure] for row in ended if row["feasible"] is feasible]
        assert figures == sorted(figures)
    assert {row["step"] for row in ended} == {2}
    assert [path.parent.name for path in tmp_path.glob("out/*/evaluation.json")] == [cells[0]["cell"]]


def test_more_trials_extend_those_that_are_there(go, computed):
    five = go(5, *RATE)
    computed.clear()
    seven = go(7, *RATE)
    assert values_of(seven)[:5] == values_of(five)
    failed = [row["cell"] for row in five if row["state"] == "failed"]
    assert sorted(set(computed) - set(failed) - {seven[0]["cell"]}) == ["trial-0005", "trial-0006"]


def test_the_seed_decides_what_is_proposed_and_an_interruption_does_not(go, monkeypatch):
    words = (*RATE, *ALPHA)
    whole = go(6, *words, name="whole")
    assert values_of(go(3, *words, "--seed", "1", name="other")) != values_of(whole)[:3]

    def interrupted(task, folder, **options):
        if folder.name == "trial-0003":
            raise KeyboardInterrupt
        train_run(task, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(compute, "train_run", interrupted)
        go(6, *words, name="cut", code=130)
    assert values_of(go(6, *words, name="cut")) == values_of(whole)


def test_tpe_closes_in_on_the_best_rate(go):
    cells = go(24, "--over.primal.learning-rate", "1e-9:1e-2", "--over.resilience", "None,3,10")
    distances = [abs(math.log10(float(row["primal.learning-rate"])) + 3.0) for row in values_of(cells)]
    assert sum(distances[16:]) < 0.6 * sum(distances[:8])


def test_a_full_disk_is_not_a_result_of_a_trial(go, monkeypatch):
    def full(task, folder, **_):
        folder.mkdir(parents=True)
        write_json(folder / "config.json", identity("video-ut", task.config, task.data_fingerprint()))
        write_json(folder / "status.json", {"state": "failed", "steps": 0, "messages": ["the disk is full"]})
        raise StorageError("the disk is full")

    low = ("--over.primal.learning-rate", "1e-4:1e-2")
    with monkeypatch.context() as patch:
        patch.setattr(compute, "train_run", full)
        go(2, *low, code=2)
    assert [row["state"] for row in go(2, *low)] == ["finished", "finished"]


def test_trials_outside_of_the_ranges_and_a_missing_optuna_are_one_line(go, monkeypatch, capsys, tmp_path):
    go(1, *RATE)
    words = ["sweep", "video-ut", *SMALL, "--trials", "2", "--out", str(tmp_path / "out")]
    line = refused(capsys, *words, "--over.primal.learning-rate", "10:20")
    assert "trial-0000 is outside of the ranges" in line
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'unroll_jax[search]'" in refused(capsys, *words, *RATE)


def test_a_trial_under_resilience_ranks_by_its_excess_and_a_checkpoint_by_its_relaxed_loss():
    judgement, config = Judgement(False, 0.5, 1.0, relaxed=7.0), VideoConfig()
    assert score(judgement, config) - score(judgement, config, within=True) == pytest.approx(6.5)
    assert score(None, config) < score(judgement, config) < score(Judgement(True, 0.0, 100.0), config)
