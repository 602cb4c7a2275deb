"""The command line: options of commands and files, and one line and exit code 2 for
any error of the user."""

import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from tests.errors import one_line
from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.errors import UserError, on_command_line
from unroll_jax.train.config.options import value_of, with_value
from unroll_jax.train.main import fit
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.tasks.text import data as text


@pytest.mark.usefixtures("in_memory")
def test_a_value_that_does_not_fit_the_data_is_refused(capsys, tmp_path):
    words = "run video-ut --batch-size 4 --constraints.reference 0.01"
    message = refused(capsys, *words.split(), "--out", str(tmp_path / "run"))
    assert "--constraints.reference 0.01 is below the loss of" in message
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


def test_experiments_are_listed_by_task_and_in_full(capsys):
    def listed(*words):
        assert main(["list", *words]) == 0
        return capsys.readouterr().out

    few, everything = listed(), listed("--all")
    assert "more are cells of papers' tables: unroll-jax list --all" in few
    lines = everything.splitlines()
    assert set(EXPERIMENTS) == {line.split()[0] for line in lines if line[:2] == "  "}
    one = EXPERIMENTS["lista"]
    details = listed("lista")
    assert all(words in details for words in (one.summary, one.paper, one.expect))
    for words, message in ((["x-y"], "'x-y' is in no name"), ("ab", "takes one word")):
        assert message in refused(capsys, "list", *words)


def test_a_reader_that_leaves_early_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "unroll_jax.train", "list"]
    with os.fdopen(writer, "wb") as output:
        streams = {"stdout": output, "stderr": subprocess.PIPE}
        done = subprocess.run(program, env=environment(), timeout=120, **streams)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [("list", ">&-", 0), ("nonsense", "2>/dev/full", 2), ("nonsense", "2>&-", 2)],
)
def test_streams_that_take_nothing_change_no_exit_code(words, streams, code):
    line = f"{sys.executable} -m unroll_jax.train {words} {streams}"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (code, b"")


TOML = """
steps = 40
[constraints]
alpha = 0.3
first-alpha = "None"
[data]
set_size = 8
"""
# By what the error names: a line at the end of that file.
TOML_MISTAKES = {
    "--data.classes must be less than or equal to 1024, got 9999": "classes = 9999",
    "cannot be read": "=",
    "cannot be read  .maximum recursion": 5000 * "x." + "x = 1",
}


def test_the_command_line_overrides_a_file_of_options(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("\ufeff" + TOML, encoding="utf-8")  # as Notepad writes it
    _, config = configured("run", ["demo", "--config", str(path), "--steps", "50"])
    names = ("steps", "constraints.alpha", "constraints.first_alpha", "data.set_size")
    assert [value_of(config, name) for name in names] == [50, (0.3,), None, 8]
    for named, line in TOML_MISTAKES.items():
        path.write_text(TOML + line)
        with on_command_line(), one_line(named.replace("  ", " ")):
            configured("run", ["demo", "--config", str(path)])


def test_the_help_has_the_usual_options_first_in_full_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        configured("run", ["text-encoder", "--help"])
    shown = capsys.readouterr().out
    names = ("--steps", "--dropout", "--mesh", "--data.source", "--primal.", "--dual.")
    places = [shown.index(f"\n  {name}") for name in names]
    assert places == sorted(places)
    assert "one after the other: less memory, the\n        same step." in shown


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_needs_a_second_option_for_a_length(experiment, monkeypatch):
    """The options are set without tyro, which takes a tenth of a second."""
    usual = EXPERIMENTS[experiment].config
    lengths = ("epochs", "steps")
    options = [(length, number) for number in (1, 300, 10_000) for length in lengths]
    options += [("method", name) for name in ("plain", "erm", "both")] * hasattr(
        usual, "method"
    )
    for name, value in options:
        monkeypatch.setattr(
            "unroll_jax.train.cli.parse",
            Mock(return_value=with_value(usual, name, value)),
        )
        config = configured("run", [experiment, f"--{name}", str(value)])[1]
        config.resolved().check()


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


def test_the_demo_is_a_command_and_errors_name_the_help(
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
