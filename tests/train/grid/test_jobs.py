"""Cells in processes of their own: shares of the machine, what their ends mean, and the command with two of them."""

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.train.conftest import OF_PROCESSES
from tests.train.grid.conftest import states_of
from unroll_jax.train.config.video import VideoConfig
from unroll_jax.train.grid import jobs
from unroll_jax.train.grid.axes import Base, make_cells
from unroll_jax.train.grid.cells import LEFT, log_of
from unroll_jax.train.grid.jobs import cores_of, run_children, spending

pytestmark = pytest.mark.xdist_group("video-runs")


POPEN = subprocess.Popen


@pytest.fixture
def three():
    return make_cells([Base("video-ut", VideoConfig(), VideoConfig())], {"seed": "0,1,2"}, [])


@pytest.fixture
def scripted(monkeypatch):
    """Children are short programs in place of the command: ``scripted(code)`` sets their Python."""

    def use(code):
        started = []

        def popen(command, **options):
            started.append((command, options["env"]))
            return POPEN([sys.executable, "-S", "-c", code], **options)

        monkeypatch.setattr(jobs.subprocess, "Popen", popen)
        return started

    return use


def run_all(cells, folder, count=2, deadline=None):
    states = {}
    run_children(
        cells, folder=folder, words=["video-ut"], jobs=count, deadline=deadline,
        ended=lambda cell, state: states.update({cell.name: state}),
    )  # fmt: skip
    return states


def test_jobs_share_the_cores_and_each_has_one_at_least():
    assert [cores_of(slot, 2, [0, 1, 4, 5]) for slot in range(2)] == [[0, 4], [1, 5]]
    assert [cores_of(slot, 3, [0, 1]) for slot in range(3)] == [[0], [1], [0]]


def test_jobs_take_gpus_in_turn_and_share_the_memory_of_one(monkeypatch, three, scripted, tmp_path):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    started = scripted("import time; time.sleep(0.5)")
    run_all(three, tmp_path, count=3)
    environments = [environment for _, environment in started]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["2", "5", "2"]
    assert {each["XLA_PYTHON_CLIENT_MEM_FRACTION"] for each in environments} == {"0.450"}
    assert [command[-2:] for command, _ in started] == [["--only", cell.name] for cell in three]


def test_a_child_whose_cell_failed_says_why_and_one_that_died_is_tried_again(three, scripted, tmp_path):
    scripted("print('failed: the loss is not finite'); raise SystemExit(4)")
    (state,) = run_all(three[:1], tmp_path).values()
    assert state == ("failed", "the loss is not finite")
    scripted("import os; print('last words', flush=True); os.kill(os.getpid(), 9)")
    (state,) = run_all(three[:1], tmp_path).values()
    assert state.kind == "left"
    assert all(word in state.message for word in ("ended by SIGKILL", "last words", str(log_of(tmp_path, three[0]))))


def test_a_deadline_ends_what_runs_and_starts_nothing_more(three, scripted, tmp_path):
    started = scripted("import time; time.sleep(60)")
    began = time.monotonic()
    states = run_all(three, tmp_path, deadline=began + 0.3)
    assert time.monotonic() - began < 30
    assert len(started) == 2
    assert {state.kind for state in states.values()} == {LEFT.kind}


def test_a_budget_that_is_used_up_ends_the_work_and_one_that_is_not_leaves_no_signal():
    from unroll_jax.train.system.interrupts import stopping_at_once

    reached = []
    with stopping_at_once():
        with spending(0.005):
            time.sleep(30)
            reached.append("late")
        with spending(0.005):
            reached.append("in time")
        time.sleep(0.5)
        with spending(None):
            reached.append("unbounded")
    assert reached == ["in time", "unbounded"]


@pytest.mark.slow
def test_two_processes_asked_to_end_go_on_and_end_like_one(of_processes, few_clips, tmp_path):
    options = OF_PROCESSES | {"data.source": "frames", "data.root": few_clips, "over.seed": "0,1"}
    words = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "unroll_jax.train", "table", "video-ut", *words]

    def start(folder, *more):
        return subprocess.Popen([*command, "--out", str(folder), *more], env=of_processes, stdout=subprocess.DEVNULL)

    together = start(tmp_path / "together", "--jobs", "2")
    status = [tmp_path / "together" / "cells" / f"video-ut_seed-{seed}" / "status.json" for seed in (0, 1)]
    limit = time.monotonic() + 200
    while not all(path.exists() for path in status) and time.monotonic() < limit:
        time.sleep(0.2)
    together.send_signal(signal.SIGTERM)
    assert together.wait(120) == 0
    assert start(tmp_path / "together", "--jobs", "2").wait(300) == 0
    assert start(tmp_path / "alone").wait(300) == 0
    assert set(states_of(tmp_path / "together").values()) == {"finished"}
    for seed in (0, 1):
        rows = [
            (tmp_path / name / "cells" / f"video-ut_seed-{seed}" / "metrics.jsonl").read_text()
            for name in ("together", "alone")
        ]
        steps = [re.findall(r'"step": (\d+)', text) for text in rows]
        assert steps[0] == steps[1]
