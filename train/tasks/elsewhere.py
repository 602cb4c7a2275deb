"""Runs of video tested on scenes that they were not trained on."""

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..config.data import VideoSource
from ..config.errors import UserError
from ..data.video import load
from ..task import Log, Task
from .video import VideoTask

Batch = UInt8[np.ndarray, "batch tokens pixels"]


class Elsewhere:
    """Prepared video whose test split is another's: scenes that were never trained on.

    The spread of pixels, which noise is in units of, stays that of the train split.
    """

    def __init__(self, data: Any, other: Any):
        self._data, self._other = data, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def num_sequences(self, split: str) -> int:
        """Sequences of a split."""
        return self._of(split).num_sequences(split)

    def read(self, split: str, numbers: Any) -> Batch:
        """Sequences by number."""
        return self._of(split).read(split, numbers)

    def examples(self, split: str, *, batch_size: int) -> Iterator[Batch]:
        """Sequences in order."""
        return self._of(split).examples(split, batch_size=batch_size)

    def _of(self, split: str) -> Any:
        return self._other if split == "test" else self._data


def on_other_video(task: Task, source: VideoSource, root: str | None, log: Log) -> tuple[VideoTask, str]:
    """The task of a run with another test split and the noise of its own, and the file for its evaluation.

    What is fitted without a network is fitted to the run's train split.

    Raises:
      UserError: if the run is not of video, or there is no such video.
    """
    if not isinstance(task, VideoTask):
        raise UserError(f"--on-source is for video, this run is of {task.config.task}; leave it out")
    if root is None and source != "photos":
        raise UserError(f"--on-source {source} needs --on-root: the folder, archive or video file to test on")
    config = dataclasses.replace(task.config, data=dataclasses.replace(task.config.data, source=source, root=root))
    name = Path(root).resolve() if root else Path(source)
    place = f"evaluation_on_{name.stem}_{zlib.crc32(str(name).encode()):08x}.json"
    return VideoTask(config, Elsewhere(task.data, load(config.data, log=log)), task.vit_weights), place
