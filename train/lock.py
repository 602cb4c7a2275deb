"""One process a run folder: a second one would write into the first one's checkpoints and metrics."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from train.errors import UserError

__all__ = ["locked"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the run folder while the context lasts; the system lets go of it when the process ends or is killed.

    Raises:
      UserError: if another process holds it.
    """
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is training {folder}; wait until it ends, or pass another --out"
            ) from None
        yield
