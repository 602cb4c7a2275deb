"""Computes the cells of a sweep, here or in processes, and their tables as text, CSV
and JSON."""

import contextlib
import csv
import functools
import io
import multiprocessing
import multiprocessing.connection
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..config.errors import Interrupted, UserError, one_line
from ..core.evaluate import evaluate_run, is_evaluated
from ..core.folder import (
    FINISHED,
    begin,
    check_first,
    check_same,
    identity,
    read_status,
)
from ..core.loop import train_run
from ..core.metrics import validation_of
from ..core.plan import in_steps, make_plan
from ..core.task import Log, Task
from ..registry import open_task, prepare_data
from ..report.records import REPORTS, floats
from ..report.tables import as_table, text_of
from ..system.files import locked, read_object, require_writable, to_bytes, write_all
from ..system.machine import stopping_at_once
from ..system.terminal import Table, as_text
from .axes import Cell, Sweep

# a child that is asked to end finishes its step, or XLA's compilation, and saves
GRACE_SECONDS = 120.0
MEMORY_SHARE = 0.9  # share of a GPU's memory that the jobs on it divide
RECORD = "sweep.json"
Row = dict[str, Any]
JUDGED = ("feasible", "excess", "validation")  # columns of a `Judgement`


def run(sweep: Sweep, cells: Sequence[Cell], *, jobs: int) -> int:
    """Computes the cells and writes their tables. Returns 1 if some failed, 0 if
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
    way_out = "pass another --out, or move that folder away"
    for cell in cells:
        if (path := sweep.folder / cell.name / "config.json").exists():
            found = read_object(path).get("found", {})
            expected = identity(sweep.experiment, cell.config, found)
            try:
                check_same(path.parent, expected, way_out)
            except UserError:
                # Data are opened only here: some defaults and epochs depend on them.
                options = _opened(cell, lambda line: None).options
                expected = identity(sweep.experiment, options, found)
                check_same(path.parent, expected, way_out)


def _opened(cell: Cell, log: Log) -> Task:
    """Returns the task of a cell on its data."""
    task = open_task(cell.config, log)
    options = in_steps(cell.config, task)
    return task if options == cell.config else task.make(options)


def run_cells(sweep: Sweep, cells: Sequence[Cell], *, jobs: int) -> dict[str, str]:
    """Trains cells, resuming those that were interrupted, and evaluates them on the
    test split. Returns the messages of the cells that failed, by name. A failure does
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
    """Trains a cell and evaluates it, or searches one with ranges. Returns why it
    failed, "" if it did not."""
    folder = sweep.folder / cell.name
    if tested and has_ended(folder):
        return ""
    try:
        if not cell.searched:
            from .search import search

            return search(sweep, cell, functools.partial(_compute, sweep))
        task = _opened(cell, print)
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
    """Computes cells in at most ``jobs`` processes. Where this process is asked to
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
    """Computes a cell in a process that writes to the cell's log. The last line of a
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


def read_row(sweep: Sweep, cell: Cell) -> Row:
    """Returns the figures of a cell by name, unrounded: the state of its run, the step
    and judgement of its best checkpoint, and its score on the test split. Over noise
    that is the mean over the test gammas, the score at training's, and the mean above
    it. None for those that are not finite. A run that failed has none.
    """
    folder = sweep.folder / cell.name
    state = read_status(folder).get("state", "")
    row = {"cell": cell.name, **cell.values, "state": state, "step": None}
    row |= dict.fromkeys(JUDGED)
    if state == "failed" or not (folder / "evaluation.json").exists():
        return row
    evaluation = read_object(folder / "evaluation.json")
    row["step"] = evaluation.get("best_step")
    if line := validation_of(folder, row["step"]):
        row |= dict(zip(JUDGED, cell.config.judge(line), strict=True))
    row |= _test_figures(cell, evaluation)
    for name, figure in row.items():
        if isinstance(figure, float) and not np.isfinite(figure):
            row[name] = None
    return row


def grid_table(sweep: Sweep, rows: Sequence[Row]) -> Table:
    """Returns the table of a grid, a row for all seeds of a setting."""
    ranges = [axis.name for axis in sweep.ranges]
    axes = [axis.name for axis in sweep.axes if axis.name not in ("seed", *ranges)]
    known = {"cell", "state", "step", "seed", *JUDGED, *axes, *ranges}
    scores = [name for row in rows for name in row if name not in known]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in axes), []).append(row)
    shown = []
    for values, group in groups.items():
        judged = [row for row in group if row["validation"] is not None]
        shown.append(dict(zip(axes, values, strict=True)))
        shown[-1]["runs"] = f"{len(judged)}/{len(group)}"
        shown[-1]["feasible"] = (
            f"{sum(row['feasible'] for row in judged)}/{len(judged)}"
        )
        for name in (*ranges, "validation", *scores):
            figures = [row.get(name) for row in judged]
            known_ones = [float(figure) for figure in figures if figure is not None]
            shown[-1][name] = text_of(known_ones)
    note = (
        f"Mean [smallest, largest] over seeds. validation: {sweep.config.metric}; then"
        " figures of the test split."
    )
    return as_table(f"Sweep of {sweep.experiment}", shown, note)


def write_tables(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Writes table.md, table.csv and sweep.json, and prints the table."""
    rows = [read_row(sweep, cell) for cell in cells]
    shown = as_text(grid_table(sweep, rows))
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names))
    writer.writeheader()
    writer.writerows(rows)
    over = {axis.name: list(axis.values) for axis in sweep.axes}
    record = {"experiment": sweep.experiment, "over": over, "trials": sweep.trials}
    files = {
        "table.md": f"```\n{shown}\n```\n".encode(),
        "table.csv": file.getvalue().encode(),
        RECORD: to_bytes(record | {"cells": rows}),
    }
    write_all(sweep.folder, files)
    print(f"{shown}\n\ntable: {', '.join(str(sweep.folder / name) for name in files)}")


def _test_figures(cell: Cell, evaluation: dict[str, Any]) -> dict[str, float]:
    spec = REPORTS[cell.config.task]
    if spec.metric not in evaluation:
        return {}
    name, value = spec.title, evaluation[spec.metric]
    if not isinstance(value, dict):
        return {name: np.nan if value is None else value}
    scores = {float(gamma): score for gamma, score in value.items()}
    training = float(evaluation["train_gamma"])
    tested = [float(gamma) for gamma in evaluation["test_gammas"]]
    above = [gamma for gamma in tested if gamma > training]
    parts = {name: tested, f"{name} at training": [training], f"{name} above": above}
    return {
        part: float(np.mean(floats([scores[gamma] for gamma in gammas])))
        for part, gammas in parts.items()
        if gammas
    }
