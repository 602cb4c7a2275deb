"""Trains and evaluates the cells of a sweep, here or in child processes."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax

from ..config.errors import Interrupted, StorageError, UserError, one_line
from ..evaluate import evaluate
from ..loop import train_run
from ..registry import open_task, prepare_data
from ..runs import ENDED, check_same, identity, read_status
from ..system.files import read_object
from ..system.machine import stopping_at_once
from .axes import Cell, Sweep

GRACE_SECONDS = 120.0  # a child that is asked to end finishes its step, or XLA's compilation, and saves
MEMORY_SHARE = 0.9  # share of a GPU's memory that the jobs on it divide
Log = Callable[[str], None]


def has_ended(folder: Path, *, tested: bool = True) -> bool:
    """Returns whether a run has ended, and with ``tested`` was evaluated on the test split."""
    return read_status(folder).get("state") in ENDED and (not tested or (folder / "evaluation.json").exists())


def check_folders(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Raises UserError if the folder of a cell holds a run with other options, before anything is computed."""
    for cell in cells:
        if (path := sweep.folder / cell.name / "config.json").exists():
            expected = identity(sweep.experiment, cell.config, read_object(path).get("found", {}))
            check_same(path.parent, expected, "pass another --out, or move that folder away")


def run_cells(
    sweep: Sweep, cells: Sequence[Cell], *, jobs: int, tested: bool = True, log: Log = print
) -> dict[str, str]:
    """Trains cells, resuming those that were interrupted, and with ``tested`` evaluates them on the test split.

    Returns:
      The messages of the cells that failed, by name; a failure does not end the others.
    """
    messages = dict[str, str]()

    def ended(cell: Cell, message: str) -> None:
        messages[cell.name] = message
        log(f"[{len(messages)} of {len(cells)}] {cell.name}: {message or 'finished'}")

    if jobs > 1 and len(cells) > 1:
        prepare_data(cells[0].config, log)  # once, ahead of the processes that read them
        _run_children(sweep, cells, min(jobs, len(cells)), tested, ended)
    else:
        for cell in cells:
            ended(cell, _compute(sweep, cell, tested=tested, log=log))
    return {name: message for name, message in messages.items() if message}


def _compute(sweep: Sweep, cell: Cell, *, tested: bool, log: Log = print) -> str:
    """Trains one cell and, with ``tested``, evaluates it; returns why it failed, "" if it did not."""
    folder = sweep.folder / cell.name
    try:
        task = open_task(cell.config, log)
        train_run(task, folder, experiment=sweep.experiment, log=log)
        if tested and not (folder / "evaluation.json").exists():
            evaluate(task, folder, experiment=sweep.experiment, log=log)
    except StorageError:  # not due to the cell
        raise
    except UserError as error:
        return one_line(error)
    except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:  # such as too little memory on a device
        log(traceback.format_exc())
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def _run_children(
    sweep: Sweep, cells: Sequence[Cell], jobs: int, tested: bool, ended: Callable[[Cell, str], None]
) -> None:
    """Computes cells in at most ``jobs`` processes; ends them all when this process is asked to end."""
    context, waiting = multiprocessing.get_context("spawn"), list(cells)
    children = dict[int, tuple[Cell, BaseProcess]]()  # by slot
    with _ending(children):
        while waiting or children:
            for slot in sorted(set(range(jobs)) - set(children))[: len(waiting)]:
                cell = waiting.pop(0)
                process = context.Process(target=_child, args=(sweep, cell, slot, jobs, tested), daemon=True)
                children[slot] = cell, process
                process.start()
            multiprocessing.connection.wait([process.sentinel for _, process in children.values()])
            for slot, (cell, process) in list(children.items()):
                if not process.is_alive():
                    process.join()
                    del children[slot]
                    ended(cell, _message(sweep, cell, process.exitcode))


@contextlib.contextmanager
def _ending(children: dict[int, tuple[Cell, BaseProcess]]) -> Iterator[None]:
    """Asks the children that are left to save and end, and waits for them."""
    try:
        yield
    finally:
        started = [process for _, process in children.values() if process.pid is not None]
        for process in started:
            process.terminate()
        for process in started:
            process.join(GRACE_SECONDS)
            if process.is_alive():
                process.kill()


def _child(sweep: Sweep, cell: Cell, slot: int, jobs: int, tested: bool) -> None:
    """Computes a cell in a process that writes to the cell's log; the last line of a failure tells why."""
    with _log_of(sweep, cell).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    _share_machine(slot, jobs)
    try:
        with stopping_at_once():
            message = _compute(sweep, cell, tested=tested)
    except Interrupted as stop:
        message = str(stop)
    except StorageError as error:
        message = one_line(error)
    if message:
        print(message, flush=True)
        sys.exit(1)


def _share_machine(slot: int, jobs: int) -> None:
    """Gives this process its share of the cores and, where there are any, one GPU or a part of its memory."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[slot::jobs] or [cores[slot % len(cores)]])
    all_gpus = ",".join(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))
    gpus = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", all_gpus).split(",") if part.strip()]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        share = MEMORY_SHARE / -(-jobs // len(gpus))
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{share:.3f}")


def _log_of(sweep: Sweep, cell: Cell) -> Path:
    return sweep.folder / f"{cell.name}.log"


def _message(sweep: Sweep, cell: Cell, code: int | None) -> str:
    """Returns why a child failed, the last line of its log; "" if it did not."""
    if code == 0:
        return ""
    lines = _log_of(sweep, cell).read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return last if code == 1 else f"exit code {code}; it wrote last: {last}"
