"""Help: the basic options, and every option on request."""

import pytest

from tests.hostile.named import OPTION
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import MEMBERSHIP


def options_in(capsys, *words):
    """The options in the help of a command, and its last line."""
    assert main(words) == 0
    shown = capsys.readouterr().out
    return set(OPTION.findall(shown)), shown.splitlines()[-1]


@pytest.mark.parametrize(("command", "takes_folders"), [("run", True), ("plan", True), ("sweep", False)])
def test_the_help_of_a_command_names_its_experiments_and_whether_it_takes_folders(command, takes_folders, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"unroll-jax {command} EXPERIMENT --help" in shown
    assert "--help-all" in shown
    assert all(name in shown for name in EXPERIMENTS)
    assert (f"unroll-jax {command} FOLDER" in shown) == takes_folders
    assert ("there is no run folder" in refused(capsys, command, "runs/x")) == takes_folders


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


def test_help_is_shown_beside_other_options_and_a_refusal_names_the_whole_of_it(capsys):
    basic, _ = options_in(capsys, "run", "demo", "--dual.every", "2", "--help")
    assert "dual.every" not in basic
    assert "see `unroll-jax run demo --help-all`" in refused(capsys, "run", "demo", "--stesp", "3")
