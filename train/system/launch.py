"""`unroll-jax launch`: the processes of one run on this machine; when one fails, the others are ended."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from .machine import CTRL_C

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL, for the processes that are left
POLL_SECONDS = 0.1
USAGE_ERROR = 2  # exit code of a process that has printed its error in one line


def launch(commands: Sequence[Sequence[str]], *, grace: float = GRACE_SECONDS) -> int:
    """Runs commands side by side until all have ended or one has failed; then ends the others.

    SIGTERM and Ctrl-C are passed on as SIGTERM, on which a run saves; a second Ctrl-C kills. ``grace`` are the seconds
    between SIGTERM and SIGKILL after a failure.

    Returns:
      0 if every process ended with 0; 130 after Ctrl-C; else the exit code of the first that failed, 128 + its number
      for a signal.
    """
    processes: list[subprocess.Popen] = []
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        kill = number == signal.SIGINT and number in received
        received.append(number)
        for process in processes:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for command in commands:
            processes.append(subprocess.Popen(command))
        failed = _wait(processes)
        if signal.SIGINT in received:
            for process in processes:
                process.wait()  # while they save
            return CTRL_C
    finally:
        _end(processes, grace)
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed is None:
        return 0
    code = processes[failed].returncode
    if code != USAGE_ERROR:
        ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        sys.stderr.write(f"error: process {failed} of {len(processes)} {ending}; the others were ended\n")
    return code if code > 0 else 128 - code


def free_port() -> int:
    """Returns a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(processes: Sequence[subprocess.Popen]) -> int | None:
    """Returns the number of the first process that failed; None once all have ended with 0."""
    while True:
        codes = [process.poll() for process in processes]
        if failed := [number for number, code in enumerate(codes) if code]:
            return min(failed, key=lambda number: codes[number] == -signal.SIGABRT)  # by JAX, as another has died
        if all(code == 0 for code in codes):
            return None
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen], grace: float) -> None:
    """Asks the processes to end, and kills those that have not after the grace time."""
    for process in processes:
        process.terminate()
    limit = time.monotonic() + grace
    while time.monotonic() < limit and any(process.poll() is None for process in processes):
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.kill()  # does nothing to one that has ended
        process.wait()
