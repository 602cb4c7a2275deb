"""Cells in processes of their own, several at a time: each has its share of the cores, and a GPU where there are some.

A child is the same command with --only CELL. It hears SIGTERM as every run does: it saves, and ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.errors import Interrupted
from ..system.interrupts import CTRL_C, handling
from .axes import Cell
from .cells import LEFT, State, log_of, read_state

POLL_SECONDS = 0.1
GRACE_SECONDS = 120.0  # for a child to save what it did, which waits for its step, or for XLA
FAILED = 4  # the exit code of a child whose cell failed, which is an outcome and no mistake
MEMORY_SHARE = 0.9  # of a GPU, for the jobs that share it
Ended = Callable[[Cell, State], None]


class _Child(NamedTuple):
    cell: Cell
    process: subprocess.Popen
    slot: int


def run_children(
    cells: Sequence[Cell],
    *,
    folder: Path,
    words: Sequence[str],
    jobs: int,
    deadline: float | None,
    ended: Ended,
) -> None:
    """Computes cells in as many processes at a time as there are jobs; only processes that it started are ended.

    Args:
      cells: to be computed, in this order.
      folder: of the table.
      words: of the command behind `table`.
      jobs: how many at a time.
      deadline: on the monotonic clock; what runs then saves and ends. None for none.
      ended: hears of every cell that has ended.

    Raises:
      Interrupted: if SIGTERM or Ctrl-C asked to end; the children have saved by then.
    """
    waiting, children, heard = list(cells), list[_Child](), list[int]()
    with _listening(heard):
        try:
            while waiting or children:
                over = bool(heard) or (deadline is not None and time.monotonic() >= deadline)
                if over:
                    waiting.clear()
                    _end(children)
                while waiting and len(children) < jobs:
                    slot = min(set(range(jobs)) - {child.slot for child in children})
                    children.append(_start(waiting.pop(0), folder, words, slot, jobs))
                for child in [child for child in children if child.process.poll() is not None]:
                    children.remove(child)
                    ended(child.cell, _state(child, folder))
                time.sleep(POLL_SECONDS)
        finally:
            _end(children)
    if heard:
        by_hand = signal.SIGINT in heard
        how = "interrupted by Ctrl-C" if by_hand else "asked to end by SIGTERM"
        raise Interrupted(f"{folder}: {how}, cells are saved; the same command goes on", CTRL_C if by_hand else 0)


@contextlib.contextmanager
def _listening(heard: list[int]) -> Iterator[None]:
    """While the context lasts, requests to end are noted, and raise nothing: every child that is started is known."""
    with contextlib.ExitStack() as handlers:
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers.enter_context(handling(number, lambda number=number: heard.append(number)))
        yield


def _start(cell: Cell, folder: Path, words: Sequence[str], slot: int, jobs: int) -> _Child:
    package = __name__.rpartition(".grid.")[0]
    command = [sys.executable, "-m", package, "table", *words, "--only", cell.name]
    path = log_of(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **_devices(slot, jobs)}, stdout=output, stderr=subprocess.STDOUT
        )
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):  # which has ended already
            os.sched_setaffinity(process.pid, cores_of(slot, jobs, sorted(os.sched_getaffinity(0))))
    return _Child(cell, process, slot)


def cores_of(slot: int, jobs: int, cores: Sequence[int]) -> list[int]:
    """The cores of a job: an equal share, or one of them in turn where there are more jobs."""
    return list(cores[slot::jobs]) or [cores[slot % len(cores)]]


def _devices(slot: int, jobs: int) -> dict[str, str]:
    """The environment that gives a job its GPU, in turn, and its share of the memory where several share one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if os.environ.get("JAX_PLATFORMS", "").partition(",")[0] == "cpu":
        return {}
    numbers = [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    devices = numbers if visible is None else [part for part in visible.split(",") if part.strip()]
    if not devices:
        return {}
    sharing = -(-jobs // len(devices))
    share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{MEMORY_SHARE / sharing:.3f}")
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": share} if sharing > 1 else {}
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)], **memory}


def _state(child: _Child, folder: Path) -> State:
    """Returns the state of a cell after its process; the next call tries one again whose process died."""
    code, path = child.process.returncode, log_of(folder, child.cell)
    state = read_state(folder, child.cell, {})
    if code == 0:
        return state
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "it wrote nothing"
    if code == FAILED:
        return State("failed", last.removeprefix("failed: "))
    if code == CTRL_C:
        return LEFT
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return State("left", f"{how}, it wrote last: {last}; see {path}")


def _end(children: Sequence[_Child]) -> None:
    """Asks children to save and end, and waits for that; those that do not are killed."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    limit = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def at_deadline(minutes: float | None) -> float | None:
    """The time on the monotonic clock at which a budget is used up; None for none."""
    return None if minutes is None else time.monotonic() + 60.0 * minutes


@contextlib.contextmanager
def spending(minutes: float | None) -> Iterator[None]:
    """Ends what is done in the context after so many minutes, by SIGTERM: a run saves, and the context is left."""
    lock, over, spent = threading.Lock(), threading.Event(), threading.Event()

    def end() -> None:
        with lock:
            if not over.is_set():
                spent.set()
                os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(60.0 * (minutes or 0.0), end)
    timer.daemon = True
    if minutes is not None:
        timer.start()
    try:
        yield
        with lock:  # where the signal was sent before, it is heard here
            over.set()
    except Interrupted:
        if not spent.is_set():
            raise
    finally:
        over.set()
        timer.cancel()
