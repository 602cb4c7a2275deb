import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.data.conftest import write_frames
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.data.video import VideoData, load, open_footage, patch_sequences, prepare, windows

FLAT = {"a": 20, "b": 45, "c": 20, "d": 20}


@pytest.fixture
def frames(write_clips, tmp_path) -> DataConfig:
    """Four random clips: a and b train, c validates, d tests."""
    return DataConfig("video", str(write_clips(FLAT)), str(tmp_path / "prepared"))


def test_records_are_the_patch_sequences_of_the_clips_in_order(frames):
    data = load(frames)
    assert [data.num_examples(split) for split in SPLITS] == [300, 100, 100]
    with open_footage(Path(str(frames.root)), print) as splits:
        expected = [patch_sequences(window) for clip in splits["train"] for window in windows(clip.frames)]
    np.testing.assert_array_equal(np.concatenate(list(data.examples("train", batch_size=64))), np.concatenate(expected))


def test_no_splits_share_a_sequence(frames):
    data = load(frames)
    seen = [
        sequence.tobytes() for split in SPLITS for batch in data.examples(split, batch_size=50) for sequence in batch
    ]
    assert len(set(seen)) == len(seen) == 500


def test_other_clips_may_take_the_place_of_the_test_split(frames, tmp_path):
    data = load(frames)
    other = load(
        DataConfig(
            "video", str(write_frames(tmp_path / "other", dict.fromkeys("abcd", 20))), str(tmp_path / "prepared")
        )
    )
    both = data.with_test(other)
    for split in SPLITS:
        expected = (other if split == "test" else data).read(split, [0, 1])
        np.testing.assert_array_equal(both.read(split, [0, 1]), expected)
    assert (both.spec, both.num_examples("test")) == (data.spec, other.num_examples("test"))
    assert not np.array_equal(data.read("test", [0, 1]), other.read("test", [0, 1]))


@pytest.mark.parametrize("start_step", [0, 1, 130, 4321])
def test_a_batch_is_what_the_iterator_yields_at_its_step(photos, start_step):
    iterator = photos.batches("train", batch_size=64, seed=7, start_step=start_step)
    for step, batch in enumerate(itertools.islice(iterator, 4), start=start_step):
        assert (batch.shape, batch.dtype) == ((64, 20, 256), np.uint8)
        np.testing.assert_array_equal(batch, next(photos.batches("train", batch_size=64, seed=7, start_step=step)))


def test_data_are_prepared_once_and_say_so(frames):
    lines: list[str] = []
    folder = prepare(frames, log=lines.append)
    assert lines[0] == f"preparing video in {folder} (done once)"
    assert lines[1:4] == [
        "  train: 300 sequences, clips: 2 (a; b)",
        "  validation: 100 sequences, clips: 1 (c)",
        "  test: 100 sequences, clips: 1 (d)",
    ]
    del lines[:]
    assert prepare(frames, log=lines.append) == folder
    load(frames, log=lines.append)
    assert lines == []


def test_prepared_data_go_where_the_environment_says(frames, monkeypatch, tmp_path):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "elsewhere"))
    assert prepare(DataConfig("video", frames.root)).is_relative_to(tmp_path / "elsewhere")
    monkeypatch.delenv("UNROLL_PREPARED")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare(DataConfig("video", frames.root)).is_relative_to(tmp_path / ".cache/unroll_jax")


def test_a_folder_that_cannot_be_written_is_an_error(frames, tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot write to the folder of prepared data .*taken.*UNROLL_PREPARED"):
        load(DataConfig("video", frames.root, str(tmp_path / "taken")))


DAMAGES = {
    "records cut short": lambda folder: cut(folder, "video-test.array_record-00000-of-00001"),
    "records gone": lambda folder: (folder / "video-test.array_record-00000-of-00001").unlink(),
    "info cut short": lambda folder: cut(folder, "dataset_info.json"),
    "info gone": lambda folder: (folder / "dataset_info.json").unlink(),
    "facts gone": lambda folder: (folder / "metadata.json").unlink(),
    "facts empty": lambda folder: (folder / "metadata.json").write_text("{}"),
}


def cut(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_prepared_data_are_an_error_that_says_how_to_redo_them(frames, damage):
    folder = prepare(frames)
    DAMAGES[damage](folder)
    with pytest.raises(UserError) as caught:
        load(frames)
    assert str(folder) in str(caught.value)
    assert str(caught.value).endswith("delete that folder and run again")
    assert "\n" not in str(caught.value)


def test_records_that_change_under_a_reader_are_an_error(frames):
    folder = prepare(frames)
    data = load(frames)
    file = folder / "video-train.array_record-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[100_000:200_000] = bytes(100_000)
    with file.open("r+b") as records:
        records.write(content)
    with pytest.raises(UserError) as caught:
        list(data.examples("train", batch_size=50))
    assert str(caught.value).endswith("delete that folder and run again")
    assert "\n" not in str(caught.value)


# Prepares what another process prepares too, reads it, and is killed while it prepares more.
PROGRAM = """
import os, signal, sys
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.data.video import load, prepare
root, shared, own = sys.argv[1:]
data = load(DataConfig("video", root, shared), log=lambda line: None)
next(data.batches("train", batch_size=4, seed=0))
print(data.num_examples("train"), sorted({"tensorflow", "torch"} & set(sys.modules)), flush=True)
def log(line):
    print(line, flush=True)
    if "validation" in line:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(DataConfig("video", root, own), log=log)
"""


class Ended(NamedTuple):
    """A process that ended: of what it read, where it prepared it with another, and where alone until it was killed."""

    code: int
    lines: list[str]
    errors: str
    shared: DataConfig
    separate: DataConfig


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> list[Ended]:
    """Two that run at the same time."""
    folder = tmp_path_factory.mktemp("processes")
    root, shared = write_frames(folder / "clips", FLAT), folder / "shared"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = lambda path: subprocess.Popen([sys.executable, "-c", PROGRAM, root, shared, path], **pipes)  # noqa: E731
    started, ended = {path: run(path) for path in (folder / "one", folder / "two")}, []
    for path, process in started.items():
        out, errors = process.communicate(timeout=120)
        configs = (DataConfig("video", str(root), str(each)) for each in (shared, path))
        ended.append(Ended(process.returncode, out.splitlines(), errors, *configs))
    return ended


def test_a_killed_preparation_is_done_again(processes):
    code, lines, errors, _, config = processes[0]
    assert code == -9, errors
    assert "validation" in lines[-1]
    assert list(Path(str(config.prepared)).rglob("incomplete*"))
    assert load(config).num_examples("train") == 300
    assert not list(Path(str(config.prepared)).rglob("incomplete*"))


def test_two_processes_may_prepare_at_once(processes):
    for process in processes:
        assert process.lines[:1], process.errors
        assert process.lines[0].startswith("300 ")
    assert load(processes[0].shared).num_examples("train") == 300


def test_reading_and_preparing_never_import_tensorflow_nor_other_frameworks(processes):
    for process in processes:
        assert process.lines[:1] == ["300 []"], process.errors


@pytest.mark.data
def test_ucsd_clips_are_read_as_they_are(real_data, tmp_path):
    config, lines = DataConfig("video", str(real_data / "ucsd_ped2/UCSDped2_160x160.tar"), str(tmp_path)), []
    data = load(config, log=lines.append)
    assert [data.num_examples(split) for split in SPLITS] == [11000, 1400, 6800]
    assert re.findall(r"clips: (\d+)", "".join(lines)) == ["14", "2", "8"]
    assert data.pixel_std == pytest.approx(0.178, abs=0.001)


@pytest.mark.data
def test_a_video_file_becomes_sequences(real_data, tmp_path):
    lines: list[str] = []
    data = load(DataConfig("video", str(real_data / "clips/pedestrians.avi"), str(tmp_path)), log=lines.append)
    assert lines[1] == "  pedestrians.avi: using the 341 frames that decode, of 682 in the header"
    assert [data.num_examples(split) for split in SPLITS] == [1300, 200, 200]
    assert isinstance(data, VideoData)
