"""Disks that are full, read-only or forbidden: checked first, one line, nothing
lost, nothing half written."""

import errno
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from tests.errors import one_line as raises_line
from tests.train.commands import files_of, metrics_of, quiet, status_of
from tests.train.conftest import evaluated_again
from unroll_jax.train.__main__ import main
from unroll_jax.train.config.errors import UserError, one_line
from unroll_jax.train.exporting import export
from unroll_jax.train.system.files import check_file, check_out, write_all

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


def test_a_save_that_a_full_disk_refuses_keeps_the_last(
    both, start, config, tmp_path, monkeypatch
):
    save, path = ocp.CheckpointManager.save, tmp_path / "run" / "checkpoints"

    def fail(manager, step, **options):
        if step == 4:  # as TensorStore on a full disk, which leaves half a checkpoint
            (path / "4.orbax-checkpoint-tmp").mkdir()
            raise ValueError(FULL)
        return save(manager, step, **options)

    monkeypatch.setattr(ocp.CheckpointManager, "save", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        start(config)
    assert caught.value.__notes__ == ["the checkpoint of step 2 is kept"]
    status = status_of(tmp_path / "run")
    assert (status["state"], status["steps"], status["messages"]) == (
        "failed",
        2,
        [one_line(caught.value)],
    )
    assert list(path.iterdir()) == [path / "2"], "nothing half written is left"
    monkeypatch.setattr(ocp.CheckpointManager, "save", save)
    assert "going on from the checkpoint of step 2" in start(config)
    assert metrics_of(tmp_path / "run") == metrics_of(both / "constrained")
    assert status_of(tmp_path / "run")["state"] == "finished"


def test_a_run_ends_after_its_last_checkpoint_is_written(
    start, config, tmp_path, monkeypatch
):
    wait = ocp.CheckpointManager.wait_until_finished

    def refuse_the_last(manager):
        if manager.latest_step() == 6:
            raise ValueError(FULL)
        return wait(manager)

    monkeypatch.setattr(ocp.CheckpointManager, "wait_until_finished", refuse_the_last)
    with pytest.raises(OSError, match="No space left"):
        start(config)
    assert status_of(tmp_path / "run")["state"] == "failed"


def test_a_run_that_cannot_be_written_reads_no_data(
    finished, refusing, start, config, monkeypatch
):
    monkeypatch.setattr(
        "unroll_jax.train.tasks.video.task.load",
        lambda *_, **__: pytest.fail("data were read first"),
    )
    before = files_of(finished)
    refusing(lambda path: path.parent == finished)
    for act in (
        evaluated_again,
        functools.partial(export, log=quiet),
        lambda folder: start(config, folder.name),
    ):
        with pytest.raises(OSError, match=f"No space left on device: '{finished}"):
            act(finished)
    assert files_of(finished) == before


def test_an_evaluation_that_cannot_be_written_keeps_the_one_before(
    in_memory, finished, refusing
):
    before = files_of(finished)
    refusing(lambda path: path.name.startswith("evaluation"))
    with pytest.raises(OSError, match="No space left on device"):
        evaluated_again(finished)
    assert files_of(finished) == before


def test_files_that_cannot_be_written_leave_no_folder(tmp_path, refusing):
    refusing(lambda path: path.parent == tmp_path / "a" / "b")
    with pytest.raises(OSError, match="No space left"):
        write_all(tmp_path / "a" / "b", {"c.json": b"1"})
    assert not (tmp_path / "a").exists()


def test_a_pipe_or_a_device_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    for name in ("pipe", "device"):
        for act in (
            lambda path: write_all(path.parent, {path.name: b"1"}),
            lambda path: check_file(path, overwrite=True),
        ):
            with pytest.raises(UserError, match=f"{name} is not a regular file"):
                act(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "device").is_symlink()


def test_nothing_is_written_among_the_checkpoints_of_a_run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert check_out(tmp_path / "checkpoints" / "41").name == "41"  # of no run
    (tmp_path / "config.json").write_text("{}")
    for out in ("checkpoints", "checkpoints/41", "checkpoints/41/inside"):
        with raises_line("is in the checkpoints of the run"):
            check_out(tmp_path / out)


@pytest.mark.slow
def test_a_file_too_large_is_one_line_from_a_process(
    of_processes, few_clips, tmp_path, monkeypatch
):
    """RLIMIT_FSIZE makes the writes of TensorStore's threads fail, as a quota does."""
    folder = tmp_path / "run"
    words = "--method plain --steps 4 --validate-every 1 --batch-size 8"
    words += " --model.num-layers 2 --model.rank 64 --data.source video"
    words += f" --data.root {few_clips} --out {folder}"
    command = [sys.executable, "-m", "unroll_jax.train", "run", "video-ut"]
    limited = ["sh", "-c", 'ulimit -f 200 && exec "$@"', "sh", *command, *words.split()]
    variables = of_processes | {"JAX_COMPILATION_CACHE_DIR": ""}
    monkeypatch.setenv("UNROLL_PREPARED", of_processes["UNROLL_PREPARED"])
    assert main(["prepare", "video", "--from", str(few_clips)]) == 0
    ended = subprocess.run(
        limited, env=variables, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    pattern = r"^error: .*run.*: File too large; no checkpoint was saved before; see to"
    assert re.search(pattern, ended.stderr.splitlines()[-1])
    assert status_of(folder)["state"] == "failed"
