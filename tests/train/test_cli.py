"""The command line: defaults that follow other options, and one line and exit code 2
for any error of the user."""

import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.config.fields import value_of, with_value
from unroll_jax.train.data import text
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit


@pytest.mark.usefixtures("in_memory")
def test_a_value_that_does_not_fit_the_data_is_refused_and_leaves_no_folder(
    capsys, tmp_path
):
    options = [
        "--batch-size",
        "4",
        "--constraints.reference",
        "0.01",
        "--out",
        str(tmp_path / "run"),
    ]
    assert "--constraints.reference 0.01 is below the loss of" in refused(
        capsys, "run", "video-ut", *options
    )
    assert not (tmp_path / "run").exists()


TABLE = "text\tlabel\n" + "".join(
    f"a film {number}\t{'ab'[number % 2]}\n" for number in range(40)
)


def test_prepare_prepares_what_a_run_of_that_validation_share_opens(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    (tmp_path / "originals").mkdir()
    (tmp_path / "originals" / "train.tsv").write_text(TABLE)
    root, log = str(tmp_path / "originals"), []
    assert main(["prepare", "table", "--from", root, "--validation-share", "0.25"]) == 0
    data = text.load(
        text.TextConfig("table", root, validation_share=0.25), log=log.append
    )
    assert (data.num_examples("validation"), log) == (8, [])
    text.load(text.TextConfig("table", root), log=log.append)
    assert log, "another share is prepared again"


def test_a_reader_that_leaves_early_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "unroll_jax.train", "list"]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            program,
            env=environment(),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (141, "")


FOLLOW = {
    "text-ut --steps 300": ("constraints.warmup_steps", 0.375),
    "text-encoder --model.dim 50": ("model.num_heads", 2),
    "video-vit --model.num-heads 4 --model.dim 512": ("model.num_heads", 4),
    "sft-tiny --model.num-heads 1": ("model.num_key_value_heads", 1),
    "sft-smollm2 --data.root x --model.lora-rank 4": ("constraints.reference", None),
    "sparse-coding --constraints.bounds cumulative --constraints.reference 2 --constraints.last 0.1": (
        None
    ),
    "cifar10-opteq --data.source digits": ("augment", False),
    "cifar10-opteq --network.no-convolutional": ("network.stem", ()),
    "hadou2023-cifar10 --data.source digits": ("data.validation_share", 0.1),
    "hadou2023-cifar10 --steps 6": ("dual.every", 6),
}


@pytest.mark.parametrize("command", FOLLOW)
def test_a_default_that_another_option_rules_out_follows_it_and_a_choice_does_not(
    command,
):
    _, config = configured("run", command.split())
    if FOLLOW[command] is None:
        with pytest.raises(UserError, match=r"constraints.reference must be None"):
            config.check()
        return
    field, value = FOLLOW[command]
    config.check()
    assert value_of(config, field) == value


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_needs_a_second_option_for_a_length_or_a_method(
    experiment, monkeypatch
):
    """The options are set without tyro, which takes a tenth of a second."""
    usual = EXPERIMENTS[experiment].config
    length = "epochs" if hasattr(usual, "epochs") else "steps"
    options = [(length, number) for number in (1, 300, 10_000)]
    options += [("method", name) for name in ("plain", "erm", "both")] * hasattr(
        usual, "method"
    )
    for name, value in options:
        monkeypatch.setattr(
            "unroll_jax.train.cli.parse",
            Mock(return_value=with_value(usual, name, value)),
        )
        configured("run", [experiment, f"--{name}", str(value)])[1].check()


def test_without_a_device_every_command_ends_in_a_line(monkeypatch, capsys, tmp_path):
    def none(*_):
        # as JAX does with JAX_PLATFORMS=cuda on a machine without a GPU
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr("jax.devices", none)
    monkeypatch.setattr("jax.process_index", none)
    for command in (
        ["run", "demo", "--out", str(tmp_path / "run")],
        ["evaluate", str(tmp_path)],
    ):
        assert "JAX_PLATFORMS=cuda" in refused(capsys, *command)
    with pytest.raises(UserError, match="JAX_PLATFORMS=cuda"):
        fit("demo", out=tmp_path / "run")


def test_the_demo_is_a_command_an_unknown_option_names_the_help_and_no_command_prints_the_usage(
    capsys,
):
    assert main(["demo", "--help"]) == 0
    assert "--model.num-layers" in capsys.readouterr().out
    for command, line in {"demo": "run demo", "sweep demo": "sweep demo"}.items():
        assert f"see `unroll-jax {line} --help`" in refused(
            capsys, *command.split(), "--stesp", "3"
        )
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out
