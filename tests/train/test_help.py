"""Help: of the commands with an experiment, and every option of one."""

import pytest

from tests.hostile.named import OPTION
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import MEMBERSHIP


@pytest.mark.parametrize(("command", "takes_folders"), [("run", True), ("plan", True), ("sweep", False)])
def test_the_help_of_a_command_names_its_experiments_and_whether_it_takes_folders(command, takes_folders, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"unroll-jax {command} EXPERIMENT --help" in shown
    assert all(name in shown for name in EXPERIMENTS)
    assert (f"unroll-jax {command} FOLDER" in shown) == takes_folders
    assert ("there is no run folder" in refused(capsys, command, "runs/x")) == takes_folders


@pytest.mark.parametrize("command", ["run", "plan", "sweep"])
@pytest.mark.parametrize("experiment", ["demo", "segment-fcn", "text-ut", "sft-tiny"])
def test_help_shows_every_option_of_an_experiment(command, experiment, capsys):
    assert main([command, experiment, "--seed", "2", "--help"]) == 0
    shown = capsys.readouterr().out
    every = set(OPTION.findall(shown))
    length = {"epochs"} if experiment == "segment-fcn" else {"steps", "method", "constraints.alpha", "dual.every"}
    assert {"batch-size", "seed", "data.source", "data.root", "config", "out", "accumulate", "remat"} | length <= every
    assert ({"trials", "jobs"} <= every) == (command == "sweep")
    assert not {option.removeprefix("--") for option in MEMBERSHIP} & every
    if command != "sweep":
        first = shown.split("usage:")[0].splitlines()
        assert first[0].startswith(f"example: unroll-jax {command} {experiment} --")
        assert len([line for line in first if line.startswith("  --")]) == 5
    assert f"see `unroll-jax {command} {experiment} --help`" in refused(capsys, command, experiment, "--stesp", "3")
