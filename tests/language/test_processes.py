"""Completions of a run of two real processes over loopback: those that one process writes from the same weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.started import environment
from unroll_jax.train.system.files import read_object

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

SMALL = {
    "steps": 2,
    "batch-size": 4,
    "validate-every": 2,
    "max-length": 64,
    "test-gammas": 0.0,
    "train-examples": 40,
    "validation-examples": 12,
    "test-examples": 12,
    "completions": 2,
    "completion-tokens": 5,
    "model.dim": 8,
    "model.num-layers": 2,
    "model.num-heads": 2,
    "model.num-key-value-heads": 1,
    "model.hidden-dim": 12,
}


@pytest.fixture
def started(tmp_path):
    """Runs `unroll-jax` on words, as a process that starts others."""

    def start(*words):
        names = environment(UNROLL_PREPARED=str(tmp_path / "prepared"))
        done = subprocess.run(
            [sys.executable, "-m", "unroll_jax.train", *words], env=names, capture_output=True, timeout=300
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    return start


def answers_of(folder: Path):
    return [(row["prompt"], row["answers"]) for row in read_object(folder / "evaluation.json")["completions"]]


def test_two_processes_that_share_the_parameters_answer_as_one_does(started, tmp_path):
    folder = tmp_path / "run"
    words = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    started("launch", "--processes", "2", "--", "run", "sft-tiny", *words, "--mesh", "fsdp=2", "--out", str(folder))
    together = answers_of(folder)
    assert [list(answers) for _, answers in together] == [["0.0", "1.0"]] * 2
    assert any(answers["0.0"] for _, answers in together)
    started("evaluate", str(folder), "--mesh", "data=1")
    assert answers_of(folder) == together
