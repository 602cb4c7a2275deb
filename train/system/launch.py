"""`unroll-jax launch`: the processes of one run on this machine; when one fails, the others are ended.

A process that waits for a dead one in a collective cannot end itself. On clusters the scheduler ends it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO

from .interrupts import CTRL_C

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL, for the processes that are left
POLL_SECONDS = 0.1
OUTPUT_SECONDS = 2.0  # for the last output of an ended process
USAGE_ERROR = 2  # exit code of a process that has printed its error in one line
STDERR = 2


def launch(commands: Sequence[Sequence[str]], *, grace: float = GRACE_SECONDS) -> int:
    """Runs commands side by side until all have ended or one has failed; then ends the others.

    The first one has our stdout and stderr; lines of process i go to stderr, behind "[i] ". SIGTERM and Ctrl-C are
    passed on as SIGTERM, on which a run saves; a second Ctrl-C kills.

    Args:
      commands: program and arguments of each process.
      grace: seconds between SIGTERM and SIGKILL after a failure.

    Returns:
      0 if every process ended with 0; 130 after Ctrl-C; else the exit code of the first that failed, 128 + its number
      for a signal.
    """
    processes: list[subprocess.Popen] = []
    with _forwarding(processes) as received, contextlib.ExitStack() as stack:
        for number, command in enumerate(commands):
            processes.append(stack.enter_context(_started(number, command)))
        failed = _wait(processes)
        if signal.SIGINT in received:
            for process in processes:
                process.wait()  # while they save
            return CTRL_C
        if failed is None:
            return 0
        _end(processes, grace)
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


@contextlib.contextmanager
def _started(number: int, command: Sequence[str]) -> Iterator[subprocess.Popen]:
    """Starts a process, which does not outlive the context."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if number else {}
    process = subprocess.Popen(command, **piped)  # pyright: ignore[reportCallIssue, reportArgumentType]
    reader = threading.Thread(target=_prefix_lines, args=(number, process.stdout), daemon=True)
    if number:
        reader.start()
    try:
        yield process
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()
        if number:
            reader.join(OUTPUT_SECONDS)


def _prefix_lines(number: int, output: IO[bytes]) -> None:
    with output:
        for line in output:
            os.write(STDERR, b"[%d] %s\n" % (number, line.rstrip(b"\n")))


@contextlib.contextmanager
def _forwarding(processes: Sequence[subprocess.Popen]) -> Iterator[set[int]]:
    """Passes SIGTERM and Ctrl-C on while the context lasts; yields the signals received so far."""
    received: set[int] = set()

    def forward(number: int, _: object) -> None:
        second = number == signal.SIGINT and number in received
        received.add(number)
        for process in processes:
            process.send_signal(signal.SIGKILL if second else signal.SIGTERM)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen]) -> int | None:
    """Returns the number of the first process that failed; None once all have ended with 0."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [number for number, code in enumerate(codes) if code]
        if failed:  # JAX ends the others of a dead process by SIGABRT
            return min(failed, key=lambda number: codes[number] == -signal.SIGABRT)
        if all(code == 0 for code in codes):
            return None
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen], grace: float) -> None:
    """Asks the processes to end; after the grace time, `_started` kills them."""
    for process in processes:
        process.terminate()
    limit = time.monotonic() + grace
    while time.monotonic() < limit and any(process.poll() is None for process in processes):
        time.sleep(POLL_SECONDS)
