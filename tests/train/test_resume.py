"""Killed at any moment and started again with the same command, a run ends bit for bit like one left alone."""

import signal
import time

import jax
import numpy as np
import pytest

from tests.train.conftest import OF_PROCESSES
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.runs import FACTS, read_config
from unroll_jax.train.step import state_like
from unroll_jax.train.system.files import read_object
from unroll_jax.train.tasks.video import VideoTask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

STEPS, EVERY = OF_PROCESSES["steps"], OF_PROCESSES["validate-every"]


def _last_state(folder):
    task = VideoTask.rebuild(read_config(folder)[1], read_object(folder / FACTS))
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        step, state, _ = checkpoints.newest(state_like(task))
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


def test_a_run_killed_again_and_again_ends_bit_for_bit_like_one_left_alone(launched, alone, tmp_path):
    folder, kills = tmp_path / "run", []
    for in_a_save in (False, True):
        process, start = launched(folder), _rows(folder)
        if in_a_save:  # in the middle of writing a checkpoint
            seen = _wait_until(lambda start=start: _rows(folder) > start and _being_written(folder), process)
        else:  # between two steps
            seen = _wait_until(lambda target=start + EVERY + 7: _rows(folder) >= target, process)
        assert seen, folder.with_suffix(".log").read_text()
        kills.append(_being_written(folder))
        _kill(process)
        assert not (folder / "evaluation.json").exists(), "killed too late to mean anything"
    assert any(kills), "no kill fell into the writing of a checkpoint"
    assert launched(folder).wait(timeout=300) == 0, folder.with_suffix(".log").read_text()

    actual, expected = (jax.tree.leaves_with_path(_last_state(run)) for run in (folder, alone))
    for (path, leaf), (_, other) in zip(actual, expected, strict=True):
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes(), jax.tree_util.keystr(path)
    assert (folder / "metrics.jsonl").read_bytes() == (alone / "metrics.jsonl").read_bytes()
    assert not list((folder / "checkpoints").glob("*tmp*"))
    assert "Traceback" not in folder.with_suffix(".log").read_text()

    rows = read_metrics(alone / "metrics.jsonl")  # of the run that is compared with: it has all that a run may have
    assert [sum(row["kind"] == kind for row in rows) for kind in ("train", "validation")] == [STEPS, STEPS // EVERY]
    assert max(rows[-2]["multipliers"]) > 0.0
    assert "Warning" not in alone.with_suffix(".log").read_text()
