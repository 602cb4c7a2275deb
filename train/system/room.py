"""Room on the disk for the checkpoints of a run."""

from pathlib import Path
from typing import Any

import jax

from .storage import require_room, require_writable, steps_in

NEWEST_KEPT = 2  # checkpoints, besides the best
BESIDE = 1 << 17  # bytes of a checkpoint besides its arrays, with some to spare


def check_room(folder: Path, like: Any, saves: int, name: str, way_out: str) -> None:
    """Refuses, before anything is computed, a disk that takes nothing or has no room for the checkpoints to come."""
    require_writable(folder, name, way_out)
    held = len(steps_in(folder / "checkpoints"))
    size = room_for(like, saves=saves) - held * room_for(like, saves=1)
    require_room(folder, size, "what a run keeps of checkpoints")


def room_for(like: Any, *, saves: int) -> int:
    """Bytes on the disk that so many checkpoints of a state take, at most; one is written before another is deleted."""
    arrays = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))
    return min(saves, NEWEST_KEPT + 2) * (arrays + BESIDE)


def check_room_without(folder: Path, like: Any, saves: int) -> None:
    """The same of the disk as it will be once the run in the folder is deleted."""
    require_writable(folder, f"--out {folder}", "pass another folder")
    freed = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    require_room(folder, room_for(like, saves=saves) - freed, "what a run keeps of checkpoints")
