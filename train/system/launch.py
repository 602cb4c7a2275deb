"""`unroll-jax launch`: the processes of one run on this machine, watched, because a survivor cannot speak.

When a process dies, JAX ends the others by a signal that Python cannot catch, and long after. So somebody outside of
them says which one died and why, and ends the rest at once. On clusters the scheduler does this.
"""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from .interrupts import CTRL_C

GRACE_SECONDS = 20.0  # between asking a process to end and ending it
POLL_SECONDS = 0.1
REASON_LINES = 3  # of what a dead process wrote last
LEFT_BEHIND_SECONDS = 2.0  # for what a dead process wrote to be shown
STDERR = 2
CHUNK = 1 << 16
HELD_SECONDS = 0.3  # before what was written is shown: long enough to hear that another process is the culprit
REFUSED = 2  # the exit code of a mistake of the user, which a process tells in one line


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
        """Starts to read the output; call it once the process has started."""
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


class _Child(NamedTuple):
    """A process, and what it writes to stderr; that of the first one is shown, too."""

    number: int
    process: subprocess.Popen
    errors: IO[bytes]
    relay: Relay | None


def launch(commands: Sequence[Sequence[str]], *, grace: float = GRACE_SECONDS) -> int:
    """Runs commands beside one another until all have ended, or one has failed.

    The first one's output goes where ours goes; of the others only what they write to stderr is kept, to say why one
    died. Once one has, nothing more is shown of the others: JAX tells at length that it aborts them. SIGTERM and Ctrl-C
    ask all to end, by SIGTERM; so a run saves. A second Ctrl-C ends them at once.

    Args:
      commands: program and arguments of each process.
      grace: seconds the survivors have after one died, between SIGTERM and SIGKILL.

    Returns:
      0 if every process ended with 0, else the exit code of the first that did not, 128 + its number for a signal; 130
      after Ctrl-C.
    """
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_started(number, command)) for number, command in enumerate(commands)]
        passed = stack.enter_context(_passed_on(children))
        failed = _watch(children)
        if signal.SIGINT in passed:  # whoever interrupts knows why they end
            _end(children, grace)
            return CTRL_C
        if failed is None:
            return 0
        failed = _hushed(children, failed)
        _end(children, grace)
        if signal.SIGINT not in passed:
            sys.stderr.write(_what_happened(failed, len(children)))
        code = failed.process.returncode
        return code if code > 0 else 128 - code


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _started(number: int, command: Sequence[str]) -> Iterator[_Child]:
    """A running process, which does not outlive the context."""
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        relay = Relay(errors) if number == 0 else None
        outputs: dict[str, Any] = (
            {"stdout": subprocess.DEVNULL, "stderr": errors} if relay is None else {"stderr": relay.target}
        )
        process = subprocess.Popen(command, **outputs)
        if relay is not None:
            stack.callback(relay.hush, after=LEFT_BEHIND_SECONDS)
            relay.started()
        try:
            yield _Child(number, process, errors, relay)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def _passed_on(children: Sequence[_Child]) -> Iterator[set[int]]:
    """While the context lasts, signals that would end us go to the children instead, as SIGTERM; which did.

    JAX hears no other one. In a terminal Ctrl-C reaches the children by itself as well.
    """
    passed: set[int] = set()

    def pass_on(number: int, _: object) -> None:
        again = number == signal.SIGINT and number in passed
        passed.add(number)
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGKILL if again else signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(children: Sequence[_Child]) -> _Child | None:
    """Waits until all have ended well, or one has not: that one."""
    while True:
        codes = [child.process.poll() for child in children]
        failed = [child for child, code in zip(children, codes, strict=True) if code]
        if failed:
            return _first(failed)
        if all(code == 0 for code in codes):
            return None
        time.sleep(POLL_SECONDS)


def _first(failed: Sequence[_Child]) -> _Child:
    """Returns the child that died by itself, of several found dead at once: JAX ends the others by SIGABRT."""
    return min(failed, key=lambda child: child.process.returncode == -signal.SIGABRT)


def _hushed(children: Sequence[_Child], failed: _Child) -> _Child:
    """Shows nothing more of the first process but what it wrote as it died; the process to name.

    What one refuses all refuse, and the first one knows best why.
    """
    first = children[0]
    if failed.process.returncode == REFUSED and failed is not first:
        with contextlib.suppress(subprocess.TimeoutExpired):
            failed = first if first.process.wait(LEFT_BEHIND_SECONDS) == REFUSED else failed
    if first.relay is not None:
        first.relay.hush(after=LEFT_BEHIND_SECONDS if failed is first else 0.0)
    return failed


def _end(children: Sequence[_Child], grace: float) -> None:
    """A process that waits for a dead one in a collective does not hear SIGTERM: it is killed after the grace time."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    limit = time.monotonic() + grace
    while time.monotonic() < limit and any(child.process.poll() is None for child in children):
        time.sleep(POLL_SECONDS)
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            sys.stderr.write(f"process {child.number} did not end in {grace:.0f} s and was killed\n")


def _what_happened(failed: _Child, count: int) -> str:
    code, last = failed.process.returncode, _last_lines(failed.errors)
    if code == REFUSED and last and last[-1].startswith("error: "):
        return "" if failed.relay else f"{last[-1]}\n"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    wrote = f"it wrote last: {' | '.join(last[-REASON_LINES:])}" if last else "it wrote nothing to stderr"
    why = "its output is above" if failed.relay else wrote
    return f"error: process {failed.number} of {count} (pid {failed.process.pid}) {how}; {why}; the others are ended\n"


def _last_lines(errors: IO[bytes]) -> list[str]:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
    return [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]


def _terminal() -> tuple[int, int]:
    """A pseudo-terminal as wide as ours."""
    source, target = pty.openpty()
    termios.tcsetwinsize(target, termios.tcgetwinsize(STDERR))
    return source, target
