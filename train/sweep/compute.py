"""Computes the cells of a sweep, here or in processes."""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax

from ..config.errors import Interrupted, UserError, one_line
from ..core.folder import (
    FINISHED,
    begin,
    check_first,
    check_same,
    identity,
    read_status,
)
from ..core.loop import train_run
from ..core.plan import make_plan
from ..evaluate import evaluate_run, is_evaluated
from ..registry import open_task, prepare_data
from ..system.files import locked, read_object, require_writable
from ..system.machine import stopping_at_once
from .axes import Cell, Sweep
from .results import RECORD, write_tables

# a child that is asked to end finishes its step, or XLA's compilation, and saves
GRACE_SECONDS = 120.0
MEMORY_SHARE = 0.9  # share of a GPU's memory that the jobs on it divide


def run(sweep: Sweep, cells: Sequence[Cell], *, jobs: int) -> int:
    """Computes the cells and writes their tables; returns 1 if some failed, 0 if
    none did."""
    folder = sweep.folder
    check_first(cells[0].config)
    begin(folder, RECORD, {"experiment": sweep.experiment}, what="sweep")
    # a search is shared: its trials have locks
    held = contextlib.nullcontext() if sweep.ranges else locked(folder)
    with held:
        require_writable(folder)
        check_folders(sweep, cells)
        left = [cell for cell in cells if not has_ended(folder / cell.name)]
        print(f"{folder}: {len(cells)} cells, {len(left)} left")
        failures = run_cells(sweep, left, jobs=jobs)
        if sweep.ranges:
            from .search import best_cell  # which imports Optuna

            cells = [best_cell(sweep, cell) for cell in cells]
        write_tables(sweep, cells)
    for name, message in failures.items():
        print(f"failed: {name}: {message}")
    return 1 if failures else 0


def has_ended(folder: Path) -> bool:
    """Returns whether a run has ended and was evaluated on the test split."""
    return read_status(folder).get("state") == FINISHED and is_evaluated(folder)


def check_folders(sweep: Sweep, cells: Iterable[Cell]) -> None:
    """Raises UserError if the folder of a cell holds a run with other options,
    before anything is computed."""
    for cell in cells:
        if (path := sweep.folder / cell.name / "config.json").exists():
            expected = identity(
                sweep.experiment, cell.config, read_object(path).get("found", {})
            )
            check_same(
                path.parent, expected, "pass another --out, or move that folder away"
            )


def run_cells(sweep: Sweep, cells: Sequence[Cell], *, jobs: int) -> dict[str, str]:
    """Trains cells, resuming those that were interrupted, and evaluates them on the
    test split. Returns the messages of the cells that failed, by name; a failure does
    not end the others.
    """
    messages = dict[str, str]()

    def ended(cell: Cell, message: str) -> None:
        messages[cell.name] = message
        print(f"[{len(messages)} of {len(cells)}] {cell.name}: {message or 'finished'}")

    if jobs > 1 and len(cells) > 1:
        # once, ahead of the processes that read them
        prepare_data(vars(cells[0].config)["data"], print)
        _run_children(sweep, cells, min(jobs, len(cells)), ended)
    else:
        for cell in cells:
            ended(cell, _compute(sweep, cell))
    return {name: message for name, message in messages.items() if message}


def _compute(sweep: Sweep, cell: Cell, tested: bool = True) -> str:
    """Trains a cell and evaluates it, or searches one with ranges; returns why it
    failed, "" if it did not."""
    folder = sweep.folder / cell.name
    if tested and has_ended(folder):
        return ""
    try:
        if not cell.searched:
            from .search import search

            return search(sweep, cell, functools.partial(_compute, sweep))
        task = open_task(cell.config, print)
        plan = make_plan(task)
        train_run(task, plan, folder, experiment=sweep.experiment, log=print)
        if tested:
            evaluate_run(task, plan, folder, experiment=sweep.experiment, log=print)
    except UserError as error:
        return one_line(error)
    # such as too little memory on a device
    except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:
        traceback.print_exc(file=sys.stdout)
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def _run_children(
    sweep: Sweep, cells: Sequence[Cell], jobs: int, ended: Callable[[Cell, str], None]
) -> None:
    """Computes cells in at most ``jobs`` processes; where this process is asked to
    end, they save and end too."""
    context = multiprocessing.get_context("spawn")
    waiting = list(cells)
    children = dict[int, tuple[Cell, BaseProcess]]()  # by slot
    try:
        while waiting or children:
            for slot in range(jobs):
                if waiting and slot not in children:
                    cell = waiting.pop(0)
                    arguments = sweep, cell, slot, jobs
                    process = context.Process(
                        target=_child, args=arguments, daemon=True
                    )
                    process.start()
                    children[slot] = cell, process
            sentinels = [process.sentinel for _, process in children.values()]
            multiprocessing.connection.wait(sentinels)
            for slot, (cell, process) in list(children.items()):
                if not process.is_alive():
                    process.join()
                    del children[slot]
                    ended(cell, _last_words(sweep, cell, process.exitcode))
    finally:
        for _, process in children.values():
            process.terminate()
        for _, process in children.values():
            process.join(GRACE_SECONDS)
            process.kill()


def _last_words(sweep: Sweep, cell: Cell, code: int | None) -> str:
    """Returns why a child failed, its last line, or ""."""
    if not code:
        return ""
    text = (sweep.folder / f"{cell.name}.log").read_text(errors="replace").strip()
    last = text.rpartition("\n")[2].strip() or "nothing"
    return last if code == 1 else f"exit code {code}; it wrote last: {last}"


def _child(sweep: Sweep, cell: Cell, slot: int, jobs: int) -> None:
    """Computes a cell in a process that writes to the cell's log; the last line of a
    failure says why."""
    with (sweep.folder / f"{cell.name}.log").open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    # a share of the cores, and one GPU or a part of its memory
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[slot::jobs] or [cores[slot % len(cores)]])
    count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    gpus = [part for part in visible.split(",") if part.strip()]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        share = MEMORY_SHARE / -(-jobs // len(gpus))
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{share:.3f}")
    try:
        with stopping_at_once():
            message = _compute(sweep, cell)
    except (Interrupted, OSError) as stop:
        message = one_line(stop)
    if message:
        print(message, flush=True)
        sys.exit(1)
