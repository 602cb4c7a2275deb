"""The command line: its help, its lists, and one line and exit code 2 for any error that the user can mend."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.hostile.command import MEMBERSHIP, OPTION
from tests.hostile.given import files, pictures
from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import value_of, with_value
from unroll_jax.train.data import images, text
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit


@pytest.mark.usefixtures("in_memory")
def test_a_value_that_does_not_fit_the_data_is_refused_and_leaves_no_folder(capsys, tmp_path):
    options = ["--batch-size", "4", "--constraints.reference", "0.01", "--out", str(tmp_path / "run")]
    assert "--constraints.reference 0.01 is below the loss of" in refused(capsys, "run", "video-ut", *options)
    assert not (tmp_path / "run").exists()


TABLE = "text\tlabel\n" + "".join(f"a film {number}\t{'ab'[number % 2]}\n" for number in range(40))
PICTURES = pictures({f"originals/{split}/{name}": 16 for split in ("train", "test") for name in "ab"})
SOURCES = [
    ("table", text.TextConfig, text.load, files({"originals/train.tsv": TABLE})),
    ("image_folder", images.ImageConfig, images.load, PICTURES),
]


@pytest.mark.parametrize(("source", "config", "load", "write"), SOURCES)
def test_prepare_prepares_what_a_run_of_that_validation_share_opens(monkeypatch, tmp_path, source, config, load, write):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    write(tmp_path)
    root, log = str(tmp_path / "originals"), []
    assert main(["prepare", source, "--from", root, "--validation-share", "0.25"]) == 0
    data = load(config(source, root, validation_share=0.25), log=log.append)
    assert (data.num_examples("validation"), log) == (8, [])
    load(config(source, root), log=log.append)
    assert log, "another share is prepared again"


def test_a_reader_that_leaves_early_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "unroll_jax.train", "list"]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(program, env=environment(), stdout=output, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (141, "")


def test_list_groups_experiments_by_task_and_hides_cells_of_tables(capsys):
    def listed(*words):
        assert main(["list", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        return lines, [line.split()[0] for line in lines if line.startswith("  ")]

    lines, shown = listed()
    assert shown[0] == "demo"
    assert set(shown) == {name for name, experiment in EXPERIMENTS.items() if experiment.has_run}
    assert lines.index("video") < next(i for i, line in enumerate(lines) if line.startswith("  video-ut"))
    assert f"{len(EXPERIMENTS) - len(shown)} more" in lines[-1]
    lines, shown = listed("--all")
    assert sorted(shown) == sorted(EXPERIMENTS)
    page = (Path(__file__).resolve().parents[2] / "docs/reference/command_line.md").read_text(encoding="utf-8")
    (expression,) = re.findall(r"unroll-jax list --all \| (sed -n '[^']*')", page)
    completion = subprocess.run(expression, shell=True, input="\n".join(lines), capture_output=True, text=True)
    assert completion.stdout.split() == shown
    for word, names in {
        "ucsd": ["ucsd-dust", "ucsd-ut", "ucsd-vit"],
        "video-dust": ["ucsd-dust", "video-dust"],
    }.items():
        lines, _ = listed(word)
        assert sorted(line.split()[0] for line in lines if line[0] != " ") == names
        assert sum(line.startswith("  expect: ") for line in lines) == len(names)


FOLLOW = {
    "text-ut --steps 300": ("constraints.warmup_steps", 0.375),
    "text-encoder --model.dim 50": ("model.num_heads", 2),
    "video-vit --model.num-heads 4 --model.dim 512": ("model.num_heads", 4),
    "sft-tiny --model.num-heads 1": ("model.num_key_value_heads", 1),
    "sft-smollm2 --data.root x --model.lora-rank 4": ("constraints.reference", None),
    "sparse-coding --constraints.bounds cumulative --constraints.reference 2 --constraints.last 0.1": None,
    "video-ut --constraints.last 0.1": ("constraints.reference", None),
    "cifar10-opteq --data.source digits": ("augment", False),
    "cifar10-opteq --network.no-convolutional": ("network.stem", ()),
    "hadou2023-cifar10 --data.source digits": ("data.validation_share", 0.1),
    "hadou2023-cifar10 --steps 6": ("dual.every", 6),
}


@pytest.mark.parametrize("command", FOLLOW)
def test_a_default_that_another_option_rules_out_follows_it_and_a_choice_does_not(command):
    _, config = configured("run", command.split())
    if FOLLOW[command] is None:
        with pytest.raises(UserError, match=r"constraints.reference must be None"):
            config.check()
        return
    field, value = FOLLOW[command]
    config.check()
    assert value_of(config, field) == value


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_needs_a_second_option_for_a_length_or_a_method(experiment, monkeypatch):
    """The options are set without tyro, which takes a tenth of a second."""
    usual = EXPERIMENTS[experiment].config
    length = "epochs" if hasattr(usual, "epochs") else "steps"
    options = [(length, number) for number in (1, 300, 10_000)]
    options += [("method", name) for name in ("plain", "erm", "both")] * hasattr(usual, "method")
    for name, value in options:
        monkeypatch.setattr("unroll_jax.train.cli.parse", Mock(return_value=with_value(usual, name, value)))
        configured("run", [experiment, f"--{name}", str(value)])[1].check()


def test_the_length_of_a_task_is_named_where_another_is_typed(capsys):
    assert "--epochs" in refused(capsys, "run", "image-opteq", "--steps", "30")
    assert "--steps" in refused(capsys, "run", "video-ut", "--epochs", "30")


def test_without_a_device_every_command_ends_in_a_line(monkeypatch, capsys, tmp_path):
    def none(*_):
        raise AssertionError  # as JAX does with JAX_PLATFORMS=cuda on a machine without a GPU

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr("jax.devices", none)
    monkeypatch.setattr("jax.process_index", none)
    for command in (["run", "demo", "--out", str(tmp_path / "run")], ["evaluate", str(tmp_path)]):
        assert "JAX_PLATFORMS=cuda" in refused(capsys, *command)
    with pytest.raises(UserError, match="JAX_PLATFORMS=cuda"):
        fit("demo", out=tmp_path / "run")


def test_experiments_tell_figures_unless_they_were_never_run():
    figures = r"\d%|\d\.\d|feasible|in the paper|see [a-z0-9-]+ for"
    for name, experiment in EXPERIMENTS.items():
        assert not experiment.has_run or re.search(figures, experiment.expect), name


@pytest.mark.parametrize(("command", "takes_folders"), [("run", True), ("plan", True), ("sweep", False)])
def test_the_help_of_a_command_names_its_experiments_and_whether_it_takes_folders(command, takes_folders, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"unroll-jax {command} EXPERIMENT --help" in shown
    assert all(name in shown for name in EXPERIMENTS)
    assert (f"unroll-jax {command} FOLDER" in shown) == takes_folders


HELPS = ["run demo", "run segment-fcn", "run text-ut", "run sft-tiny", "plan text-ut", "sweep demo"]


@pytest.mark.parametrize("line", HELPS)
def test_help_shows_every_option_of_an_experiment(line, capsys):
    command, experiment = line.split()
    assert main([command, experiment, "--seed", "2", "--help"]) == 0
    shown = capsys.readouterr().out
    every = set(OPTION.findall(shown))
    length = {"epochs"} if experiment == "segment-fcn" else {"steps", "method", "constraints.alpha", "dual.every"}
    assert {"batch-size", "seed", "data.source", "data.root", "config", "out", "accumulate", "remat"} | length <= every
    assert ("jobs" in every) == (command == "sweep")
    assert not {option.removeprefix("--") for option in MEMBERSHIP} & every
    if command != "sweep":
        first = shown.split("usage:")[0].splitlines()
        assert first[0].startswith(f"example: unroll-jax {line} --")
        assert len([option for option in first if option.startswith("  --")]) == 5


def test_the_demo_is_a_command_an_unknown_option_names_the_help_and_no_command_prints_the_usage(capsys):
    assert main(["demo", "--help"]) == 0
    assert "--model.num-layers" in capsys.readouterr().out
    for command, line in {"demo": "run demo", "plan text-ut": "plan text-ut", "sweep demo": "sweep demo"}.items():
        assert f"see `unroll-jax {line} --help`" in refused(capsys, *command.split(), "--stesp", "3")
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out
