"""Two real processes over loopback do what one does, killed or asked to end, and continue as one or two."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.train.conftest import OF_PROCESSES
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.system.files import read_object

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

STEPS = OF_PROCESSES["steps"]
LAUNCH = ["launch", "--processes", "2", "--"]


def log_of(folder: Path) -> str:
    return folder.with_suffix(".log").read_text(errors="replace")


def wait_for_checkpoint(folder: Path, process: subprocess.Popen, *, after: int = 0) -> None:
    limit = time.monotonic() + 240
    while newest(folder) <= after:
        assert process.poll() is None, log_of(folder)
        assert time.monotonic() < limit, log_of(folder)
        time.sleep(0.02)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def children(process: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def assert_same(folder: Path, alone: Path) -> None:
    """To the order in which float32 sums are taken."""
    rows, expected = read_metrics(folder / "metrics.jsonl"), read_metrics(alone / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in rows] == [(row["kind"], row["step"]) for row in expected]
    for row, other in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row["layer_losses"], other["layer_losses"], rtol=1e-4)
        if row["kind"] == "train":
            np.testing.assert_allclose(row["multipliers"], other["multipliers"], atol=1e-4)
    evaluation, other = (read_object(one / "evaluation.json") for one in (folder, alone))
    np.testing.assert_allclose(evaluation["rmse"]["0.15"], other["rmse"]["0.15"], rtol=1e-4)
    np.testing.assert_allclose(evaluation["slacks"], other["slacks"], atol=1e-5)
    assert max(other["slacks"]) > 0.0


def test_two_processes_do_what_one_does_and_go_on_as_one_after_sigterm(launched, alone, tmp_path):
    folder = tmp_path / "run"
    process = launched(folder, *LAUNCH)
    wait_for_checkpoint(folder, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0, log_of(folder)
    status = read_object(folder / "status.json")
    assert status["state"] == "interrupted", log_of(folder)
    assert status["mesh"] == "2 devices (data=2)"
    assert f"saved at step {status['steps']} of {STEPS}" in log_of(folder)
    assert (folder / "checkpoints" / str(status["steps"])).is_dir()
    assert launched(folder).wait(timeout=240) == 0, log_of(folder)
    assert f"going on from the checkpoint of step {status['steps']}" in log_of(folder)
    assert_same(folder, alone)


def test_one_that_is_killed_ends_both_with_a_message_and_what_one_cannot_read_is_set_aside_by_both(
    launched, alone, tmp_path
):
    folder = tmp_path / "run"
    process = launched(folder, *LAUNCH, mesh="fsdp=2")
    wait_for_checkpoint(folder, process, after=20)
    os.kill(children(process)[0], signal.SIGKILL)  # the one that coordinates
    assert process.wait(timeout=60) == 128 + signal.SIGKILL, log_of(folder)
    assert "process 0 of 2" in log_of(folder)
    assert log_of(folder).count("was ended by SIGKILL") == 1
    assert read_object(folder / "status.json")["state"] != "finished"
    damaged = newest(folder)
    for path in (folder / "checkpoints" / str(damaged) / "state" / "ocdbt.process_1" / "d").iterdir():
        path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    assert launched(folder, *LAUNCH, mesh="fsdp=2").wait(timeout=240) == 0, log_of(folder)
    assert f"checkpoint {damaged} is damaged" in log_of(folder)
    assert f"going on from the checkpoint of step {damaged - 20}" in log_of(folder)
    assert (folder / "damaged" / str(damaged)).is_dir()
    assert read_object(folder / "status.json")["state"] == "finished"
    assert_same(folder, alone)


def test_what_one_process_would_refuse_ends_both_at_once(launched, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("of somebody's", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    assert launched(folder, *LAUNCH).wait(timeout=60) == 2, log_of(folder)
    assert "holds files but no config.json" in log_of(folder)
    assert "Traceback" not in log_of(folder)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".log"] == before


def test_a_cluster_that_is_not_there_is_one_error(launched, tmp_path):
    folder = tmp_path / "run"
    assert launched(folder, "--cluster", "slurm").wait(timeout=60) == 2, log_of(folder)
    *_, line = log_of(folder).splitlines()  # JAX says something before
    assert line.startswith("error: the processes did not come together (KeyError: 'SLURM_JOB_ID')")
    assert "Traceback" not in log_of(folder)
