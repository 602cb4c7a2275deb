"""Two real processes over loopback: the run of one process; killed, or asked to end, and going on as one or two."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from train.errors import UserError
from train.metrics import read_metrics
from train.processes import Membership, join
from train.report.files import read_object

pytestmark = pytest.mark.slow

STEPS, EVERY = 60, 20
OPTIONS = {
    "steps": STEPS,
    "batch-size": 8,
    "validate-every": EVERY,
    "test-gammas": 0.15,
    "model.num-layers": 2,
    "model.rank": 8,
    "constraints.alpha": 0.6,
    "dual.optimizer": "adam",
}
RUN = ["run", "video-ut", *(part for name, value in OPTIONS.items() for part in (f"--{name}", str(value)))]
# What is nonlinear over the batch, and what else a state may hold; a few steps of it.
MANY = {
    "steps": 8,
    "accumulate": 2,
    "average": 0.9,
    "constraints.bind": "tail",
    "constraints.slacks": "explicit",
    "constraints.resilience": 5.0,
}
LAUNCH = ["launch", "--processes", "2", "--"]


@pytest.fixture(scope="module")
def start(of_processes, few_clips):
    data = ["--data.source", "frames", "--data.root", str(few_clips)]

    def start(folder: Path, *before: str, **changes: object) -> subprocess.Popen:
        changed = [part for name, value in changes.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "train", *before, *RUN, *data, *changed, "--out", str(folder)]
        with folder.with_suffix(".log").open("ab") as output:
            return subprocess.Popen(command, env=of_processes, stdout=output, stderr=subprocess.STDOUT)

    return start


@pytest.fixture(scope="module")
def alone(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert start(folder).wait(timeout=300) == 0, said(folder)
    return folder


def said(folder: Path) -> str:
    return folder.with_suffix(".log").read_text(errors="replace")


def wait_for_checkpoint(folder: Path, process: subprocess.Popen, *, after: int = 0) -> None:
    limit = time.monotonic() + 240
    while newest(folder) <= after:
        assert process.poll() is None, said(folder)
        assert time.monotonic() < limit, said(folder)
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


def test_two_processes_do_what_one_does_and_go_on_as_one_after_sigterm(start, alone, tmp_path):
    folder = tmp_path / "run"
    process = start(folder, *LAUNCH)
    wait_for_checkpoint(folder, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0, said(folder)
    status = read_object(folder / "status.json")
    assert status["state"] == "interrupted", said(folder)
    assert status["mesh"] == "2 devices (data=2)"
    assert f"saved at step {status['steps']} of {STEPS}" in said(folder)
    assert (folder / "checkpoints" / str(status["steps"])).is_dir()
    assert start(folder).wait(timeout=240) == 0, said(folder)
    assert f"going on from the checkpoint of step {status['steps']}" in said(folder)
    assert_same(folder, alone)


def test_two_processes_do_what_one_does_with_parts_averages_tails_and_slacks(start, tmp_path):
    for name, before in (("one", []), ("two", LAUNCH)):
        assert start(tmp_path / name, *before, **MANY).wait(timeout=240) == 0, said(tmp_path / name)
    assert_same(tmp_path / "two", tmp_path / "one")
    slacks = read_object(tmp_path / "one" / "evaluation.json")["slacks"]
    np.testing.assert_allclose(read_object(tmp_path / "two" / "evaluation.json")["slacks"], slacks, atol=1e-5)
    assert max(slacks) > 0.0


def test_one_that_is_killed_ends_both_with_a_message_and_two_or_one_go_on(start, alone, tmp_path):
    folder, after = tmp_path / "run", 0
    for victim in (0, 1):  # the second time, of two that went on
        process = start(folder, *LAUNCH)
        wait_for_checkpoint(folder, process, after=after)
        os.kill(children(process)[victim], signal.SIGKILL)
        began, after = time.monotonic(), newest(folder)
        assert process.wait(timeout=60) == 128 + signal.SIGKILL, said(folder)
        assert time.monotonic() - began < 60
        assert f"process {victim} of 2" in said(folder)
        assert said(folder).count("was ended by SIGKILL") == victim + 1
        assert read_object(folder / "status.json")["state"] != "finished"
    assert start(folder).wait(timeout=240) == 0, said(folder)
    assert said(folder).count("going on from the checkpoint of step") == 2
    assert read_object(folder / "status.json")["state"] == "finished"
    assert_same(folder, alone)


def test_a_checkpoint_that_one_of_two_processes_cannot_read_is_set_aside_by_both(start, tmp_path):
    folder, options = tmp_path / "run", {"mesh": "fsdp=2", "steps": 4, "validate-every": 2}
    assert start(folder, *LAUNCH, **options).wait(timeout=240) == 0, said(folder)
    for path in (folder / "checkpoints" / "4" / "state" / "ocdbt.process_1" / "d").iterdir():
        path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    for name in ("status.json", "evaluation.json"):
        (folder / name).unlink()
    assert start(folder, *LAUNCH, **options).wait(timeout=240) == 0, said(folder)
    assert "checkpoint 4 is damaged" in said(folder)
    assert "going on from the checkpoint of step 2" in said(folder)
    assert (folder / "damaged" / "4").is_dir()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": "data=1"}, "--mesh data=1 leaves process 1 without a device"),
        ({"batch-size": 7}, "leaves process 1 without a device"),
        ({}, "holds files but no config.json"),
    ],
)
def test_what_one_process_would_refuse_ends_both_at_once(start, tmp_path, options, words):
    folder = tmp_path / "run"
    if not options:
        folder.mkdir()
        (folder / "thesis.txt").write_text("of somebody's", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    assert start(folder, *LAUNCH, **options).wait(timeout=60) == 2, said(folder)
    assert words in said(folder)
    assert "Traceback" not in said(folder)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".log"] == before


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (Membership("localhost:1", 2), "--coordinator, --processes and --process go together"),
        (Membership("localhost", 2, 0), "--coordinator must be HOST:PORT, got localhost"),
        (Membership("localhost:1", 2, 2), "--process must be in"),
        (Membership(cluster="fleet"), "--cluster must be one of auto"),
        (Membership(process=0, cluster="slurm"), "finds the processes by itself"),
    ],
)
def test_a_membership_that_cannot_be_is_one_error(member, words):
    with pytest.raises(UserError, match=words):
        join(member)


def test_a_cluster_that_is_not_there_is_one_error(start, tmp_path):
    folder = tmp_path / "run"
    assert start(folder, "--cluster", "slurm").wait(timeout=60) == 2, said(folder)
    *_, line = said(folder).splitlines()  # JAX says something before
    assert line.startswith("error: the processes did not come together (KeyError: 'SLURM_JOB_ID')")
    assert "Traceback" not in said(folder)
