"""Scalars for TensorBoard, written where they are added.

`tensorboardX.SummaryWriter` writes in a thread: when a disk is full that thread ends with a traceback, and training
waits for it without end.
"""

import time
from pathlib import Path
from typing import Any

__all__ = ["Board"]


class Board:
    """A file of events; of earlier files in the folder, what they hold from ``first_step`` on is forgotten."""

    def __init__(self, folder: Path, *, first_step: int):
        """Opens a new file in ``folder``."""
        # They import torch where that is installed: a second or more, which commands that train nothing need not wait.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore (protobuf makes its classes)
        from tensorboardX.summary import scalar

        self._event, self._scalar = Event, scalar
        folder.mkdir(exist_ok=True)
        self._file = EventsWriter(str(folder / "events"), f".{first_step}")  # else two of one second are one
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, tag: str, number: float, step: int) -> None:
        """Adds a number to the curve of a tag."""
        self._write(step=step, summary=self._scalar(tag, number))

    def flush(self) -> None:
        """Hands what was added to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._file.write_event(self._event(wall_time=time.time(), **event))
