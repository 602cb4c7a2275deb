"""Applies each fault to a copy of the tree, runs the tests that should see it, and prints which did.

    python -m tests.faults                          # all of them
    python -m tests.faults --only duals --jobs 1    # those whose table, file, words or tests contain `duals`

A fault is caught if a test fails: by exit code 1 of pytest, not by those of a usage error or of nothing collected. Run
`make test` first: a test that fails without any fault would count as one that catches. Exits with 1 if one is missed.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults import (
    adjoints,
    attention,
    constrained,
    data,
    energies,
    foundations,
    models,
    originals,
    reports,
    running,
    solvers,
    sparse_coding,
    storage,
    training,
)
from tests.faults.fault import Fault

__all__ = ["TABLES", "Outcome", "check", "main", "try_fault"]

ROOT = Path(__file__).parents[2]
TABLES = {
    "foundations": foundations.FAULTS,
    "attention": attention.FAULTS,
    "energies": energies.FAULTS,
    "solvers": solvers.FAULTS,
    "adjoints": adjoints.FAULTS,
    "constrained": constrained.FAULTS,
    "models": models.FAULTS,
    "training": training.FAULTS,
    "running": running.FAULTS,
    "storage": storage.FAULTS,
    "data": data.FAULTS,
    "originals": originals.FAULTS,
    "reports": reports.FAULTS,
    "sparse_coding": sparse_coding.FAULTS,
}
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".ci", "runs", "__pycache__", ".*_cache")
LONGEST = 900.0  # seconds; a fault may make a test wait for ever, and then it is seen
FAILED = 1  # exit code of pytest when a test failed; faulthandler ends a hanging run with it too


class Outcome(NamedTuple):
    """Whether a fault was caught, by which test, and the seconds that took."""

    fault: Fault
    caught: bool
    by: str
    seconds: float


def check(fault: Fault, root: Path = ROOT) -> str:
    """The text of the changed file; raises ValueError if the fault does not apply to the tree."""
    text = (root / fault.file).read_text()
    if text.count(fault.old) != 1 or fault.old == fault.new:
        raise ValueError(
            f"{fault.file}: {fault.what!r} must change a text that occurs once, got {text.count(fault.old)}"
        )
    if missing := [path for path in fault.tests.split() if not (root / path).is_file()]:
        raise ValueError(f"{fault.what!r} names tests that are not there: {', '.join(missing)}")
    return text.replace(fault.old, fault.new)


def try_fault(fault: Fault, copy: Path, compiled: Path) -> Outcome:
    """Runs the tests of a fault in a copy of the tree, which is mended afterwards."""
    changed = copy / fault.file
    before = changed.read_text()
    changed.write_text(check(fault, copy))
    variables = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "JAX_COMPILATION_CACHE_DIR": str(compiled),  # most programs are those of another fault's run
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no"]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *fault.tests.split()],
            cwd=copy,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = FAILED, f"FAILED a test that ran for {LONGEST:.0f} s"
    finally:
        changed.write_text(before)
    seen = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    by = seen[1] if seen and code == FAILED else f"exit code {code}"
    return Outcome(fault, code == FAILED, by, time.monotonic() - start)


@contextmanager
def copies(count: int) -> Iterator[tuple["queue.Queue[Path]", Path]]:
    """As many copies of the tree as there are jobs, and a folder for compiled programs."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        free: queue.Queue[Path] = queue.Queue()
        for number in range(count):
            copy = Path(folder) / f"copy{number}"
            shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
            free.put(copy)
        yield free, Path(folder) / "compiled"


def main(arguments: list[str] | None = None) -> int:
    """Tries the faults asked for and prints a line for each, then the counts by table."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="those with TEXT in their table, file, words or tests"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults tried at once")
    options = parser.parse_args(arguments)
    rows = [
        (table, fault)
        for table, faults in TABLES.items()
        for fault in faults
        if options.only in f"{table} {fault.file} {fault.what} {fault.tests}"
    ]
    if not rows:
        parser.error(f"--only {options.only!r} names no fault")
    for _, fault in rows:
        check(fault)

    with copies(options.jobs) as (free, compiled), ThreadPoolExecutor(options.jobs) as pool:

        def one(fault: Fault) -> Outcome:
            copy = free.get()
            try:
                outcome = try_fault(fault, copy, compiled)
            finally:
                free.put(copy)
            word, by = ("caught", outcome.by) if outcome.caught else ("MISSED", f"{fault.tests}: {outcome.by}")
            print(f"{word} {outcome.seconds:5.0f} s  {fault.file}: {fault.what}  [{by}]", flush=True)
            return outcome

        outcomes = list(pool.map(one, [fault for _, fault in rows]))

    print()
    for name in dict.fromkeys(table for table, _ in rows):
        caught = [outcome.caught for (table, _), outcome in zip(rows, outcomes, strict=True) if table == name]
        print(f"{name}: {sum(caught)} of {len(caught)} caught")
    total = sum(outcome.caught for outcome in outcomes)
    print(f"all: {total} of {len(outcomes)} caught ({100 * total / len(outcomes):.1f}%)")
    return 0 if total == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
