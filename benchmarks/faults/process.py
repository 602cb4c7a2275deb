"""A process that gets a signal in a phase: `python -m benchmarks.faults.process PHASE SIGNAL SECONDS FILE ARGUMENTS`.

The signal is real: after SIGKILL nothing is flushed, and no handler runs. Before it, FILE gets the number of steps.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import unroll_jax.train.data.prepare as preparation
import unroll_jax.train.evaluate as evaluation
from unroll_jax.train import __main__ as train
from unroll_jax.train import loop, report
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.system.distributed import Stop

__all__ = ["PHASES"]

# What a signal may fall into: the class or module and the function at whose call the clock starts.
PHASES: dict[str, tuple[Any, str]] = {
    "prepare": (preparation, "_write"),
    "restore": (Checkpoints, "newest"),
    "compile": (loop._Loop, "_compile"),
    "step": (Stop, "at"),
    "save": (Checkpoints, "save"),
    "evaluate": (evaluation, "evaluate"),
    "report": (report, "write_report"),
}


def main(phase: str, name: str, seconds: float, file: Path, arguments: list[str]) -> int:
    """Runs `unroll-jax ARGUMENTS`, to be sent the signal ``seconds`` after the phase began for the first time."""
    done = [0]
    number = signal.Signals[name]
    if signal.getsignal(number) == signal.SIG_IGN:  # as under nohup
        signal.signal(number, signal.SIG_DFL)

    def die() -> None:
        file.write_text(str(done[0]), encoding="utf-8")
        os.kill(os.getpid(), number)

    def count(_: Any, step: int) -> None:
        done[0] = step

    clock = threading.Timer(seconds, die)
    clock.daemon = True
    owner, method = PHASES[phase]
    _before(owner, method, lambda *_, **__: None if clock.ident else clock.start())
    _before(Stop, "at", count)
    return train.main(arguments)


def _before(owner: Any, method: str, do: Callable[..., None]) -> None:
    original = getattr(owner, method)

    def both(self: Any, *arguments: Any, **options: Any) -> Any:
        do(self, *arguments, **options)
        return original(self, *arguments, **options)

    setattr(owner, method, both)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:]))
