"""Signals in every phase of a run: how it ends, and whether the same command then gives the same result."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.kills import arguments, newest, outcome, surroundings
from benchmarks.faults.process import PHASES
from benchmarks.timing import table

__all__ = ["signals_by_phase"]

STEPS = {"steps": 60}  # a run saves every 20 and keeps two checkpoints: those of a signal are gone in the end
# By signal, the exit codes that are right: a saved run, Ctrl-C, and a process that the system ends.
EXITS = {"SIGTERM": (0,), "SIGINT": (130,), "SIGHUP": (-1,)}
SECONDS = 0.02  # after a phase began
LIMIT = 900.0  # seconds; a command that takes longer hangs, also on a machine that others load
TITLES = ["signal", "phase", "exit code", "as it should be", "tracebacks", "hung", "same result in the end"]


def signals_by_phase() -> dict[str, Any]:
    """Prints a table of signals by phase; returns the number of cases, and of those that went wrong."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        alone = root / "alone"
        _run(root, ["-m", "unroll_jax.train", *arguments(alone, **STEPS)])
        expected = outcome(alone)
        for phase in PHASES:
            for signal_name in EXITS:
                rows.append(_struck(root, phase, signal_name, expected))
                print(f"  {signal_name}, {phase}: {', '.join(map(str, rows[-1][2:]))}", flush=True)
    print(table(TITLES, [list(map(str, row)) for row in rows]))
    return {
        "signals": len(rows),
        "signals_lost": sum(row[-1] != "yes" for row in rows),
        "signals_wrong": sum(row[3] == "NO" for row in rows),
        "signals_tracebacks": sum(row[4] for row in rows),
        "signals_hung": sum(row[5] == "YES" for row in rows),
    }


def _struck(root: Path, phase: str, name: str, expected: Any) -> list[Any]:
    """The row of a signal in a phase; the run goes on from a checkpoint where it is restored."""
    folder = root / "run"
    shutil.rmtree(folder, ignore_errors=True)
    words = arguments(folder, **STEPS)
    if phase == "restore":
        _begin(root, words, folder)
    prepared = root / "prepared" if phase != "prepare" else root / f"prepared-{name}"
    command = ["-m", "benchmarks.faults.process", phase, name, str(SECONDS), str(root / "done"), *words]
    code, log = _run(root, command, prepared=prepared)
    again, _ = _run(root, ["-m", "unroll_jax.train", *words], prepared=prepared)
    same = again == 0 and outcome(folder) == expected
    # A signal in the last moment may find the command ended.
    right = code in (0, *EXITS[name]) if phase == "report" else code in EXITS[name]
    hung = "YES" if None in (code, again) else "no"
    return [name, phase, code, "yes" if right else "NO", log.count("Traceback"), hung, "yes" if same else "NO"]


def _begin(root: Path, words: list[str], folder: Path) -> None:
    """Trains until a checkpoint is there, and kills the process."""
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "unroll_jax.train", *words], env=surroundings(root), **quiet)
    while newest(folder) == 0 and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()


def _run(root: Path, words: list[str], *, prepared: Path | None = None) -> tuple[int | None, str]:
    """The exit code and the output of a process; None for one that hangs."""
    environment = surroundings(root) | ({"UNROLL_PREPARED": str(prepared)} if prepared else {})
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0].decode(errors="replace")
    return process.returncode, output.decode(errors="replace")
