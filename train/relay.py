"""What another process writes to stderr, shown and kept at once; of a terminal the process sees one."""

import contextlib
import os
import pty
import termios
import threading
import time
from typing import IO

__all__ = ["Relay"]

STDERR = 2
CHUNK = 1 << 16
HELD_SECONDS = 0.3  # before what was written is shown: long enough to hear that another process is the culprit


class Relay:
    """Copies bytes to our stderr, until told to keep silent, and to a file.

    Attributes:
      target: the file descriptor to give to the process as its stderr; `started` closes it here.
    """

    def __init__(self, kept: IO[bytes]):
        self._source, self.target = _terminal() if os.isatty(STDERR) else os.pipe()
        self._kept, self._shown = kept, True
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def started(self) -> None:
        """To be called once the process has started."""
        os.close(self.target)
        self._thread.start()

    def hush(self, *, after: float = 0.0) -> None:
        """Shows nothing more, after at most so many seconds in which what a process has left behind is shown."""
        self._thread.join(after)
        self._shown = False

    def _copy(self) -> None:
        with contextlib.suppress(OSError):  # Linux: that of a terminal which nobody has open any more
            while chunk := os.read(self._source, CHUNK):
                self._kept.write(chunk)
                self._kept.flush()
                time.sleep(HELD_SECONDS)
                if self._shown:
                    os.write(STDERR, chunk)
        os.close(self._source)


def _terminal() -> tuple[int, int]:
    """A pseudo-terminal as wide as ours."""
    source, target = pty.openpty()
    termios.tcsetwinsize(target, termios.tcgetwinsize(STDERR))
    return source, target
