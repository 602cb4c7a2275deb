"""What help shows: basic options first, and every option on request."""

import pytest

from tests.hostile import runs
from tests.hostile.named import OPTION
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import MEMBERSHIP

RUN = runs.RUN.split()


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def options_in(capsys, *words):
    """The options in what a command shows, and its last line."""
    assert main(words) == 0
    shown = capsys.readouterr().out
    return set(OPTION.findall(shown)), shown.splitlines()[-1]


def test_the_help_of_run_says_how_the_options_of_an_experiment_are_shown(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "unroll-jax run EXPERIMENT --help" in shown
    assert "--help-all" in shown
    assert all(name in shown for name in EXPERIMENTS)


def test_help_says_that_a_folder_may_stand_for_an_experiment_and_how_every_option_is_shown(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "run FOLDER" in shown
    assert "--help-all" in shown
    for command, takes_folders in (("run", True), ("plan", True), ("sweep", False)):
        assert main([command, "--help"]) == 0
        assert (f"unroll-jax {command} FOLDER" in capsys.readouterr().out) == takes_folders
    assert "sweep takes the name of an experiment and no folder, got ." in refused(capsys, "sweep", ".")
    assert "no folder, got runs/x" in refused(capsys, "sweep", "runs/x")


@pytest.mark.parametrize("every", ["--help", "--help-all"])
def test_help_breaks_no_sentence_where_the_source_does(every, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "900")
    assert main(["run", "video-ut", every]) == 0
    assert "tar archive or video file, in folders of splits as published" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "plan", "sweep"])
@pytest.mark.parametrize(
    "experiment", ["demo", "image-opteq", "segment-fcn", "sparse-coding", "text-encoder", "text-ut", "sft-tiny"]
)
def test_help_shows_the_basic_options_that_an_experiment_has_and_how_to_see_the_others(command, experiment, capsys):
    basic, last = options_in(capsys, command, experiment, "--help")
    every, _ = options_in(capsys, command, experiment, "--help-all")
    assert last == f"every option: unroll-jax {command} {experiment} --help-all"
    assert basic - {"help-all"} < every
    length = {"epochs"} if experiment in ("image-opteq", "segment-fcn") else {"steps", "method", "constraints.alpha"}
    assert {"batch-size", "seed", "data.source", "data.root", "config", "out", "overwrite"} | length <= basic
    assert not {"accumulate", "remat", "dual.every", "optimizer.decay", "network.tol", "data.prepared"} & basic
    assert {"accumulate", "remat", "data.prepared"} <= every
    assert ({"trials", "jobs"} <= basic) == (command == "sweep")
    assert not {option.removeprefix("--") for option in MEMBERSHIP} & every


def test_commands_without_basic_options_show_all_that_they_have(capsys):
    assert options_in(capsys, "predict", "--help") == options_in(capsys, "predict", "--help-all")


def test_help_is_shown_beside_other_options_and_a_refusal_names_the_whole_of_it(capsys):
    basic, _ = options_in(capsys, "run", "demo", "--dual.every", "2", "--help")
    assert "dual.every" not in basic
    assert "see `unroll-jax run demo --help-all`" in refused(capsys, "run", "demo", "--stesp", "3")


def test_an_interrupted_run_that_overwrites_says_how_it_goes_on(in_memory, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("unroll_jax.train.system.distributed.Stop.at", lambda stop, step: step >= 2)
    assert main([*RUN, "--overwrite"]) == 0
    assert "the same command without --overwrite goes on from there" in capsys.readouterr().err
    monkeypatch.undo()


def test_a_folder_that_is_not_there_is_told_to_be_no_run(in_memory, capsys):
    assert "there is no run folder runs/nothere" in refused(capsys, "run", "runs/nothere")


def test_no_comment_of_the_code_is_help(capsys):
    assert main(["run", "demo", "--help-all"]) == 0
    assert "The paper's UT" not in capsys.readouterr().out
