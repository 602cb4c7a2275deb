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

__all__ = ["DEFAULT", "PARTS", "Part", "main", "measured_apart"]


class Part(NamedTuple):
    """A measurement, in a separate process."""

    question: str  # that it answers
    # of sizes; an iterator gives its record whenever it grows
    measure: Callable[[Any], Record | Iterator[Record]]
    sizes: tuple[Any, Any]  # full and quick
    seconds: float  # after which it is ended
    # of sizes: lowered on a machine without a GPU
    programs: Callable[[Any], dict[str, Program]] | None = None


def _part(question: str, module: Any, seconds: float) -> Part:
    return Part(
        question, module.measure, (module.FULL, module.QUICK), seconds, module.programs
    )


TESTS = tested.ROOT / "tests"
# Pairs and decoder take at most 7 minutes, equilibria and opteq 4, all others less than
# 9.
PARTS = {
    "pairs": _part("the kernel for all pairs against cuDNN and XLA", pairs, 180),
    "decoder": _part("steps of a decoder of 1.2e9 parameters", decoder, 240),
    "equilibria": _part("equilibria against jaxopt", equilibria, 60),
    "opteq": _part("the network of Table 1a and its plain network", opteq, 180),
    "tests": Part("the tests marked gpu", tested.measure, (TESTS, TESTS), 90),
    "precision": Part(
        "TF32",
        equilibria.measure_precision,
        (equilibria.FULL._replace(side=32), equilibria.QUICK),
        95,
    ),
    "memory": Part(
        "memory against the plan", steps.measure_memory, (steps.FULL, steps.QUICK), 75
    ),
    "steps": Part(
        "steps as a share of peak", steps.measure, (steps.FULL, steps.QUICK), 150
    ),
    "loop": Part(
        "recompilation, waits for the host", loop.measure, (loop.FULL, loop.QUICK), 40
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

    The record of a part is in ``gpu/NAME.json`` in ``out`` while it still grows;
    ``only`` of None is `DEFAULT`. Without a GPU the programs of the parts are lowered
    for one, and None is returned.
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
        part, began = PARTS[name], time.perf_counter()
        print(f"\n{name}: {part.question}", flush=True)
        try:
            if on_a_gpu:
                record = measured_apart(
                    name, part.seconds, quick=quick, file=out / "gpu" / f"{name}.json"
                )
            else:
                record = (
                    Record()
                    if part.programs is None
                    else ahead_of_time(part.programs(part.sizes[quick]))
                )
        except Exception as error:  # of any kind: the other parts go on
            whole.notes.append(f"{name} failed: {' '.join(str(error).split())}")
            print(whole.notes[-1])
            continue
        print(
            table(
                ["", ""],
                [[figure, f"{value:.4g}"] for figure, value in record.figures.items()],
            )
        )
        print(
            "\n".join([*record.notes, f"{time.perf_counter() - began:.0f} s"]),
            flush=True,
        )
        _add(whole, name, record)
    return whole if on_a_gpu else None


def measured_apart(name: str, seconds: float, *, quick: bool, file: Path) -> Record:
    """The record of a part, from a new process: a fault of the device ends only that
    part.

    A part that is cut off keeps what its file has, and gets a note.

    Raises:
      RuntimeError: with the process's last line, if it fails or is ended after its
        seconds without any figure.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.part",
        name,
        str(file.resolve()),
        "quick" if quick else "full",
    ]
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
            messages = [line for line in errors.splitlines() if line.strip()] or [
                "nothing"
            ]
            problem = f"exit code {process.returncode}: {messages[-1]}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.communicate()
    if not file.is_file():
        raise RuntimeError(problem)
    record = Record(**json.loads(file.read_text(encoding="utf-8")))
    record.notes += [f"cut off: {problem}"] if problem else []
    return record


def run_part(name: str, file: Path, *, quick: bool) -> None:
    """Measures a part in this process and writes its record, as often as it grows."""
    part = PARTS[name]
    records = part.measure(part.sizes[quick])
    for record in [records] if isinstance(records, Record) else records:
        written = file.with_suffix(".new")
        written.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
        written.replace(file)


def _add(whole: Record, name: str, record: Record) -> None:
    for field in ("figures", "spreads", "floors"):
        getattr(whole, field).update(
            {f"{name}: {key}": value for key, value in getattr(record, field).items()}
        )
    whole.notes += [f"{name}: {note}" for note in record.notes]
