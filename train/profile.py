"""A trace of some steps of a run, for TensorBoard or Perfetto."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from train.errors import UserError
from train.processes import is_first

__all__ = ["Profile", "Profiler", "parse_profile", "profiling"]

Log = Callable[[str], None]


class Profile(NamedTuple):
    """Which steps are traced, counted from 1 as in metrics.jsonl."""

    first: int
    last: int


def parse_profile(text: str | None, *, num_steps: int | None = None) -> Profile | None:
    """The steps of a text STEP:COUNT; None for None.

    Args:
      text: as in 100:5, which is steps 100 to 104.
      num_steps: how many the run has, where that is known.

    Raises:
      UserError: if the text has another form, or the run has no such steps.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text)
    first, count = map(int, found.groups()) if found else (0, 0)
    if first < 1 or count < 1:
        raise UserError(f"--profile must be STEP:COUNT, both at least 1, as in 100:5, got {text}")
    last = first + count - 1
    if num_steps is not None and last > num_steps:
        raise UserError(f"--profile {text} asks for steps {first} to {last}, but the run has {num_steps}")
    return Profile(first, last)


class Profiler:
    """Starts and ends the trace between steps."""

    def __init__(self, profile: Profile | None, folder: Path, log: Log):
        self._profile = profile if is_first() else None
        self._folder, self._log, self._tracing = folder, log, False

    def at(self, done: int, state: Any) -> None:
        """To be called before the first step and after every one, with how many steps are done and what they left."""
        if self._profile is None:
            return
        first, last = self._profile
        if done >= last:
            if not self._tracing:  # a run that goes on from beyond them
                self._log(f"--profile: steps {first} to {last} are done already; no trace")
            self.end(state)
            self._profile = None
        elif not self._tracing and done >= first - 1:
            jax.block_until_ready(state)  # what was dispatched before is none of the trace's
            jax.profiler.start_trace(self._folder)
            self._tracing = True

    def end(self, state: Any = None) -> None:
        """Ends the trace if there is one, when the device has come to the state."""
        if self._tracing:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self._tracing = False
            self._log(f"{self._folder}: a trace; `tensorboard --logdir` (plug-in xprof) or ui.perfetto.dev shows it")


@contextlib.contextmanager
def profiling(profile: Profile | None, folder: Path, log: Log) -> Iterator[Profiler]:
    """A profiler whose trace ends with the context at the latest, also where a run fails."""
    profiler = Profiler(profile, folder, log)
    try:
        yield profiler
    finally:
        profiler.end()
