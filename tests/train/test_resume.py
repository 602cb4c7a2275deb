"""Killed at any moment and started again with the same command, a run ends bit for bit like one left alone."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from train.checkpoint import Checkpoints
from train.config import from_json
from train.constrained import init_state
from train.metrics import read_metrics
from train.report.files import read_object
from train.video.config import VideoConfig
from train.video.task import video_task

STEPS, EVERY = 240, 20
OPTIONS = {
    "steps": STEPS,
    "batch-size": 8,
    "validate-every": EVERY,
    "test-gammas": 0.15,
    "model.num-layers": 2,
    "model.rank": 8,
    # Multipliers that move, and an optimiser of theirs with a state of its own.
    "constraints.alpha": 0.6,
    "dual.optimizer": "adam",
}
ARGUMENTS = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]


class Shape:
    """The shape of the video data."""

    pixel_std, num_tokens, token_dim = 0.25, 20, 256

    def num_sequences(self, split):
        return 1


@pytest.fixture(scope="module")
def launch(of_processes, few_clips):
    """Starts ``python -m train run video-ut`` in a folder, its output going to a file."""
    arguments = [*ARGUMENTS, "--data.source", "frames", "--data.root", str(few_clips)]

    def start(folder: Path) -> subprocess.Popen:
        folder.parent.mkdir(exist_ok=True)
        with folder.with_suffix(".log").open("ab") as output:
            command = [sys.executable, "-m", "train", "run", "video-ut", *arguments, "--out", str(folder)]
            return subprocess.Popen(command, env=of_processes, stdout=output, stderr=subprocess.STDOUT)

    return start


@pytest.fixture(scope="module")
def uninterrupted(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert launch(folder).wait(timeout=300) == 0, folder.with_suffix(".log").read_text()
    return folder


def _last_state(folder):
    values = read_object(folder / "config.json")
    config = from_json(
        VideoConfig, {k: v for k, v in values.items() if k not in ("experiment", "found")}, source=folder
    )
    like = jax.eval_shape(lambda: init_state(config, video_task(config, Shape())))
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        step, state, _ = checkpoints.newest(like)
    assert step == STEPS
    return state


def _wait_until(happened, process):
    """Polls closely; False if the process ended before."""
    while not happened():
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def _rows(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _being_written(folder):
    return any("tmp" in path.name for path in (folder / "checkpoints").glob("*"))


def _kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_bit_for_bit_like_one_left_alone(launch, uninterrupted, tmp_path):
    chance, folder = random.Random(2), tmp_path / "run"
    kills = []
    for number in range(4):
        process, start = launch(folder), _rows(folder)
        if number % 2:  # in the middle of writing a checkpoint
            seen = _wait_until(lambda start=start: _rows(folder) > start and _being_written(folder), process)
        else:  # between two steps
            target = start + chance.randint(5, 2 * EVERY)
            seen = _wait_until(lambda target=target: _rows(folder) >= target, process)
            time.sleep(chance.uniform(0.0, 0.2))
        assert seen, folder.with_suffix(".log").read_text()
        kills.append(_being_written(folder))
        _kill(process)
        assert not (folder / "evaluation.json").exists(), "killed too late to mean anything"
    assert any(kills), "no kill fell into the writing of a checkpoint"
    assert launch(folder).wait(timeout=300) == 0, folder.with_suffix(".log").read_text()

    found, expected = (jax.tree.leaves_with_path(_last_state(run)) for run in (folder, uninterrupted))
    for (path, leaf), (_, other) in zip(found, expected, strict=True):
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes(), jax.tree_util.keystr(path)
    assert (folder / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    assert not list((folder / "checkpoints").glob("*tmp*"))
    assert "Traceback" not in folder.with_suffix(".log").read_text()


@pytest.mark.slow
def test_the_uninterrupted_run_is_worth_comparing_with(uninterrupted):
    rows = read_metrics(uninterrupted / "metrics.jsonl")
    assert sum(row["kind"] == "train" for row in rows) == STEPS
    assert sum(row["kind"] == "validation" for row in rows) == STEPS // EVERY
    assert max(rows[-2]["multipliers"]) > 0.0
    assert "Warning" not in uninterrupted.with_suffix(".log").read_text()
