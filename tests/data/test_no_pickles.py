"""Pickled files are never loaded, as data or as weights: a command ends in one line,
and the pickle runs no code."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.train.commands import refused

SOURCES = (
    "video",
    "image_folder",
    "cifar10",
    "camvid",
    "cityscapes",
    "table",
    "imdb",
    "sst2",
    "mnli",
    "alpaca",
)


class Payload:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.write_text, (self.trace, "unpickled")


@pytest.fixture
def pickled(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))

    def write(name: str) -> Path:
        path, payload = tmp_path / name, Payload(tmp_path / "trace")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, np.array([payload], dtype=object), allow_pickle=True)
        else:
            path.write_bytes(pickle.dumps(payload))
        return path

    yield write
    assert not (tmp_path / "trace").exists()
    assert not list((tmp_path / "prepared").rglob("*.array_record*"))


@pytest.mark.parametrize("suffix", [".pkl", ".npy"])
@pytest.mark.parametrize("source", SOURCES)
def test_pickled_data_end_in_one_line(pickled, capsys, source, suffix):
    file = pickled(f"data{suffix}")
    assert str(file) in refused(capsys, "prepare", source, "--from", str(file))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cifar-10-batches-py/data_batch_1", "cifar10"),
        ("folder/train/cat/1.png", "image_folder"),
        ("folder/clip/001.png", "video"),
    ],
)
def test_folders_of_pickled_data_end_in_one_line(pickled, capsys, name, source):
    root = pickled(name).parents[name.count("/") - 1]
    assert str(root) in refused(capsys, "prepare", source, "--from", str(root))


@pytest.mark.parametrize(
    "name",
    ["model.pkl", "model.npy", "llama/model.safetensors", "llama/pytorch_model.bin"],
)
def test_pickled_weights_end_in_one_line(pickled, capsys, name, tmp_path):
    file, prompts = pickled(name), tmp_path / "prompts.txt"
    prompts.write_text("a\n")
    source = file if file.parent == tmp_path else file.parent
    assert str(source) in refused(
        capsys, "generate", str(source), "--prompts", str(prompts)
    )
