"""One process a run folder: a second one would write into the first one's checkpoints and metrics."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from train.errors import StorageError, UserError

__all__ = ["locked"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the run folder while the context lasts; the system lets go of it when the process ends or is killed.

    Raises:
      UserError: if another process holds it, or it cannot be held.
    """
    path = folder / ".lock"
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is training {folder}; wait until it ends, or pass another --out"
            ) from None
        except OSError as error:
            raise StorageError(
                f"cannot write to {path} ({error.strerror}); see to that file, or pass another --out"
            ) from error
        yield
