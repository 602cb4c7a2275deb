"""A small sweep of video on clips in memory, to be read or copied."""

import shutil
from pathlib import Path

import pytest

from tests.train.commands import read
from tests.train.conftest import clips_in_memory
from unroll_jax.train.__main__ import main

SMALL = [
    *("--steps", "4", "--batch-size", "4", "--validate-every", "2", "--test-gammas", "0", "0.15", "0.3"),
    *("--model.num-layers", "2", "--model.rank", "4"),
]
GRID = ["sweep", "video-ut", *SMALL, "--over.method", "plain,constrained", "--over.seed", "0,1"]
CELLS = ["plain_seed-0", "plain_seed-1", "constrained_seed-0", "constrained_seed-1"]


def record_of(folder):
    return read(folder / "sweep.json")


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    with clips_in_memory():
        assert main([*GRID, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(whole, tmp_path, in_memory) -> Path:
    return shutil.copytree(whole, tmp_path / "copied")


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    from unroll_jax.train.sweep import compute

    names, train_run = [], compute.train_run

    def counted(task, folder, **options):
        names.append(folder.name)
        return train_run(task, folder, **options)

    monkeypatch.setattr(compute, "train_run", counted)
    return names
