"""Grids of small runs: their tables, what resumes, and what fails."""

import csv
import errno
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.train.commands import read, refused
from tests.train.conftest import OF_PROCESSES, clips_in_memory, words_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.metrics import read_metrics
from unroll_jax.train.system.files import locked

pytestmark = pytest.mark.xdist_group("video-runs")  # whose programs the cells have
OPTIONS = (
    "--steps 6 --batch-size 4 --validate-every 2 --test-gammas 0 0.3"
    " --model.num-layers 2 --model.rank 4"
)
AXES = "--over.method plain,constrained --over.seed 0,1"
GRID = f"sweep video-ut {OPTIONS} {AXES}".split()
CELLS = ["plain_seed-0", "plain_seed-1", "constrained_seed-0", "constrained_seed-1"]


def record_of(folder):
    return read(folder / "sweep.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    with clips_in_memory():
        assert main([*GRID, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(whole, tmp_path, in_memory):
    return shutil.copytree(whole, tmp_path / "copied")


@pytest.fixture
def in_place_of_training(monkeypatch):
    """``in_place_of_training(act)``: a cell is ``act(folder)``. The list that comes
    back has the names of the cells."""

    def replace(act):
        names = []

        def train_run(task, plan, folder, **options):
            names.append(folder.name)
            act(folder)

        compute = "unroll_jax.train.sweep.compute"
        monkeypatch.setattr(f"{compute}.train_run", train_run)
        monkeypatch.setattr(f"{compute}.evaluate_run", lambda *_, **__: None)
        return names

    return replace


def test_the_table_averages_seeds(whole):
    rows = list(csv.DictReader((whole / "table.csv").read_text().splitlines()))
    recorded = [row["cell"] for row in record_of(whole)["cells"]]
    assert [row["cell"] for row in rows] == recorded == CELLS
    rmse = {cell: read(whole / cell / "evaluation.json")["rmse"] for cell in CELLS}
    for row in rows:
        scores = rmse[row["cell"]]
        mean = np.mean([scores["0.0"], scores["0.3"]])
        assert float(row["RMSE"]) == pytest.approx(mean)
        assert float(row["RMSE at training"]) == pytest.approx(scores["0.15"])
        assert float(row["RMSE above"]) == pytest.approx(scores["0.3"])
    plain = [rmse[cell]["0.3"] for cell in CELLS[:2]]
    shown = f"{np.mean(plain):.4g} [{min(plain):.4g}, {max(plain):.4g}]"
    assert shown in (whole / "table.md").read_text()


def test_finished_cells_are_skipped_and_more_values_extend_a_sweep(
    copied, in_place_of_training
):
    before, trained = (
        record_of(copied),
        in_place_of_training(lambda folder: shutil.copytree(copied / CELLS[0], folder)),
    )
    assert main([*GRID, "--out", str(copied)]) == 0
    assert (trained, record_of(copied)) == ([], before)
    assert main([*GRID[:-1], "0,1,2", "--out", str(copied)]) == 0
    assert trained == ["plain_seed-2", "constrained_seed-2"]
    assert len(record_of(copied)["cells"]) == 6


def test_a_finished_cell_that_was_not_evaluated_is(copied, whole):
    (copied / CELLS[1] / "evaluation.json").unlink()
    assert main([*GRID, "--out", str(copied)]) == 0
    assert record_of(copied) == record_of(whole)


@pytest.mark.parametrize(
    "error",
    [UserError("the loss is not finite"), ValueError("shapes differ")],
    ids=repr,
)
def test_a_cell_that_fails_is_named_and_tried_again(
    copied, in_place_of_training, capsys, error
):
    shutil.rmtree(copied / CELLS[0])
    before = record_of(copied)

    def fail(folder):
        folder.mkdir(exist_ok=True)
        (folder / "status.json").write_text(
            '{"state": "failed", "steps": 0, "messages": []}'
        )
        raise error

    for _ in range(2):
        trained = in_place_of_training(fail)
        assert main([*GRID, "--out", str(copied)]) == 1
        assert trained == CELLS[:1]
        assert re.search(f"failed: {CELLS[0]}: .*{error}", capsys.readouterr().out)
    assert record_of(copied)["cells"][1:] == before["cells"][1:]
    assert record_of(copied)["cells"][0]["state"] == "failed"


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(errno.ENOSPC, "the disk is full"), 2), (KeyboardInterrupt(), 130)],
)
def test_a_full_disk_and_an_interrupt_keep_the_record(
    copied, in_place_of_training, error, code
):
    shutil.rmtree(copied / CELLS[0])
    shutil.rmtree(copied / CELLS[1])
    before = record_of(copied)

    def stop(folder):
        raise error

    trained = in_place_of_training(stop)
    assert main([*GRID, "--out", str(copied)]) == code
    assert trained == CELLS[:1]
    assert record_of(copied) == before


def test_folders_of_something_else_and_of_other_sweeps_are_refused(
    copied, tmp_path, capsys
):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("dear")
    assert "sweep.json" in refused(capsys, *GRID, "--out", str(tmp_path / "thesis"))
    other = [word if word != "6" else "2" for word in GRID]
    assert "steps was 6, is now 2" in refused(capsys, *other, "--out", str(copied))
    with locked(copied):
        assert "another process" in refused(capsys, *GRID, "--out", str(copied))


@pytest.mark.slow
def test_a_process_that_fails_ends_no_other(
    of_processes, few_clips, tmp_path, monkeypatch, capsys
):
    folder, printed = tmp_path / "together", tmp_path / "printed"
    (folder / "seed-1").mkdir(parents=True)
    (folder / "sweep.json").write_text('{"experiment": "video-ut"}')
    (folder / "seed-1" / "thesis.tex").write_text("dear")
    data = {"data.source": "video", "data.root": few_clips, "validate-every": 60}
    options = [
        "sweep",
        "video-ut",
        *words_of(OF_PROCESSES | data | {"over.seed": "0,1", "out": folder}),
    ]
    command = [sys.executable, "-u", "-m", "unroll_jax.train", *options, "--jobs", "2"]
    with printed.open("wb") as output:
        together = subprocess.Popen(command, env=of_processes, stdout=output)
    limit = time.monotonic() + 200
    while not (
        (folder / "seed-0" / "status.json").exists()
        and "seed-1: " in printed.read_text()
    ):
        assert together.poll() is None, printed.read_text()
        assert time.monotonic() < limit
        time.sleep(0.1)
    together.send_signal(signal.SIGTERM)
    assert together.wait(120) == 0
    monkeypatch.setenv("UNROLL_PREPARED", of_processes["UNROLL_PREPARED"])
    assert read(folder / "seed-0" / "status.json")["state"] == "interrupted"
    assert main(options) == 1
    assert re.search(
        r"failed: seed-1: .*holds files but no config\.json", capsys.readouterr().out
    )
    assert "holds files but no config.json" in (folder / "seed-1.log").read_text()
    assert [row["state"] for row in record_of(folder)["cells"]] == ["finished", ""]
    rows = read_metrics(folder / "seed-0" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(
        range(1, OF_PROCESSES["steps"] + 1)
    )
