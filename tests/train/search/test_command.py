"""The command on real runs: interrupted in training, it ends like one left alone; mistakes are one line."""

import json
import subprocess
import sys

import pytest

from tests.started import environment
from unroll_jax.train.__main__ import main

SMALL = [
    *("--steps", "4", "--batch-size", "4", "--validate-every", "2", "--test-gammas", "0"),
    *("--model.num-layers", "2", "--model.rank", "4", "--sampler", "grid", "--over.primal-rate", "1e-3,2e-3"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("in_memory")
def test_a_real_search_interrupted_in_training_goes_on_and_ends_like_one_left_alone(
    clips, monkeypatch, capsys, tmp_path
):
    tested = []
    examples = clips.examples
    monkeypatch.setattr(clips, "examples", lambda split, **options: tested.append(split) or examples(split, **options))
    assert main(["search", "video-ut", *SMALL, "--out", str(tmp_path / "whole")]) == 0
    output = capsys.readouterr().out
    best = json.loads((tmp_path / "whole" / "search.json").read_text())
    assert (tmp_path / "whole" / "parallel_coordinates.png").read_bytes().startswith(b"\x89PNG")
    again = next(line for line in output.splitlines() if line.startswith("again: unroll-jax "))
    assert tested[:4] == ["validation"] * 4, "two trials, validated twice each, and no test data"
    model = ["test", "test", "validation", "validation"]
    floors = ["train", "test", "test"]
    assert tested[4:] == [*model, *floors], "the best trial alone, at two noise levels, at the end"

    calls, validate = [], train.loop.validate

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:  # the last validation of the second trial
            raise KeyboardInterrupt
        return validate(*arguments)

    monkeypatch.setattr("unroll_jax.train.loop.validate", interrupted)
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
    words = again.removeprefix("again: unroll-jax ").split()
    assert main([*words, "--out", str(tmp_path / "whole" / best["best"])]) == 0
    assert "finished already" in capsys.readouterr().out, "the command printed is that of the best trial"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no experiment given"]),
        (["video-ut", "--over.momentum", "0:1"], ["Unrecognized options", "--over.momentum"]),
        (["video-ut", "--sampler", "cma"], ["--sampler", "'cma'", "tpe", "grid"]),
        (["video-ut", "--trials", "0"], ["--trials must be from 1 to 100000, got 0"]),
        (["video-ut", "--steps", "0"], ["--steps must be a whole number from 1"]),
        (["video-ut", "--sampler", "grid"], ["--sampler grid needs values", "--over.f-ref"]),
        (["demo"], ["one variant", "--method"]),
        (["video-ut", "--track", "mlflow"], ["--track mlflow"]),
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


def test_ranges_trials_and_methods_are_refused_without_importing_jax_or_optuna():
    program = """\
import sys
from unroll_jax.train.__main__ import main
for words in (["demo"], ["video-ut", "--trials", "0"], ["video-ut", "--over.alpha", "0.3:0.1"]):
    assert main(["search", *words]) == 2
print([name for name in ("jax", "optuna", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    assert "--over.alpha 0.3:0.1: 0.3 is not below 0.1" in done.stderr


def test_the_options_of_a_file_count_in_a_search(monkeypatch, tmp_path):
    (tmp_path / "small.yaml").write_text("steps: 7\nconstraints:\n  alpha: 0.3\n")
    calls = []
    monkeypatch.setattr(
        "unroll_jax.train.search.trials.search", lambda config, **options: calls.append((config, options))
    )
    assert main(["search", "video-ut", "--config", str(tmp_path / "small.yaml"), "--batch-size", "4"]) == 0
    assert main(["search", "video-ut", "--config", str(tmp_path / "nowhere.yaml")]) == 2
    ((config, options),) = calls
    assert (config.steps, config.constraints.alpha, config.batch_size) == (7, (0.3,), 4)
    assert options["experiment"] == "video-ut"


def test_help_names_the_options_of_the_search_and_of_the_experiment(capsys):
    assert main(["search", "video-ut", "--help"]) == 0
    output = capsys.readouterr().out
    for word in ("--trials", "--sampler", "--over.f-ref", "--over.resilience", "--constraints.alpha", "--steps"):
        assert word in output
