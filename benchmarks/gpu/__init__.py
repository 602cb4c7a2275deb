"""Correctness and speed on the GPU of this machine: all that a machine without one cannot tell, in 8 minutes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.gpu import attention, loop, precision, steps, tested
from benchmarks.record import Record
from benchmarks.timing import table

__all__ = ["PARTS", "Part", "main", "measured_apart"]


class Part(NamedTuple):
    """A measurement, in a separate process."""

    question: str  # that it answers
    measure: Callable[[Any], Record]  # of sizes
    sizes: tuple[Any, Any]  # full and quick
    seconds: float  # after which it is ended


TESTS = tested.ROOT / "tests"
# Their seconds are 8 minutes together.
PARTS = {
    "tests": Part("the tests marked gpu", tested.measure, (TESTS, TESTS), 75),
    "attention": Part("cuDNN's attention against ours", attention.measure, (attention.FULL, attention.QUICK), 45),
    "precision": Part("equilibria in TF32", precision.measure, (precision.FULL, precision.QUICK), 95),
    "memory": Part("memory against the plan", steps.measure_memory, (steps.FULL, steps.QUICK), 75),
    "steps": Part("steps as a share of peak", steps.measure, (steps.FULL, steps.QUICK), 150),
    "loop": Part("recompilation, waits for the host", loop.measure, (loop.FULL, loop.QUICK), 40),
}


def main(*, quick: bool = False, peers: bool = True) -> Record | None:
    """Prints the figures of every part, and what failed; without a GPU one line, and returns None."""
    del peers  # there are none
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # as every part is a process that shares the GPU
    if jax.default_backend() != "gpu":
        print(f"no GPU here (JAX runs on {jax.default_backend()}): nothing to measure")
        return None
    whole = Record(notes=[f"Measured on {jax.devices()[0].device_kind}."])
    for name, part in PARTS.items():
        began = time.perf_counter()
        print(f"\n{name}: {part.question}", flush=True)
        try:
            record = measured_apart(name, part.seconds, quick=quick)
        except Exception as error:  # of any kind: the other parts go on
            whole.notes.append(f"{name} failed: {' '.join(str(error).split())}")
            print(whole.notes[-1])
            continue
        print(table(["", ""], [[figure, f"{value:.4g}"] for figure, value in record.figures.items()]))
        print("\n".join([*record.notes, f"{time.perf_counter() - began:.0f} s"]), flush=True)
        _add(whole, name, record)
    return whole


def measured_apart(name: str, seconds: float, *, quick: bool) -> Record:
    """The record of a part, from a process of its own: what breaks a device breaks that alone.

    Raises:
      RuntimeError: with the process's last line, if it fails or is ended after its seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        command = [sys.executable, "-m", "benchmarks.gpu.part", name, str(file), "quick" if quick else "full"]
        process = subprocess.Popen(
            command,
            cwd=tested.ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"not done after {seconds:.0f} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
                process.communicate()
        if process.returncode != 0:
            messages = [line for line in errors.splitlines() if line.strip()] or ["nothing"]
            raise RuntimeError(f"exit code {process.returncode}: {messages[-1]}")
        return Record(**json.loads(file.read_text(encoding="utf-8")))


def run_part(name: str, file: Path, *, quick: bool) -> None:
    """Measures a part in this process and writes its record."""
    part = PARTS[name]
    record = dataclasses.asdict(part.measure(part.sizes[quick]))
    file.write_text(json.dumps(record), encoding="utf-8")


def _add(whole: Record, name: str, record: Record) -> None:
    for field in ("figures", "spreads", "floors"):
        getattr(whole, field).update({f"{name}: {key}": value for key, value in getattr(record, field).items()})
    whole.notes += [f"{name}: {note}" for note in record.notes]
