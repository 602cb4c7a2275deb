"""Correctness and speed on the GPU of this machine, in parts: all that needs one."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.gpu import decoder, equilibria, loop, opteq, pairs, steps, tested
from benchmarks.gpu.ahead import Program, ahead_of_time
from benchmarks.record import Record
from benchmarks.timing import table

__all__ = ["DEFAULT", "PARTS", "Part", "main", "measure_apart"]


class Part(NamedTuple):
    """A measurement, in a separate process."""

    title: str
    seconds: float  # after which the process is ended
    # of sizes. An iterator yields its record whenever that grows
    measure: Callable[[Any], Record | Iterator[Record]]
    full: Any  # sizes
    quick: Any  # sizes
    # of sizes, lowered on a machine without a GPU
    programs: Callable[[Any], dict[str, Program]] | None = None


def _part(title: str, seconds: float, module: Any) -> Part:
    sizes = module.FULL, module.QUICK
    return Part(title, seconds, module.measure, *sizes, module.programs)


TESTS = tested.ROOT / "tests"
IMAGES = equilibria.FULL._replace(side=32)
# Pairs and decoder take at most 7 minutes, equilibria and opteq 4, all others less than
# 9.
PARTS = {
    "pairs": _part("the kernel for all pairs against cuDNN and XLA", 180, pairs),
    "decoder": _part("steps of a decoder of 1.2e9 parameters", 240, decoder),
    "equilibria": _part("equilibria against jaxopt", 60, equilibria),
    "opteq": _part("the network of Table 1a and its plain network", 180, opteq),
    "tests": Part("the tests marked gpu", 90, tested.measure, TESTS, TESTS),
    "precision": Part(
        "TF32", 95, equilibria.measure_precision, IMAGES, equilibria.QUICK
    ),
    "memory": Part(
        "memory against the plan", 75, steps.measure_memory, steps.FULL, steps.QUICK
    ),
    "steps": Part(
        "steps as a share of peak", 150, steps.measure, steps.FULL, steps.QUICK
    ),
    "loop": Part(
        "recompilation, waits for the host", 40, loop.measure, loop.FULL, loop.QUICK
    ),
}
DEFAULT = tuple(name for name, part in PARTS.items() if part.programs is not None)


def main(
    *,
    quick: bool = False,
    peers: bool = True,
    only: Sequence[str] | None = None,
    out: Path = Path("runs/benchmarks"),
) -> Record | None:
    """Prints the figures of every part of ``only``, and what failed.

    The record of a part is in ``gpu/NAME.json`` in ``out`` while it grows. If ``only``
    is None, `DEFAULT` runs. Without a GPU the programs of the parts are lowered for
    one, and None is returned.
    """
    del peers  # part of the sizes
    # Every part is a process that shares the GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    on_a_gpu = jax.default_backend() == "gpu"
    if not on_a_gpu:
        print(
            f"no GPU here (JAX runs on {jax.default_backend()}): nothing to measure,"
            " programs are lowered for an H100"
        )
    whole = Record(notes=[f"Measured on {jax.devices()[0].device_kind}."])
    for name in only or DEFAULT:
        part = PARTS[name]
        began = time.perf_counter()
        print(f"\n{name}: {part.title}", flush=True)
        try:
            if on_a_gpu:
                file = out / "gpu" / f"{name}.json"
                record = measure_apart(name, part.seconds, quick=quick, file=file)
            elif part.programs is None:
                record = Record()
            else:
                record = ahead_of_time(
                    part.programs(part.quick if quick else part.full)
                )
        except Exception as error:  # of any kind: the other parts still run
            whole.notes.append(f"{name} failed: {' '.join(str(error).split())}")
            print(whole.notes[-1])
            continue
        rows = list(map(list, record.figures.items()))
        print(table(["", ""], rows), *record.notes, sep="\n")
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
        _add(whole, name, record)
    return whole if on_a_gpu else None


def measure_apart(name: str, seconds: float, *, quick: bool, file: Path) -> Record:
    """The record of a part, from a new process.

    A fault of the device ends only that part. A part that is cut off keeps the figures
    in its file, and gets a note.

    Raises:
      RuntimeError: with the process's last line, if it fails or is ended after its
        seconds without any figure.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.part", name, str(file.resolve())]
    command.append("quick" if quick else "full")
    process = subprocess.Popen(
        command,
        cwd=tested.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    problem = ""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        problem = f"not done after {seconds:.0f} s"
    else:
        if process.returncode != 0:
            lines = errors.strip().splitlines() or ["no message"]
            problem = f"exit code {process.returncode}: {lines[-1]}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.communicate()
    if not file.is_file():
        raise RuntimeError(problem)
    record = Record(**json.loads(file.read_text(encoding="utf-8")))
    if problem:
        record.notes.append(f"cut off: {problem}")
    return record


def run_part(name: str, file: Path, *, quick: bool) -> None:
    """Measures a part in this process, and writes its record whenever that grows."""
    part = PARTS[name]
    records = part.measure(part.quick if quick else part.full)
    for record in [records] if isinstance(records, Record) else records:
        written = file.with_suffix(".new")
        written.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
        written.replace(file)


def _add(whole: Record, name: str, record: Record) -> None:
    for field in ("figures", "spreads", "floors"):
        for key, value in getattr(record, field).items():
            getattr(whole, field)[f"{name}: {key}"] = value
    whole.notes += [f"{name}: {note}" for note in record.notes]
