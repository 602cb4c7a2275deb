"""A run takes its folder: room on the disk, the configuration that it is told by, the lock, facts of the model."""

import contextlib
import math
from pathlib import Path
from typing import Any

from .checkpoint import check_room, room_for
from .config.errors import StorageError, UserError
from .config.fields import differences
from .runs import ANEW, ENDED, FACTS, check_same, clear, free_values, identity, read_status
from .system.run_files import read_object, write_json
from .system.storage import AGAIN, PARTIAL, locked, require_room, require_writable, writing
from .task import Row, Task

__all__ = ["take"]


def take(task: Task, folder: Path, *, experiment: str, like: Any, held: contextlib.ExitStack) -> None:
    """Makes a folder the task's, or checks that it is, and locks it until ``held`` closes.

    A refusal leaves nothing behind, and deletes nothing: with ``overwrite`` the old run goes last.

    Args:
      task: to be trained.
      folder: of its run.
      experiment: what the run is called.
      like: the state of training, of which checkpoints are written.
      held: holds the lock.

    Raises:
      UserError: if the folder holds something else, or a disk or another process is in the way.
    """
    said, free = identity(experiment, task.config, task.found()), free_values(task.config)
    saves = math.ceil(task.training.num_steps / task.training.validate_every)
    exists = (folder / "config.json").exists()
    if task.config.overwrite and exists:
        _check_room_without(folder, like, saves)
        clear(folder)
        exists = False
    elif not exists:
        check_room(folder, like, saves, f"--out {folder}", "pass another folder")
    if exists:
        check_same(folder, said, ANEW)
    else:
        _claim(folder, said | free)
    held.enter_context(locked(folder))
    if exists and read_status(folder).get("state") not in ENDED:
        check_room(folder, like, saves, f"run folder {folder}", AGAIN)
        _keep(folder, free)
    if not (folder / FACTS).exists():
        with writing(f"run folder {folder}", AGAIN):
            write_json(folder / FACTS, task.facts())


def _check_room_without(folder: Path, like: Any, saves: int) -> None:
    """Checks the disk as it will be once the run in the folder is deleted."""
    require_writable(folder, f"--out {folder}", "pass another folder")
    freed = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    require_room(folder, room_for(like, saves=saves) - freed, "what a run keeps of checkpoints")


def _claim(folder: Path, config: Row) -> None:
    """Makes a new or empty folder the run's whose config.json is given."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(entry.suffix != PARTIAL for entry in folder.iterdir()):
            raise UserError(
                f"--out {folder} holds files but no config.json, so it is no run; pass an empty or a new folder"
            )
        write_json(folder / "config.json", config)
    except OSError as error:
        raise StorageError(f"cannot write to --out {folder} ({error.strerror}); pass another folder") from error


def _keep(folder: Path, free: Row) -> None:
    """Stores the values of `FREE` options that a run goes on with, for a later `run FOLDER`."""
    stored = read_object(folder / "config.json")
    if differences(stored, stored | free):
        with writing(f"run folder {folder}", AGAIN):
            write_json(folder / "config.json", stored | free)
