"""Disks that are full, read-only or forbidden: checked first, one line, nothing
lost, nothing half written."""

import errno
import re
import subprocess
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from tests.train.commands import files_of, quiet, status_of
from tests.train.conftest import evaluated_again, words_of
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import StorageError
from unroll_jax.train.exporting import export
from unroll_jax.train.system import files
from unroll_jax.train.system.files import require_room, write_all

pytestmark = [
    pytest.mark.xdist_group("video-runs"),
    # Threads of TensorStore end after a save that failed has closed their event loop.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
    ),
]
FULL = (
    "RESOURCE_EXHAUSTED: Failed writing: Failed to write 607 bytes: No space left on"
    " device [os_error_code='28']"
)
Disk = namedtuple("Disk", "total used free")


@pytest.fixture
def refusing(monkeypatch):
    """``refusing(is_refused)``: the disk is full for files of these paths."""
    write = Path.write_bytes

    def make(is_refused):
        def refuse(path, content):
            if is_refused(path):
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, content)

        monkeypatch.setattr(Path, "write_bytes", refuse)

    return make


def test_a_save_that_a_full_disk_refuses_keeps_the_one_before_and_the_same_command_goes_on(
    both, start, config, tmp_path, monkeypatch
):
    save, path = ocp.CheckpointManager.save, tmp_path / "run" / "checkpoints"

    def fail(manager, step, **options):
        if step == 4:  # as TensorStore on a full disk, which leaves half a checkpoint
            (path / "4.orbax-checkpoint-tmp").mkdir()
            raise ValueError(FULL)
        return save(manager, step, **options)

    monkeypatch.setattr(ocp.CheckpointManager, "save", fail)
    with pytest.raises(
        StorageError, match=r"No space left on device.*the checkpoint of step 2 is kept"
    ) as caught:
        start(config)
    status = status_of(tmp_path / "run")
    assert (status["state"], status["steps"], status["messages"]) == (
        "failed",
        2,
        [str(caught.value)],
    )
    assert list(path.iterdir()) == [path / "2"], "nothing half written is left"
    monkeypatch.setattr(ocp.CheckpointManager, "save", save)
    assert "going on from the checkpoint of step 2" in start(config)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == (
        both / "constrained" / "metrics.jsonl"
    ).read_text()
    assert status_of(tmp_path / "run")["state"] == "finished"


def test_a_run_is_not_finished_before_its_last_checkpoint_is_on_the_disk(
    start, config, tmp_path, monkeypatch
):
    wait = ocp.CheckpointManager.wait_until_finished

    def refuse_the_last(manager):
        if manager.latest_step() == 6:
            raise ValueError(FULL)
        return wait(manager)

    monkeypatch.setattr(ocp.CheckpointManager, "wait_until_finished", refuse_the_last)
    with pytest.raises(StorageError, match="No space left"):
        start(config)
    assert status_of(tmp_path / "run")["state"] == "failed"


def test_a_disk_without_room_for_a_checkpoint_ends_the_run_before_it_is_written(
    start, config, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        files.shutil, "disk_usage", lambda path: Disk(10**9, 10**9 - 10**5, 10**5)
    )
    with pytest.raises(
        StorageError, match=r"the checkpoint of step 2 takes 0\.\d MB, 0\.1 MB are free"
    ):
        start(config)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    # of a system that does not report it
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: Disk(0, 0, 0))
    require_room(tmp_path, 10**12, "everything")


def test_a_run_folder_that_cannot_be_written_is_refused_before_data_are_read(
    finished, refusing, monkeypatch
):
    monkeypatch.setattr(
        "unroll_jax.train.tasks.video.load",
        lambda *_, **__: pytest.fail("data were read first"),
    )
    before = files_of(finished)
    refusing(lambda path: path.parent == finished)
    for act, place in (
        (evaluated_again, "run folder"),
        (partial(export, log=quiet), "--out"),
    ):
        with pytest.raises(
            StorageError, match=f"cannot write to {place} .* \\(No space left"
        ):
            act(finished)
    assert files_of(finished) == before


def test_an_evaluation_that_cannot_be_written_keeps_the_one_before(
    in_memory, finished, refusing
):
    before = files_of(finished)
    refusing(lambda path: path.name.startswith("evaluation"))
    with pytest.raises(StorageError, match="No space left on device"):
        evaluated_again(finished)
    assert files_of(finished) == before


def test_files_that_cannot_be_written_leave_no_folder(tmp_path, refusing):
    refusing(lambda path: path.parent == tmp_path / "a" / "b")
    with pytest.raises(OSError, match="No space left"):
        write_all(tmp_path / "a" / "b", {"c.json": b"1"})
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_file_too_large_for_the_system_is_one_line_from_a_real_process(
    of_processes, few_clips, tmp_path, monkeypatch
):
    """RLIMIT_FSIZE makes the writes of TensorStore's threads fail, as a quota does."""
    folder = tmp_path / "run"
    options = {
        "method": "plain",
        "steps": 4,
        "validate-every": 1,
        "batch-size": 8,
        "model.num-layers": 2,
    }
    options |= {
        "model.rank": 64,
        "data.source": "video",
        "data.root": few_clips,
        "out": folder,
    }
    command = [
        sys.executable,
        "-m",
        "unroll_jax.train",
        "run",
        "video-ut",
        *words_of(options),
    ]
    limited = ["sh", "-c", 'ulimit -f 200 && exec "$@"', "sh", *command]
    environment = of_processes | {"JAX_COMPILATION_CACHE_DIR": ""}
    monkeypatch.setenv("UNROLL_PREPARED", of_processes["UNROLL_PREPARED"])
    assert main(["prepare", "video", "--from", str(few_clips)]) == 0
    ended = subprocess.run(
        limited,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert re.search(
        r"\(File too large\).* no checkpoint was saved before",
        ended.stderr.splitlines()[-1],
    )
    assert status_of(folder)["state"] == "failed"
