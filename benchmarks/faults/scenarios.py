"""Signals, full and read-only disks and damaged files over commands: what they say, and what comes of their work."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.jobs import JOBS, Job, fresh
from benchmarks.faults.kills import surroundings
from benchmarks.timing import table

__all__ = ["try_scenarios"]

SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "Ctrl-C": (signal.SIGINT,),
    "Ctrl-C twice": (signal.SIGINT, signal.SIGINT),
}
DISKS = ("full disk", "read-only disk")
FAULTS = (*SIGNALS, *DISKS, "damaged file")
EXITS = {"SIGKILL": (-9,), "SIGTERM": (0,), "Ctrl-C": (130,), "Ctrl-C twice": (130, -2), "damaged file": (0,)}
REFUSED = (2,)
SIZE = "256m"  # of the disk that is filled
LATE = 0.4  # share of its time after which a command is in the middle, where no file says so
UNFINISHED = ("*.partial", "*.orbax-checkpoint-tmp*", "incomplete.*", ".probe-*")
TITLES = ["fault", "command", "exit code", "as it should be", "tracebacks", "left half done", "same result in the end"]


class Ended(NamedTuple):
    """The end of a process, and whether a fault came before that."""

    code: int
    log: str
    struck: bool


def try_scenarios() -> list[dict[str, Any]]:
    """Prints a table of every fault over every command; its rows by name.

    Each command is started, struck in the middle of its work, and given again; its result must then be that of the
    command that was left alone.
    """
    rows = []
    with tempfile.TemporaryDirectory() as name, _disk(Path(name)) as disk:
        alone = {job: _alone(job, disk) for job in JOBS}
        for fault in FAULTS:
            for job, (expected, seconds) in alone.items():
                if row := _tried(fault, job, disk, expected, seconds):
                    rows.append(dict(zip(TITLES, row, strict=True)))
                    print(f"  {fault}, {job}: {', '.join(map(str, row[2:]))}", flush=True)
    print(table(TITLES, [[str(cell) for cell in row.values()] for row in rows]))
    return rows


def _tried(fault: str, name: str, disk: Path, expected: Any, seconds: float) -> list[Any] | None:
    """The row of a fault over a command; None where it cannot come over it."""
    job, folder = JOBS[name], disk / name
    if (fault in DISKS and not os.path.ismount(disk)) or (fault == "damaged file" and job.damage is None):
        return None
    fresh(name, folder, disk / "trained")
    ended = _under(fault, name, folder, disk, seconds)
    left = [path for pattern in UNFINISHED for path in folder.rglob(pattern)]
    again = _run(name, folder, disk)
    allowed = EXITS.get(fault, REFUSED)
    return [
        fault,
        name,
        ended.code,
        "yes" if ended.code in allowed else "NO" if ended.struck or fault not in SIGNALS else "ended first",
        ended.log.count("Traceback"),
        len(left),
        "yes" if again.code == 0 and job.result(folder) == expected else "NO",
    ]


def _under(fault: str, name: str, folder: Path, disk: Path, seconds: float) -> Ended:
    """Runs a command under a fault, and takes the fault away."""
    job = JOBS[name]
    if fault in SIGNALS:
        return _run(name, folder, disk, lambda process: _signal(process, SIGNALS[fault]), seconds)
    if fault == "full disk":
        # What is written once, in the end, has a disk that is full from the start.
        strike = None if job.begun is None else (lambda process: _fill(disk))
        if strike is None:
            _fill(disk)
        ended = _run(name, folder, disk, strike, seconds)
        (disk / "filler").unlink()
        return ended
    _run(name, folder, disk, lambda process: _signal(process, SIGNALS["Ctrl-C"]), seconds)
    if fault == "read-only disk":
        with _read_only(disk):
            return _run(name, folder, disk)
    assert job.damage is not None
    job.damage(folder)
    return _run(name, folder, disk)


def _alone(name: str, disk: Path) -> tuple[Any, float]:
    """The result of a command that nothing happens to, and the seconds it took, with its programs compiled."""
    folder, began = disk / name, 0.0
    for _ in range(2):  # the second time without compiling
        fresh(name, folder, disk / "trained")
        began = time.monotonic()
        ended = _run(name, folder, disk)
        if ended.code != 0:
            raise RuntimeError(f"{name}, left alone, ended with exit code {ended.code}: {ended.log}")
    seconds, result = time.monotonic() - began, JOBS[name].result(folder)
    if name == "run":
        shutil.copytree(folder, disk / "trained")
    return result, seconds


def _run(
    name: str,
    folder: Path,
    disk: Path,
    strike: Callable[[subprocess.Popen], None] | None = None,
    seconds: float = 0.0,
) -> Ended:
    """Runs a command to its end; struck when it is in the middle."""
    job, elsewhere = JOBS[name], disk.parent
    environment = surroundings(elsewhere) | ({"UNROLL_PREPARED": str(folder)} if name == "prepare" else {})
    with tempfile.TemporaryFile("w+", dir=elsewhere) as log:
        command = [sys.executable, "-m", "unroll_jax.train", *job.words(folder)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        struck = strike is not None and _in_the_middle(process, job, folder, seconds)
        if strike is not None and struck:
            strike(process)
        code = process.wait()
        log.seek(0)
        return Ended(code, log.read(), struck)


def _in_the_middle(process: subprocess.Popen, job: Job, folder: Path, seconds: float) -> bool:
    """Waits until a process is in the middle of its work; False if it ended before."""
    middle = time.monotonic() + LATE * seconds
    while process.poll() is None:
        if time.monotonic() > middle if job.begun is None else job.begun(folder):
            return True
        time.sleep(0.002)
    return False


def _signal(process: subprocess.Popen, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[Path]:
    """A small disk of its own to fill, where the system lets us mount one, else a folder."""
    disk = root / "disk"
    disk.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk))
    if not mounted:
        print(f"no disk can be mounted here: {', '.join(DISKS)} are not tried")
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _read_only(disk: Path) -> Iterator[None]:
    _mount("-o", "remount,ro", str(disk))
    try:
        yield
    finally:
        _mount("-o", "remount,rw", str(disk))


def _fill(disk: Path) -> None:
    """Leaves no byte, whatever others write meanwhile."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
