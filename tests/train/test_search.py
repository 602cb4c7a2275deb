"""Searches: what they try, how they rank, and that an interrupted one ends like one left alone."""

import csv
import dataclasses
import json
import math
import pickle

import pytest

from train.cli import main
from train.errors import UserError
from train.lock import locked
from train.metrics import write_json
from train.search import search
from train.search import trials as trials_module
from train.search.study import open_study
from train.video.config import VideoConfig

RATES = {"primal-rate": "1e-5:1e-1"}
GRID = {"alpha": "0.1,0.3", "primal-rate": "1e-3:1e-1:3"}


def _measured(config):
    """Stands in for training: the loss is least at a rate of 1e-3, and a steep alpha is not met at high rates."""
    rate, alpha = config.primal.learning_rate, config.constraints.alpha[0]
    loss = 2.0 + (math.log10(rate) + 3.0) ** 2
    return loss, 10.0 * alpha * rate - 0.1


@pytest.fixture
def trained(monkeypatch, clips):
    """Runs are not trained but take a moment; the list holds the folders that were, and those then evaluated."""
    folders, tested = [], []

    def run_one(config, folder, *, experiment, evaluated, log):
        assert not evaluated
        folders.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        loss, excess = _measured(config)
        # The first validation is worse, the last one better but not feasible: the best is the second.
        rows = [(1, 2 * loss, excess), (2, loss, excess), (3, 0.5 * loss, 1.0)]
        lines = [
            {
                "kind": "validation",
                "step": step,
                "layer_losses": [9.0, value],
                "feasible": over <= 0,
                "worst_excess": over,
            }
            for step, value, over in rows
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        failed = config.primal.learning_rate > 0.09
        status = {"state": "failed" if failed else "finished", "train_seconds": 1.0}
        write_json(folder / "status.json", {**status, "messages": ["the loss is not finite"] if failed else []})
        if failed:
            raise UserError("the loss is not finite")

    monkeypatch.setattr("train.video.kind.load", lambda config, *, log: clips)
    monkeypatch.setattr("train.search.trials.run_one", run_one)
    monkeypatch.setattr("train.search.trials._picture", lambda *arguments: b"")
    monkeypatch.setattr("train.search.trials.evaluate", lambda folder, *, log: tested.append(folder))
    return folders, tested


@pytest.fixture
def go(trained, tmp_path):
    """``go(over, name, **options)``: a search into ``tmp_path / name``; returns its outcomes."""

    def run(over, name="search", *, config=None, log=None, **options):
        config = dataclasses.replace(config or VideoConfig(), out=str(tmp_path / name))
        return search(config, experiment="video-ut", over=over, log=(log if log is not None else []).append, **options)

    return run


def _values(outcomes):
    return [dict(one.values) for one in sorted(outcomes, key=lambda one: one.number)]


def test_a_grid_tries_every_combination_once(go, trained, tmp_path):
    outcomes = go(GRID, sampler="grid")
    expected = [{"alpha": a, "primal-rate": r} for a in (0.1, 0.3) for r in (1e-3, 1e-2, 1e-1)]
    assert _values(outcomes) == expected
    assert trained[0] == [tmp_path / "search" / "trials" / f"{number:04d}" for number in range(6)]


def test_feasible_trials_come_first_then_the_metric_then_the_excess_then_what_failed(go):
    outcomes = go({"alpha": "0.1,0.9", "primal-rate": "1e-3,8e-3,5e-2,0.1"}, sampler="grid")
    found = [
        (one.values["alpha"], one.values["primal-rate"], one.judgement and one.judgement.feasible) for one in outcomes
    ]
    assert found == [
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
        assert one.judgement.metric == pytest.approx(_measured(config)[0])
        assert one.step == 2
    assert outcomes[5].judgement.excess == pytest.approx(10 * 0.9 * 5e-2 - 0.1)


def test_of_infeasible_trials_the_least_infeasible_is_the_best_and_that_is_said(go):
    log = []
    outcomes = go({"alpha": "0.5,0.9", "primal-rate": "5e-2,8e-2"}, sampler="grid", log=log)
    assert [one.judgement.feasible for one in outcomes] == [False] * 4
    excesses = [one.judgement.excess for one in outcomes]
    assert excesses == sorted(excesses)
    assert any(
        "no trial is feasible on the validation split: the best is over a bound by 15.0%" in line for line in log
    )


@pytest.mark.parametrize("after", [1, 11, 13])
def test_an_interrupted_search_ends_like_one_left_alone(go, trained, monkeypatch, tmp_path, after):
    over, trials = {**RATES, "alpha": "0.05:0.9", "resilience": "none,1,10"}, 13
    whole = go(over, "whole", trials=trials)
    calls = []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == after:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    real = trials_module.run_one
    monkeypatch.setattr("train.search.trials.run_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go(over, "cut", trials=trials)
    cut = go(over, "cut", trials=trials)
    assert cut == whole
    first, second = (json.loads((tmp_path / name / "search.json").read_text()) for name in ("cut", "whole"))
    assert first == second
    assert len(calls) == trials + 1


def test_a_search_is_extended_by_more_trials_and_not_done_again(go, trained):
    five, seven = go(RATES, trials=5), go(RATES, trials=7)
    assert _values(seven)[:5] == _values(five)
    assert len(trained[0]) == 7
    assert go(RATES, trials=7) == seven
    assert len(trained[0]) == 7


def test_tpe_closes_in_on_the_best_rate(go):
    def distance(trial):
        return abs(math.log10(trial["primal-rate"]) + 3.0)

    values = _values(go({"primal-rate": "1e-9:1e-2"}, trials=30))
    random, late = values[:10], values[20:]
    assert sum(map(distance, late)) < 0.5 * sum(map(distance, random))
    assert len({value["primal-rate"] for value in values}) == 30


def test_the_seed_decides_what_is_tried(go):
    first, again, other = (
        _values(go(RATES, name, trials=3, config=VideoConfig(seed=seed)))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    assert first != other


def test_only_the_best_trial_is_evaluated_on_the_test_split(go, trained, tmp_path):
    outcomes = go(GRID, sampler="grid")
    assert trained[1] == [tmp_path / "search" / "trials" / f"{outcomes[0].number:04d}"]


def test_what_is_wrong_with_the_data_ends_the_search_and_a_loss_that_diverges_does_not(go, trained, monkeypatch):
    outcomes = go({"primal-rate": "1e-3,0.1"}, sampler="grid")
    assert [one.state for one in outcomes] == ["finished", "failed"]
    assert outcomes[1].message == "the loss is not finite"

    def broken(*arguments, **options):
        raise UserError("the disk is full")

    monkeypatch.setattr("train.search.trials.run_one", broken)
    with pytest.raises(UserError, match="the disk is full"):
        go(RATES, "other", trials=2)


def test_a_search_of_failures_alone_says_so(go):
    with pytest.raises(UserError, match=r"no trial of .* could be trained.*the loss is not finite"):
        go({"primal-rate": "0.1,0.2"}, sampler="grid")


def test_the_files_tell_what_was_found(go, tmp_path):
    outcomes = go(GRID, sampler="grid")
    folder = tmp_path / "search"
    found = json.loads((folder / "search.json").read_text())
    assert found["experiment"] == "video-ut"
    assert found["best"] == f"trials/{outcomes[0].number:04d}"
    assert found["over"]["alpha"] == {"field": "constraints.alpha", "log": False, "choices": [0.1, 0.3]}
    assert [row["trial"] for row in found["trials"]] == [one.number for one in outcomes]
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["alpha"]) for row in rows] == [row["values"]["alpha"] for row in found["trials"]]
    assert [row["metric"] for row in rows] == [
        "" if r["metric"] is None else repr(r["metric"]) for r in found["trials"]
    ]


def test_no_pickle_is_read_or_written(go, monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("pickle")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    go(RATES, trials=2)
    go(RATES, trials=3)
    for line in (tmp_path / "search" / "journal.jsonl").read_text().splitlines():
        json.loads(line)


def test_what_a_kill_left_of_the_journal_is_no_hindrance(go, tmp_path):
    whole = go(RATES, "whole", trials=4)
    go(RATES, trials=2)
    journal = tmp_path / "search" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "stu')
    (tmp_path / "search" / "journal.jsonl.lock").symlink_to("journal.jsonl")
    assert go(RATES, trials=4) == whole


@pytest.mark.parametrize("kept", [1, 2])
def test_a_trial_killed_before_its_values_were_written_is_made_anew(go, tmp_path, kept):
    over = {**RATES, "alpha": "0.05:0.9"}
    whole = go(over, "whole", trials=3)
    go(over, trials=2)
    journal = tmp_path / "search" / "journal.jsonl"
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    created = [place for place, line in enumerate(lines) if json.loads(line)["op_code"] == 4]
    journal.write_bytes(b"".join(lines[: created[2] + kept]))
    cut = go(over, trials=3)
    assert _values(cut) == _values(whole)


@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b'{"op_code": 99}\n', b'{"op_code": 4, "study_id": 7}\n'])
def test_a_damaged_journal_is_one_clear_line(go, tmp_path, content):
    go(RATES, trials=1)
    journal = tmp_path / "search" / "journal.jsonl"
    journal.write_bytes(content + journal.read_bytes())
    with pytest.raises(UserError, match=r"journal\.jsonl is damaged") as caught:
        go(RATES, trials=2)
    assert "\n" not in str(caught.value)


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


def test_opening_a_study_twice_gives_the_same_one(tmp_path):
    study = open_study(tmp_path)
    study.ask()
    assert len(open_study(tmp_path).trials) == 1


SMALL = [
    *("--steps", "4", "--batch-size", "4", "--validate-every", "2", "--test-gammas", "0"),
    *("--model.num-layers", "2", "--model.rank", "4", "--sampler", "grid", "--over.primal-rate", "1e-3,2e-3"),
]


def test_a_real_search_interrupted_in_training_goes_on_and_ends_like_one_left_alone(
    clips, monkeypatch, capsys, tmp_path
):
    from train.video import recipe

    tested = []
    monkeypatch.setattr("train.video.kind.load", lambda config, *, log: clips)
    examples = clips.examples
    monkeypatch.setattr(clips, "examples", lambda split, **options: tested.append(split) or examples(split, **options))
    assert main(["search", "video-ut", *SMALL, "--out", str(tmp_path / "whole")]) == 0
    output = capsys.readouterr().out
    best = json.loads((tmp_path / "whole" / "search.json").read_text())
    assert (tmp_path / "whole" / "parallel_coordinates.png").read_bytes().startswith(b"\x89PNG")
    again = next(line for line in output.splitlines() if line.startswith("again: python -m train "))
    assert "test" not in tested[: tested.index("test")]
    assert tested.count("test") == 2, "one trial at two noise levels"

    calls, judge = [], recipe._judge

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:  # the last validation of the second trial
            raise KeyboardInterrupt
        return judge(*arguments)

    monkeypatch.setattr(recipe, "_judge", interrupted)
    command = ["search", "video-ut", *SMALL, "--out", str(tmp_path / "cut")]
    assert main(command) == 130
    assert "the same command" in capsys.readouterr().err
    assert main(command) == 0
    assert "going on from the checkpoint of step 2" in capsys.readouterr().out
    for name in ("trials/0000/metrics.jsonl", "trials/0001/metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    # Trials are ordinary runs: the commands take them, and agree on the best checkpoint.
    trial = tmp_path / "whole" / "trials" / "0000"
    assert main(["evaluate", str(trial)]) == 0
    steps = {row["trial"]: row["step"] for row in best["trials"]}
    assert json.loads((trial / "evaluation.json").read_text())["best_step"] == steps[0]
    capsys.readouterr()
    monkeypatch.setattr("train.video.kind.write_report", lambda *arguments, **options: None)
    words = again.removeprefix("again: python -m train ").split()
    assert main([*words, "--out", str(tmp_path / "whole" / best["best"])]) == 0
    assert "finished already" in capsys.readouterr().out, "the command printed is that of the best trial"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["unknown experiment ''"]),
        (["video-ut", "--over.momentum", "0:1"], ["Unrecognized options", "--over.momentum"]),
        (["video-ut", "--sampler", "cma"], ["--sampler", "'cma'", "tpe", "grid"]),
        (["video-ut", "--trials", "0"], ["--trials must be at least 1, got 0"]),
        (["video-ut", "--steps", "0"], ["--steps must be at least 1"]),
        (["video-ut", "--sampler", "grid"], ["--sampler grid needs values", "--over.f-ref"]),
        (["demo"], ["one variant", "--method"]),
        (["image-dnn", "--over.alpha", "0.1:0.2"], ["--over.alpha 0.1:0.2", "no alpha", "primal-rate"]),
        (["video-ut", "--method", "erm", "--over.dual-rate", "1:2"], ["no dual-rate", "primal-rate"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_it(capsys, arguments, words):
    assert main(["search", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for word in words:
        assert word in lines[0], lines[0]


def test_help_names_the_options_of_the_search_and_of_the_experiment(capsys):
    assert main(["search", "video-ut", "--help"]) == 0
    output = capsys.readouterr().out
    for word in ("--trials", "--sampler", "--over.f-ref", "--over.resilience", "--constraints.alpha", "--steps"):
        assert word in output
