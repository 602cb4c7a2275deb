"""Video is prepared once, by any number of processes, whole or not at all. Damage to
prepared data is reported."""

import functools
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.data.conftest import write_pictures
from tests.errors import one_line
from tests.train.commands import flip_a_bit
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.tasks.video.data import (
    load,
    open_footage,
    patch_sequences,
    prepare,
    windows,
)
from unroll_jax.train.tasks.video.options import DataConfig

# frames of clips: a and b train, c validates, d tests
FLAT = {"a": 20, "b": 45, "c": 20, "d": 20}


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> tuple[DataConfig, list[str]]:
    folder, lines = tmp_path_factory.mktemp("clips"), []
    config = DataConfig(
        "video",
        str(write_pictures(folder / "clips", FLAT, size=(160, 160))),
        str(folder / "prepared"),
    )
    prepare(config, log=lines.append)
    return config, lines


def test_records_are_the_patch_sequences_of_the_clips(
    frames,
):
    data = load(frames[0])
    assert [data.num_examples(split) for split in SPLITS] == [300, 100, 100]
    expected = []
    with open_footage(Path(str(frames[0].root)), print) as splits:
        for clip in splits["train"]:
            expected += map(patch_sequences, windows(clip.frames))
    sequences = np.concatenate(list(data.examples("train", batch_size=64)))
    assert_array_equal(sequences, np.concatenate(expected))
    every = [sequence for split in SPLITS for sequence in data.whole(split)]
    assert len({sequence.tobytes() for sequence in every}) == 500
    batches = functools.partial(data.batches, "train", batch_size=64, seed=7)
    for step, batch in enumerate(itertools.islice(batches(), 6)):  # 1.3 epochs
        assert (batch.shape, batch.dtype) == ((64, 20, 256), np.uint8)
        assert_array_equal(batch, next(batches(start_step=step)))


def test_other_clips_may_take_the_place_of_the_test_split(frames, opened, tmp_path):
    data = load(frames[0])
    other = opened("video", write_pictures(tmp_path, dict.fromkeys("abcd", 20)))
    both = data.with_test(other)
    for split in SPLITS:
        expected = (other if split == "test" else data).read(split, [0, 1])
        assert_array_equal(both.read(split, [0, 1]), expected)
    assert (both.spec, both.num_examples("test")) == (
        data.spec,
        other.num_examples("test"),
    )
    assert not np.array_equal(data.read("test", [0, 1]), other.read("test", [0, 1]))


def test_data_are_prepared_once_where_the_environment_says(
    frames, monkeypatch, tmp_path
):
    config, lines = frames
    folder = prepare(config, log=(again := []).append)
    assert again == []
    assert str(folder) in lines[0]
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "elsewhere"))
    assert prepare(DataConfig("video", config.root)).is_relative_to(
        tmp_path / "elsewhere"
    )
    monkeypatch.delenv("UNROLL_PREPARED")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare(DataConfig("video", config.root)).is_relative_to(
        tmp_path / ".cache/unroll_jax"
    )
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(FileExistsError, match="taken"):
        load(DataConfig("video", config.root, str(tmp_path / "taken")))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


RECORDS = "video-{}.array_record-00000-of-00001"
DAMAGES = {
    "records cut short": (RECORDS.format("test"), cut),
    "info cut short": ("dataset_info.json", cut),
    "facts gone": ("metadata.json", Path.unlink),
}


@pytest.fixture
def prepared(frames, tmp_path) -> tuple[DataConfig, Path]:
    config = DataConfig("video", frames[0].root, str(tmp_path / "prepared"))
    shutil.copytree(str(frames[0].prepared), str(config.prepared))
    return config, prepare(config)


@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_prepared_data_say_how_to_redo_them(prepared, name, damage):
    config, folder = prepared
    damage(folder / name)
    with one_line("delete that folder and run again", str(folder)):
        load(config)


def test_records_that_change_under_a_reader_are_an_error(prepared):
    config, folder = prepared
    data = load(config)
    flip_a_bit(folder / RECORDS.format("train"))
    with one_line("delete that folder and run again", str(folder)):
        data.whole("train")


# Prepares what another process prepares too, reads it, and is killed while it prepares
# more.
PROGRAM = """
import os, signal, sys
from unroll_jax.train.tasks.video.options import DataConfig
from unroll_jax.train.tasks.video.data import load, prepare
root, shared, other = sys.argv[1:]
print("ready", flush=True)
data = load(DataConfig("video", root, shared), log=lambda line: None)
next(data.batches("train", batch_size=4, seed=0))
print(data.num_examples("train"), sorted({"tensorflow", "torch"} & set(sys.modules)), flush=True)
def log(line):
    print(line, flush=True)
    if "validation: " in line:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(DataConfig("video", root, other), log=log)
"""


def test_two_processes_prepare_at_once_and_kills_are_mended(frames, tmp_path):
    root, shared, other = (
        str(frames[0].root),
        str(tmp_path / "shared"),
        tmp_path / "other",
    )
    command = [sys.executable, "-c", PROGRAM, root, shared, str(other)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert load(DataConfig("video", root, shared)).num_examples("train") == 300
        out, errors = process.communicate(timeout=120)
    first, *_, last = out.decode().splitlines()
    assert (process.returncode, first) == (-9, "300 []"), errors
    assert "validation" in last
    assert list(other.rglob("incomplete*"))
    assert load(DataConfig("video", root, str(other))).num_examples("train") == 300
    assert not list(other.rglob("incomplete*"))


@pytest.mark.data
@pytest.mark.parametrize(
    ("place", "sizes", "logged"),
    [
        ("ucsd_ped2/UCSDped2_160x160.tar", [11000, 1400, 6800], "prepared video"),
        (
            "clips/pedestrians.avi",
            [1300, 200, 200],
            "using the 341 frames that decode, of 682 in the header",
        ),
    ],
)
def test_real_clips_and_a_real_video_become_sequences(
    real_data, opened, place, sizes, logged
):
    lines: list[str] = []
    data = opened("video", real_data / place, lines.append)
    assert [data.num_examples(split) for split in SPLITS] == sizes
    assert any(logged in line for line in lines)
