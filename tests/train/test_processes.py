"""Real processes: two over loopback do what one does, killed or asked to end; one
that is killed at random moments."""

import importlib.util
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from tests.started import free_port
from tests.train.conftest import OF_PROCESSES, words_of
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.system.files import read_object, steps_in

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
STEPS = OF_PROCESSES["steps"]


def log_of(folder: Path) -> str:
    return folder.with_suffix(".log").read_text(errors="replace")


def wait_for_checkpoint(
    folder: Path, process: subprocess.Popen, *, after: int = 0
) -> None:
    limit = time.monotonic() + 240
    while newest(folder) <= after:
        assert process.poll() is None, log_of(folder)
        assert time.monotonic() < limit, log_of(folder)
        time.sleep(0.02)


def newest(folder: Path) -> int:
    return max(steps_in(folder / "checkpoints"), default=0)


@pytest.fixture
def pair(launched):
    processes = []

    def start(folder: Path, **options: object) -> list[subprocess.Popen]:
        joined = [
            "--coordinator",
            f"127.0.0.1:{free_port()}",
            "--processes",
            "2",
            "--process",
        ]
        processes[:] = [
            launched(folder, *joined, str(number), **options) for number in range(2)
        ]
        return processes

    yield start
    for process in processes:
        process.kill()
        process.wait()


def ends_of(processes: list[subprocess.Popen], timeout: float) -> list[int]:
    return [process.wait(timeout=timeout) for process in processes]


def assert_same(folder: Path, alone: Path) -> None:
    """Equality up to the order of float32 sums."""
    rows, expected = (read_metrics(one / "metrics.jsonl") for one in (folder, alone))
    for row, other in zip(rows, expected, strict=True):
        assert (row["kind"], row["step"]) == (other["kind"], other["step"])
        assert_allclose(row["layer_losses"], other["layer_losses"], rtol=1e-4)
        if row["kind"] == "train":
            assert_allclose(row["multipliers"], other["multipliers"], atol=1e-4)
    evaluation, other = (
        read_object(one / "evaluation.json") for one in (folder, alone)
    )
    assert_allclose(evaluation["rmse"]["0.15"], other["rmse"]["0.15"], rtol=1e-4)
    assert_allclose(evaluation["slacks"], other["slacks"], atol=1e-5)
    assert max(other["slacks"]) > 0.0


def test_two_processes_do_what_one_does_after_sigterm(launched, pair, alone, tmp_path):
    folder = tmp_path / "run"
    processes = pair(folder)
    wait_for_checkpoint(folder, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    assert ends_of(processes, 60) == [0, 0], log_of(folder)
    status = read_object(folder / "status.json")
    assert status["state"] == "interrupted", log_of(folder)
    assert status["mesh"] == "2 devices (data=2)"
    assert f"saved at step {status['steps']} of {STEPS}" in log_of(folder)
    assert (folder / "checkpoints" / str(status["steps"])).is_dir()
    assert launched(folder).wait(timeout=240) == 0, log_of(folder)
    assert f"going on from the checkpoint of step {status['steps']}" in log_of(folder)
    assert_same(folder, alone)


def test_one_that_is_killed_ends_both_and_damage_is_shared(pair, alone, tmp_path):
    folder = tmp_path / "run"
    processes = pair(folder, mesh="fsdp=2")
    wait_for_checkpoint(folder, processes[0], after=20)
    processes[0].kill()  # the one that coordinates
    of_first, of_other = ends_of(processes, 60)
    assert (of_first, of_other != 0) == (-signal.SIGKILL, True), log_of(folder)
    assert read_object(folder / "status.json")["state"] != "finished"
    damaged = newest(folder)
    for path in (
        folder / "checkpoints" / str(damaged) / "state" / "ocdbt.process_1" / "d"
    ).iterdir():
        path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    assert ends_of(pair(folder, mesh="fsdp=2"), 240) == [0, 0], log_of(folder)
    assert f"checkpoint {damaged} is damaged" in log_of(folder)
    assert f"going on from the checkpoint of step {damaged - 20}" in log_of(folder)
    assert (folder / "damaged" / str(damaged)).is_dir()
    assert read_object(folder / "status.json")["state"] == "finished"
    assert_same(folder, alone)


def test_what_one_process_would_refuse_ends_both_at_once(pair, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("of somebody's", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    assert ends_of(pair(folder), 60) == [2, 2], log_of(folder)
    assert "holds files but no config.json" in log_of(folder)
    assert "Traceback" not in log_of(folder)
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".log"
    ] == before


# A step, a restoration and a save: the method, the number of the call that starts a
# clock, and its most seconds.
KILLS = [
    ("Stop.at", 45, 0.1),
    ("Checkpoints.newest", 1, 0.3),
    ("Checkpoints.save", 2, 0.2),
]
# Writes the number of steps to a file before it dies: python -c VICTIM METHOD CALL
# SECONDS FILE ARGUMENTS
VICTIM = """
import os, pathlib, signal, sys, threading
from unroll_jax.train import __main__ as train
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.system.distributed import Stop

steps, calls, (method, call, seconds, file) = [0], [], sys.argv[1:5]

def die():
    pathlib.Path(file).write_text(str(steps[-1]))
    os.kill(os.getpid(), signal.SIGKILL)

clock = threading.Timer(float(seconds), die)
clock.daemon = True

def count(*_):
    calls.append(method)
    if len(calls) == int(call):
        clock.start()

def before(owner, name, do):
    original = getattr(owner, name)
    def both(self, *arguments, **options):
        do(*arguments)
        return original(self, *arguments, **options)
    setattr(owner, name, both)

owner, name = method.split(".")
before({"Checkpoints": Checkpoints, "Stop": Stop}[owner], name, count)
before(Stop, "at", lambda step, *_: steps.append(step))
sys.exit(train.main(sys.argv[5:]))
"""


@pytest.fixture
def killed(of_processes, few_clips):
    def run(folder: Path, *arguments: str) -> None:
        words = words_of(
            OF_PROCESSES
            | {"data.source": "video", "data.root": few_clips, "out": folder}
        )
        command = [sys.executable, "-c", VICTIM, *arguments, "run", "video-ut", *words]
        done = subprocess.run(command, env=of_processes, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert "Traceback" not in done.stderr

    return run


def results_of(folder: Path) -> tuple[dict, str, dict]:
    notes = {
        path.parent.parent.name: read_object(path)
        for path in folder.glob("checkpoints/*/notes/metadata")
    }
    # The second checksum is of times too.
    checkpoints = {
        step: (one["score"], one["digest"][0]) for step, one in notes.items()
    }
    evaluation = read_object(folder / "evaluation.json")
    figures = {
        name: value for name, value in evaluation.items() if "seconds" not in name
    }
    return checkpoints, (folder / "metrics.jsonl").read_text(), figures


def test_kills_lose_no_checkpoint_and_change_no_result(
    killed, launched, alone, tmp_path
):
    draw, file, folder, lost = random.Random(0), tmp_path / "done", tmp_path / "run", []
    for method, call, latest in KILLS:
        before = newest(folder)
        killed(folder, method, str(call), str(draw.uniform(0.0, latest)), str(file))
        assert newest(folder) >= before, "a checkpoint is lost"
        lost.append(max(int(file.read_text()), before) - newest(folder))
    assert launched(folder).wait(timeout=240) == 0, log_of(folder)
    assert not list((folder / "checkpoints").glob("*tmp*")), (
        "nothing half written is left"
    )
    assert results_of(folder) == results_of(alone)
    assert max(results_of(alone)[2]["multipliers"]) > 0.0
    print(f"steps lost in each of {len(lost)} kills: {lost}")
    # Training continues while a save is being written, for one interval at most.
    assert max(lost) <= 2 * OF_PROCESSES["validate-every"]


@pytest.mark.nightly
@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="the extra mpi is not installed"
)
def test_two_processes_of_mpirun_take_the_steps_of_one(alone, launched, tmp_path):
    folder = tmp_path / "run"
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    launcher = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    process = launched(folder, "--cluster", "mpi4py", launcher=launcher)
    try:
        assert process.wait(timeout=300) == 0, log_of(folder)
    finally:
        process.kill()
        process.wait()
    status = read_object(folder / "status.json")
    assert (status["state"], status["mesh"]) == ("finished", "2 devices (data=2)")
    assert_same(folder, alone)
