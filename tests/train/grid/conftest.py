"""One table of small runs on clips in memory, which tests read or copy."""

import json
import shutil
from pathlib import Path

import pytest

from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main
from unroll_jax.train.report import Report

SMALL = [
    *("--steps", "4", "--batch-size", "4", "--validate-every", "2", "--test-gammas", "0", "0.15", "0.3"),
    *("--model.num-layers", "2", "--model.rank", "4"),
]
METHODS = ["--over.train-gamma", "0,0.15", "--over.method", "erm,constrained"]
FRAMED = ["table", "video-ut", *SMALL, *METHODS, "--over.seed", "0"]
GRID = [*FRAMED, "--no-gallery"]
REFUSED = "video-ut_train-gamma-0.0_constrained_seed-0"


def table_of(folder):
    """What table.json says."""
    return json.loads((folder / "table.json").read_text())


def states_of(folder):
    """The state of every cell by its name."""
    return {row["cell"]: row["state"] for row in table_of(folder)["cells"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished table, to be read."""
    folder = tmp_path_factory.mktemp("grid") / "table"
    with clips_in_memory():
        assert main([*FRAMED, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """No page of curves, which takes longer to draw than such runs to train."""
    monkeypatch.setattr("unroll_jax.train.grid.writing.write_files", lambda *_: None)
    monkeypatch.setattr("unroll_jax.train.grid.writing.report_of", lambda _: lambda _: Report("", [], {}, []))


@pytest.fixture
def copied(whole, tmp_path, in_memory, undrawn) -> Path:
    """The same, to be changed and gone on with."""
    return shutil.copytree(whole, tmp_path / "table")


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The cells that are trained, or gone on with, from here on."""

    cells, ordinary = [], train.grid.cells.train_run

    def train_run(task, folder, **options):
        cells.append(folder.name)
        return ordinary(task, folder, **options)

    monkeypatch.setattr("unroll_jax.train.grid.cells.train_run", train_run)
    return cells
