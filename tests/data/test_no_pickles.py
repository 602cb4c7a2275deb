"""Pickled files are never loaded, as data or as weights: a command ends in one line,
and the pickle runs no code."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.decoders.conftest import write_llama
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

    def write(name: str) -> None:
        path, payload = tmp_path / name, Payload(tmp_path / "trace")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, np.array([payload], dtype=object), allow_pickle=True)
        else:
            path.write_bytes(pickle.dumps(payload))

    yield write
    assert not (tmp_path / "trace").exists()
    assert not list((tmp_path / "prepared").rglob("*.array_record*"))


FILES = [
    *itertools.product(("data.pkl", "data.npy"), SOURCES),
    ("cifar-10-batches-py/data_batch_1", "cifar10"),
    ("folder/train/cat/1.png", "image_folder"),
    ("folder/clip/001.png", "video"),
]


@pytest.mark.parametrize(("name", "source"), FILES)
def test_pickled_data_end_in_one_line(pickled, tmp_path, capsys, name, source):
    pickled(name)
    root = str(tmp_path / name.partition("/")[0])
    assert root in refused(capsys, "prepare", source, "--from", root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pkl", "is not a folder"),
        ("model.npy", "is not a folder"),
        ("llama/model.safetensors", "cannot be read as safetensors"),
        ("llama/pytorch_model.bin", "pickles are never loaded"),
    ],
)
def test_pickled_weights_end_in_one_line(pickled, capsys, name, words, tmp_path):
    """In a folder that has everything but weights, so that these are looked for."""
    (write_llama(tmp_path) / "model.safetensors").unlink()
    pickled(name)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\n")
    source = str(tmp_path / name.partition("/")[0])
    message = refused(capsys, "generate", source, "--prompts", str(prompts))
    assert source in message
    assert words in message
