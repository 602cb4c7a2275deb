"""A training process killed at a chosen moment: `python -m benchmarks.faults.process PHASE SECONDS FILE ARGUMENTS`.

The kill is a real SIGKILL: nothing is flushed, no handler runs. Before it, FILE gets the number of steps done.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unroll_jax.train import __main__ as train
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.system.distributed import Stop

__all__ = ["PHASES"]

# What a kill may fall into: the method at whose call the clock starts.
PHASES: dict[str, tuple[type, str]] = {
    "restore": (Checkpoints, "newest"),
    "step": (Stop, "at"),
    "save": (Checkpoints, "save"),
}


def main(phase: str, seconds: float, file: Path, arguments: list[str]) -> int:
    """Runs `unroll-jax ARGUMENTS`, to be killed ``seconds`` after the phase began for the first time."""
    done = [0]

    def die() -> None:
        file.write_text(str(done[0]), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)

    def count(_: Any, step: int) -> None:
        done[0] = step

    clock = threading.Timer(seconds, die)
    clock.daemon = True
    owner, method = PHASES[phase]
    _before(owner, method, lambda *_, **__: None if clock.is_alive() else clock.start())
    _before(Stop, "at", count)
    return train.main(arguments)


def _before(owner: type, method: str, do: Callable[..., None]) -> None:
    original = getattr(owner, method)

    def both(self: Any, *arguments: Any, **options: Any) -> Any:
        do(self, *arguments, **options)
        return original(self, *arguments, **options)

    setattr(owner, method, both)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
