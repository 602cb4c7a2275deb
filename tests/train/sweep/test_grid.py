"""Grids of small runs: their tables, what resumes, and what fails."""

import csv
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.train.commands import read, refused
from tests.train.conftest import OF_PROCESSES, words_of
from tests.train.sweep.conftest import CELLS, GRID, SMALL, record_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import StorageError
from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.metrics import read_metrics
from unroll_jax.train.sweep import compute
from unroll_jax.train.system.files import locked

pytestmark = pytest.mark.xdist_group("sweep")


def test_the_table_averages_seeds(whole):
    rows = list(csv.DictReader((whole / "table.csv").read_text().splitlines()))
    assert [row["cell"] for row in rows] == [row["cell"] for row in record_of(whole)["cells"]] == CELLS
    rmse = {cell: read(whole / cell / "evaluation.json")["rmse"] for cell in CELLS}
    for row in rows:
        assert float(row["RMSE"]) == pytest.approx(np.mean(list(rmse[row["cell"]].values())))
        assert float(row["RMSE at training"]) == pytest.approx(rmse[row["cell"]]["0.15"])
        assert float(row["RMSE above"]) == pytest.approx(rmse[row["cell"]]["0.3"])
    text = (whole / "table.md").read_text()
    plain = [rmse[cell]["0.3"] for cell in CELLS[:2]]
    assert f"{np.mean(plain):.4g} [{min(plain):.4g}, {max(plain):.4g}]" in text
    assert {row["feasible"] for row in rows[:2]} == {"True"}


def test_finished_cells_are_skipped_and_more_values_extend_a_sweep(copied, computed):
    before = record_of(copied)
    assert main([*GRID, "--out", str(copied)]) == 0
    assert (computed, record_of(copied)) == ([], before)
    (copied / CELLS[1] / "evaluation.json").unlink()
    assert main([*GRID[:-1], "0,1,2", "--out", str(copied)]) == 0
    assert computed == [CELLS[1], "plain_seed-2", "constrained_seed-2"]
    assert len(record_of(copied)["cells"]) == 6


def test_a_cell_interrupted_in_training_resumes_and_ends_like_one_left_alone(copied, whole, monkeypatch, capsys):
    from unroll_jax.train import loop

    shutil.rmtree(copied / CELLS[2])
    validate = loop.validate

    def interrupted(task, state):
        if state.step == 4:
            raise KeyboardInterrupt
        return validate(task, state)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", interrupted)
        assert main([*GRID, "--out", str(copied)]) == 130
    assert main([*GRID, "--out", str(copied)]) == 0
    assert "from the checkpoint of step 2" in capsys.readouterr().out
    metrics = [folder / CELLS[2] / "metrics.jsonl" for folder in (copied, whole)]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


def test_a_cell_that_fails_ends_no_other_and_is_named_at_the_end(copied, tmp_path, monkeypatch, computed, capsys):
    """The run at the high rate is real, the other one is of the sweep that is there."""
    usual, train_run = EXPERIMENTS["video-ut"].config.primal.learning_rate, compute.train_run
    rates = ["--over.primal.learning-rate", f"1e9,{usual}", "--method", "plain", "--out", str(tmp_path / "rates")]
    command = ["sweep", "video-ut", *SMALL, *rates]

    def trained(task, folder, **options):
        if task.config.primal.learning_rate > 1.0:
            return train_run(task, folder, **options)
        return shutil.copytree(copied / CELLS[0], folder)

    monkeypatch.setattr(compute, "train_run", trained)
    assert main(command) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("failed: learning-rate-1000000000.0: ")
    assert [row["state"] for row in record_of(tmp_path / "rates")["cells"]] == ["failed", "finished"]
    computed.clear()
    assert main(command) == 1
    assert computed == ["learning-rate-1000000000.0"], "it is tried again"


def test_a_disk_in_the_way_ends_the_sweep(copied, monkeypatch, capsys):
    shutil.rmtree(copied / CELLS[0])
    before = record_of(copied)

    def full(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr("unroll_jax.train.sweep.compute.train_run", full)
    assert "the disk is full" in refused(capsys, *GRID, "--out", str(copied))
    assert record_of(copied) == before


def test_a_sweep_takes_no_folder_of_something_else_and_no_cell_of_another_sweep(copied, tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("dear")
    assert "sweep.json" in refused(capsys, *GRID, "--out", str(tmp_path / "thesis"))
    other = [word if word != "4" else "2" for word in GRID]
    assert "steps was 4, is now 2" in refused(capsys, *other, "--out", str(copied))
    with locked(copied):
        assert "another process" in refused(capsys, *GRID, "--out", str(copied))


@pytest.mark.slow
def test_processes_that_are_ended_resume_and_end_with_every_step_once(of_processes, few_clips, tmp_path):
    options = OF_PROCESSES | {"data.source": "video", "data.root": few_clips, "over.seed": "0,1"}
    command = [sys.executable, "-m", "unroll_jax.train", "sweep", "video-ut", *words_of(options)]

    def start(folder, *more):
        return subprocess.Popen([*command, "--out", str(folder), *more], env=of_processes, stdout=subprocess.DEVNULL)

    together = start(tmp_path / "together", "--jobs", "2")
    status = [tmp_path / "together" / f"seed-{seed}" / "status.json" for seed in (0, 1)]
    limit = time.monotonic() + 200
    while not all(path.exists() for path in status) and time.monotonic() < limit:
        time.sleep(0.2)
    together.send_signal(signal.SIGTERM)
    assert together.wait(120) == 0
    assert start(tmp_path / "together", "--jobs", "2").wait(300) == 0
    assert [row["state"] for row in record_of(tmp_path / "together")["cells"]] == ["finished"] * 2
    for seed in (0, 1):
        rows = read_metrics(tmp_path / "together" / f"seed-{seed}" / "metrics.jsonl")
        steps = [row["step"] for row in rows if row["kind"] == "train"]
        assert (np.diff(steps) == 1).all()  # none is missing, none is there twice
        assert len(steps) == OF_PROCESSES["steps"]


@pytest.mark.slow
def test_a_child_that_dies_is_one_failure_and_its_log_is_kept(of_processes, tmp_path):
    root = str(tmp_path / "nowhere")
    command = [sys.executable, "-m", "unroll_jax.train", "sweep", "video-ut", *SMALL, "--data.source", "video"]
    command += ["--data.root", root, "--over.seed", "0,1", "--jobs", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=of_processes, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--data.root {root}" in done.stderr
