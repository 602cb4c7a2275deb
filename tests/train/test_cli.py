"""The command line: one line and exit code 2 for whatever the user can mend."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.started import environment
from tests.train.commands import refused
from unroll_jax.train.__main__ import main
from unroll_jax.train.data import images, text
from unroll_jax.train.experiments import EXPERIMENTS

SMALL = ("--steps", "4", "--batch-size", "4", "--model.num-layers", "2", "--validate-every", "2", "--test-gammas", "0")


def test_the_demo_is_a_command_and_benchmarks_are_told_to_be_in_a_clone(capsys):
    assert main(["demo", "--help"]) == 0
    assert "--model.num-layers" in capsys.readouterr().out
    assert "see `unroll-jax run demo --help`" in refused(capsys, "demo", "--stesp", "3")
    assert "in a clone, not in the package; there: python -m benchmarks gpu" in refused(capsys, "benchmarks", "gpu")


UNFIT = {
    "--train-gamma 0": "must be above 0, or --constraints.bounds cumulative, got 0",
    "--constraints.reference 0.01": "is below the loss of the noisy input",
    "--model.rank 17": "between 1 and the token width 16",
}


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("option", UNFIT)
def test_a_value_that_does_not_fit_the_data_is_refused_and_leaves_no_folder(option, capsys, tmp_path):
    line = refused(capsys, "run", "video-ut", *SMALL, *option.split(), "--out", str(tmp_path / "run"))
    assert option.split()[0] in line
    assert UNFIT[option] in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("source", "config"), [("table", text.TextConfig), ("image_folder", images.ImageConfig)])
def test_prepare_prepares_what_a_run_of_that_validation_share_opens(capsys, monkeypatch, tmp_path, source, config):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    rows = [f"a film {number}\t{'good' if number % 2 else 'bad'}" for number in range(40)]
    (tmp_path / "table.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    for number in range(40):
        file = tmp_path / "images" / ("test" if number < 8 else "train") / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(file)
    root = str(tmp_path / ("table.tsv" if source == "table" else "images"))
    assert main(["prepare", source, "--from", root, "--validation-share", "0.25"]) == 0
    log = []
    load = text.load if source == "table" else images.load
    data = load(config(source, root, validation_share=0.25), log=log.append)
    assert (data.num_examples("validation"), log) == (8, [])
    load(config(source, root), log=log.append)
    assert log, "another share is prepared anew"


def test_no_command_prints_the_usage(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "unroll_jax.train", "list"]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(program, env=environment(), stdout=output, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (141, "")


# A package that must not be imported: it says so in place of what the real one would do.
TRAP = "raise SystemExit('tensorflow was imported')"


@pytest.mark.slow
def test_the_program_lists_refuses_and_never_imports_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text(TRAP)
    variables = {"PYTHONPATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    program = """
import sys
from unroll_jax.train.__main__ import main
main(["list"])
print(main(["run", "video-ut", "--constraints.alpha", "2"]))
import unroll_jax.train.runs, train.data.video, train.report
print("tensorflow" in sys.modules)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "video-ut" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["2", "False"]
    assert done.stderr == "error: --constraints.alpha must be in (0, 1), got (2.0,)\n"


def test_list_has_a_line_for_each_experiment_and_details_of_those_of_a_word(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(EXPERIMENTS)
    assert lines[0].startswith("demo")
    for word, names in {
        "ucsd": {"ucsd-ut", "ucsd-dust", "ucsd-vit"},
        "video-dust": {"video-dust", "ucsd-dust"},
    }.items():
        assert main(["list", word]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert {line.split()[0] for line in lines if line[0] != " "} == names
        assert sum(line.startswith("  expect: ") for line in lines) == len(names)


def test_experiments_tell_figures_unless_they_were_never_run():
    figures = r"\d%|\d\.\d|feasible|in the paper|see [a-z0-9-]+ for"
    for name, experiment in EXPERIMENTS.items():
        assert not experiment.has_run or re.search(figures, experiment.expect), name
