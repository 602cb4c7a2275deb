"""Searches: what they try, how they rank, and what they leave in their folder."""

import csv
import dataclasses
import errno
import json
import os

import pytest

from tests.train.search.conftest import measured, values_of
from unroll_jax.train.config.errors import StorageError, UserError
from unroll_jax.train.config.run import Judgement
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.search.results import read_outcome
from unroll_jax.train.search.trials import open_study
from unroll_jax.train.system.files import locked, write_json

RATES = {"primal-rate": "1e-5:1e-1"}
GRID = {"alpha": "0.1,0.3", "primal-rate": "1e-3:1e-1:3"}


def test_a_grid_tries_every_combination_once(go, trained, tmp_path):
    outcomes = go(GRID, sampler="grid")
    expected = [{"alpha": a, "primal-rate": r} for a in (0.1, 0.3) for r in (1e-3, 1e-2, 1e-1)]
    assert values_of(outcomes) == expected
    assert trained[0] == [tmp_path / "search" / "trials" / f"{number:04d}" for number in range(6)]


def test_feasible_trials_come_first_then_the_metric_then_the_excess_then_what_failed(go):
    outcomes = go({"alpha": "0.1,0.9", "primal-rate": "1e-3,8e-3,5e-2,0.1"}, sampler="grid")
    trials = [(one.values["alpha"], one.values["primal-rate"], one.feasible) for one in outcomes]
    assert trials == [
        (0.1, 1e-3, True),  # equal to the next: the earlier one
        (0.9, 1e-3, True),
        (0.1, 8e-3, True),
        (0.9, 8e-3, True),
        (0.1, 5e-2, True),
        (0.9, 5e-2, False),
        (0.1, 0.1, None),
        (0.9, 0.1, None),
    ]
    for one in outcomes[:5]:
        config = VideoConfig()
        config = dataclasses.replace(
            config, primal=dataclasses.replace(config.primal, learning_rate=one.values["primal-rate"])
        )
        assert one.metric == pytest.approx(measured(config)[0])
        assert one.step == 2
    assert outcomes[5].worst_excess == pytest.approx(10 * 0.9 * 5e-2 - 0.1)


def test_of_infeasible_trials_the_least_infeasible_is_the_best_and_that_is_said(go):
    log = []
    outcomes = go({"alpha": "0.5,0.9", "primal-rate": "5e-2,8e-2"}, sampler="grid", log=log)
    assert [one.feasible for one in outcomes] == [False] * 4
    excesses = [one.worst_excess for one in outcomes]
    assert excesses == sorted(excesses)
    assert any(
        "no trial is feasible on the validation split: the best is over a bound by 15.0%" in line for line in log
    )


def test_a_search_is_extended_by_more_trials_and_not_done_again(go, trained):
    five, seven = go(RATES, trials=5), go(RATES, trials=7)
    assert values_of(seven)[:5] == values_of(five)
    assert len(trained[0]) == 7
    assert go(RATES, trials=7) == seven
    assert len(trained[0]) == 7


def test_only_the_best_trial_is_evaluated_on_the_test_split(go, trained, tmp_path):
    outcomes = go(GRID, sampler="grid")
    assert trained[1] == [tmp_path / "search" / "trials" / f"{outcomes[0].trial:04d}"]


def test_what_is_wrong_with_the_data_ends_the_search_and_a_loss_that_diverges_does_not(go, trained, monkeypatch):
    outcomes = go({"primal-rate": "1e-3,0.1"}, sampler="grid")
    assert [one.state for one in outcomes] == ["finished", "failed"]
    assert outcomes[1].message == "the loss is not finite"

    def broken(*arguments, **options):
        raise UserError("the disk is full")

    monkeypatch.setattr("unroll_jax.train.search.trials.train_run", broken)
    with pytest.raises(UserError, match="the disk is full"):
        go(RATES, "other", trials=2)


def test_a_full_disk_is_no_outcome_of_a_trial(go, trained, monkeypatch):
    """The trial is tried again, else its values would count as bad ones."""

    def full(task, folder, **options):
        folder.mkdir(parents=True)
        write_json(folder / "status.json", {"state": "failed", "train_seconds": 1.0, "messages": ["the disk is full"]})
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("unroll_jax.train.search.trials.train_run", full)
        with pytest.raises(StorageError, match="the disk is full"):
            go({"primal-rate": "1e-3,0.01"}, sampler="grid")
    outcomes = go({"primal-rate": "1e-3,0.01"}, sampler="grid")
    assert sorted((one.trial, one.state) for one in outcomes) == [(0, "finished"), (1, "finished")]


def test_a_journal_is_cut_back_on_a_full_disk_too(tmp_path, monkeypatch):
    open_study(tmp_path)
    journal = tmp_path / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "wor')

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        open_study(tmp_path)
    content = journal.read_bytes()
    assert content.startswith(whole)
    assert b'"wor\n' not in content
    assert all(json.loads(line) for line in content.splitlines())


def test_a_search_of_failures_alone_says_so(go):
    with pytest.raises(UserError, match=r"no trial of .* could be trained.*the loss is not finite"):
        go({"primal-rate": "0.1,0.2"}, sampler="grid")


def test_the_files_tell_what_was_found(go, tmp_path):
    outcomes = go(GRID, sampler="grid")
    folder = tmp_path / "search"
    search = json.loads((folder / "search.json").read_text())
    assert search["experiment"] == "video-ut"
    assert search["best"] == f"trials/{outcomes[0].trial:04d}"
    assert search["over"]["alpha"] == {"field": "constraints.alpha", "log": False, "choices": [0.1, 0.3]}
    assert [row["trial"] for row in search["trials"]] == [one.trial for one in outcomes]
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["alpha"]) for row in rows] == [row["values"]["alpha"] for row in search["trials"]]
    assert [row["metric"] for row in rows] == [
        "" if r["metric"] is None else repr(r["metric"]) for r in search["trials"]
    ]


def test_a_trial_that_lost_its_files_is_named(go, tmp_path):
    go(RATES, trials=1)
    (tmp_path / "search" / "trials" / "0000" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"trials/0000 has lost its metrics\.jsonl"):
        go(RATES, trials=2)


def test_another_search_in_the_folder_is_refused_with_what_differs(go, tmp_path):
    go(RATES, trials=1)
    for over, options, words in (
        ({"primal-rate": "1e-5:1"}, {}, r"over\.primal-rate\.high was 0\.1, is now 1\.0"),
        ({**RATES, "alpha": "0.1:0.2"}, {}, r"over\.alpha was None"),
        (RATES, {"config": VideoConfig(steps=7)}, "steps was 1500, is now 7"),
        ({"primal-rate": "1e-5:1e-1:3"}, {"sampler": "grid"}, "sampler was tpe, is now grid"),
    ):
        with pytest.raises(UserError, match=rf"holds another search: .*{words}.*another --out"):
            go(over, **options)


def test_overwrite_begins_a_search_anew_and_deletes_nothing_else(go, trained, tmp_path):
    go(RATES, trials=2)
    outcomes = go({"alpha": "0.1,0.3"}, sampler="grid", config=VideoConfig(overwrite=True))
    assert values_of(outcomes) == [{"alpha": 0.1}, {"alpha": 0.3}]
    assert len(trained[0]) == 4
    with pytest.raises(UserError, match=r"--constraints\.alpha must be in"):
        go({"alpha": "0.1,1.3"}, sampler="grid", config=VideoConfig(overwrite=True))
    assert go({"alpha": "0.1,0.3"}, sampler="grid") == outcomes
    assert len(trained[0]) == 4, "what is refused deletes nothing, and without --overwrite a search goes on"
    write_json(tmp_path / "mine" / "search.json", {"dear": 1})
    with pytest.raises(UserError, match="for --overwrite to delete"):
        go(RATES, "mine", config=VideoConfig(overwrite=True))


def test_a_folder_of_something_else_and_a_second_process_are_refused(go, tmp_path):
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "thesis.tex").write_text("dear")
    with pytest.raises(UserError, match=r"no search\.json"):
        go(RATES, trials=1)
    (tmp_path / "file").write_text("dear")
    with pytest.raises(UserError, match="cannot write to --out"):
        go(RATES, "file", trials=1)
    go(RATES, "taken", trials=1)
    with locked(tmp_path / "taken"), pytest.raises(UserError, match="another process"):
        go(RATES, "taken", trials=2)


def test_the_ends_of_a_range_are_checked_before_anything_is_trained(go, trained, tmp_path):
    for over, words in (
        ({"f-ref": "0.01:9"}, r"--over\.f-ref 0\.01:9: .*0\.01 is below the loss of the noisy input"),
        ({"alpha": "0.2:1.5"}, r"--over\.alpha 0\.2:1\.5: --constraints\.alpha must be in \(0, 1\)"),
        ({"dual-rate": "0,0.1"}, r"--over\.dual-rate 0,0\.1: --dual\.learning-rate must be positive"),
    ):
        with pytest.raises(UserError, match=words):
            go(over)
    assert trained[0] == []
    assert not (tmp_path / "search").exists()


def test_the_best_checkpoint_of_a_resilient_trial_is_that_of_the_least_loss_with_the_cost_of_slack(tmp_path):
    judged = {1: Judgement(False, 0.1, 2.0, 5.0), 2: Judgement(False, 0.3, 1.0, 4.0)}
    (tmp_path / "status.json").write_text('{"state": "finished", "messages": [], "train_seconds": 1.0}')
    rows = [json.dumps({"kind": "validation", "step": step}) for step in judged]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")

    class Judged(VideoConfig):
        def judge(self, row):
            return judged[row["step"]]

    assert read_outcome(0, {}, tmp_path, Judged()).step == 2
    judged = {step: one._replace(relaxed=None) for step, one in judged.items()}
    assert read_outcome(0, {}, tmp_path, Judged()).step == 1, "without resilience it is the excess"
