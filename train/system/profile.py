"""A trace of some steps of a run, for TensorBoard or Perfetto."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from ..config.run import Profile
from .distributed import is_first

Log = Callable[[str], None]


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
