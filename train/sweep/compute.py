"""Computes the cells of a sweep, here or in processes, and its trials, which Optuna proposes."""

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

from ..config.errors import Interrupted, StorageError, UserError, one_line, require_extra
from ..config.fields import value_of
from ..evaluate import evaluate
from ..loop import train_run
from ..registry import open_task, prepare_data
from ..runs import FINISHED, begin, check_first, check_same, identity, read_config, read_status
from ..system.files import AGAIN, locked, read_object, require_writable, writing
from ..system.machine import stopping_at_once
from .axes import Cell, Sweep, shown_value
from .results import RECORD, Result, grid_tables, read_result, score, trial_tables, write_tables

GRACE_SECONDS = 120.0  # a child that is asked to end finishes its step, or XLA's compilation, and saves
MEMORY_SHARE = 0.9  # share of a GPU's memory that the jobs on it divide


def run(sweep: Sweep, cells: Sequence[Cell], *, trials: int | None, jobs: int) -> int:
    """Computes the cells, or trials, and writes their tables; returns 1 if some failed, 0 if none did."""
    folder = sweep.folder
    check_first(cells[0].config)
    begin(folder, RECORD, {"experiment": sweep.experiment}, what="sweep")
    with locked(folder), writing(f"--out {folder}", AGAIN):
        require_writable(folder, f"--out {folder}", AGAIN)
        if trials is not None:
            results = run_trials(sweep, trials, jobs=jobs)
            write_tables(sweep, results, trial_tables(sweep, results))
            return 1 if results[0].validation is None else 0
        check_folders(sweep, cells)
        left = [cell for cell in cells if not has_ended(folder / cell.name)]
        print(f"{folder}: {len(cells)} cells, {len(left)} left")
        failures = run_cells(sweep, left, jobs=jobs)
        results = [read_result(sweep, cell) for cell in cells]
        write_tables(sweep, results, grid_tables(sweep, results))
    for name, message in failures.items():
        print(f"failed: {name}: {message}")
    return 1 if failures else 0


def has_ended(folder: Path, *, tested: bool = True) -> bool:
    """Returns whether a run has ended, and with ``tested`` was evaluated on the test split."""
    return read_status(folder).get("state") == FINISHED and (not tested or (folder / "evaluation.json").exists())


def check_folders(sweep: Sweep, cells: Iterable[Cell]) -> None:
    """Raises UserError if the folder of a cell holds a run with other options, before anything is computed."""
    for cell in cells:
        if (path := sweep.folder / cell.name / "config.json").exists():
            expected = identity(sweep.experiment, cell.config, read_object(path).get("found", {}))
            check_same(path.parent, expected, "pass another --out, or move that folder away")


def run_cells(sweep: Sweep, cells: Sequence[Cell], *, jobs: int, tested: bool = True) -> dict[str, str]:
    """Trains cells, resuming those that were interrupted, and with ``tested`` evaluates them on the test split. Returns
    the messages of the cells that failed, by name; a failure does not end the others."""
    messages = dict[str, str]()

    def ended(cell: Cell, message: str) -> None:
        messages[cell.name] = message
        print(f"[{len(messages)} of {len(cells)}] {cell.name}: {message or 'finished'}")

    if jobs > 1 and len(cells) > 1:
        prepare_data(vars(cells[0].config)["data"], print)  # once, ahead of the processes that read them
        _run_children(sweep, cells, min(jobs, len(cells)), tested, ended)
    else:
        for cell in cells:
            ended(cell, _compute(sweep, cell, tested=tested))
    return {name: message for name, message in messages.items() if message}


def run_trials(sweep: Sweep, count: int, *, jobs: int) -> list[Result]:
    """Trains trials until there are ``count``, earlier calls' included; evaluates the best on the test split. Trials
    run in groups of ``jobs``; values depend on the seed, the trial's number and earlier groups, not on interruptions. A
    failed trial is a result, and tried again by the next call. The best result comes first."""
    require_extra("search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names, cells = [f"trial-{number:04d}" for number in range(count)], dict[str, Cell]()
    for name in (name for name in names if (sweep.folder / name / "config.json").exists()):
        config = read_config(sweep.folder / name)[1]
        cells[name] = sweep.cell({a.name: shown_value(value_of(config, a.field)) for a in sweep.axes}, name)
    check_folders(sweep, cells.values())
    begun = [cell for cell in cells.values() if not has_ended(sweep.folder / cell.name, tested=False)]
    run_cells(sweep, begun, jobs=jobs, tested=False)
    missing = [name for name in names if name not in cells]
    for first in range(0, len(missing), jobs):
        results = [read_result(sweep, cells[name]) for name in names if name in cells]
        new = {name: _proposed(optuna, sweep, results, name) for name in missing[first : first + jobs]}
        run_cells(sweep, list(new.values()), jobs=jobs, tested=False)
        cells |= new
    results = [read_result(sweep, cells[name]) for name in names]
    results.sort(key=lambda result: -score(result.validation, sweep.config))
    best, path = results[0], sweep.folder / results[0].cell.name
    if best.validation is None:
        return results
    if not best.validation.feasible:
        print(f"no trial is feasible on validation data: the best is {best.validation.excess or 0.0:.1%} over a bound")
    print(f"best: {path}; again: unroll-jax run {sweep.experiment} --config {path / 'config.json'}")
    if not has_ended(path):  # only the best trial is tested
        run_cells(sweep, [best.cell], jobs=1)
    return [read_result(sweep, best.cell), *results[1:]]


def _compute(sweep: Sweep, cell: Cell, *, tested: bool) -> str:
    """Trains one cell and, with ``tested``, evaluates it; returns why it failed, "" if it did not."""
    folder = sweep.folder / cell.name
    try:
        task = open_task(cell.config, print)
        train_run(task, folder, experiment=sweep.experiment, log=print)
        if tested and not (folder / "evaluation.json").exists():
            evaluate(task, folder, experiment=sweep.experiment, log=print)
    except StorageError:  # not due to the cell
        raise
    except UserError as error:
        return one_line(error)
    except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:  # such as too little memory on a device
        traceback.print_exc(file=sys.stdout)
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def _run_children(
    sweep: Sweep, cells: Sequence[Cell], jobs: int, tested: bool, ended: Callable[[Cell, str], None]
) -> None:
    """Computes cells in at most ``jobs`` processes; where this process is asked to end, they save and end too."""
    context, waiting = multiprocessing.get_context("spawn"), list(cells)
    children = dict[int, tuple[Cell, BaseProcess]]()  # by slot
    try:
        while waiting or children:
            for slot in sorted(set(range(jobs)) - set(children))[: len(waiting)]:
                cell = waiting.pop(0)
                process = context.Process(target=_child, args=(sweep, cell, slot, jobs, tested), daemon=True)
                process.start()
                children[slot] = cell, process
            multiprocessing.connection.wait([process.sentinel for _, process in children.values()])
            for slot, (cell, process) in list(children.items()):
                if not process.is_alive():
                    process.join()
                    del children[slot]
                    lines = (sweep.folder / f"{cell.name}.log").read_text(errors="replace").split("\n")
                    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
                    known = {0: "", 1: last}  # why a child failed is its last line
                    ended(
                        cell, known.get(process.exitcode or 0, f"exit code {process.exitcode}; it wrote last: {last}")
                    )
    finally:
        for _, process in children.values():
            process.terminate()
        for _, process in children.values():
            process.join(GRACE_SECONDS)
            process.kill()


def _child(sweep: Sweep, cell: Cell, slot: int, jobs: int, tested: bool) -> None:
    """Computes a cell in a process that writes to the cell's log; the last line of a failure says why."""
    with (sweep.folder / f"{cell.name}.log").open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if hasattr(os, "sched_setaffinity"):  # a share of the cores, and one GPU or a part of its memory
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[slot::jobs] or [cores[slot % len(cores)]])
    all_gpus = ",".join(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))
    if gpus := [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", all_gpus).split(",") if part.strip()]:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{MEMORY_SHARE / -(-jobs // len(gpus)):.3f}")
    try:
        with stopping_at_once():
            message = _compute(sweep, cell, tested=tested)
    except (Interrupted, StorageError) as stop:
        message = " ".join(str(stop).split())
    if message:
        print(message, flush=True)
        sys.exit(1)


def _proposed(optuna: Any, sweep: Sweep, results: Sequence[Result], name: str) -> Cell:
    """Returns a new trial by a study of the results so far. Failed ones are pruned there: TPE avoids their like. The
    sampler's seed depends on the seed of the runs and the number of the trial."""
    seed = int(np.random.SeedSequence((sweep.config.seed, int(name[-4:]))).generate_state(1)[0])
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    kinds, state = {}, optuna.trial.TrialState
    for axis in sweep.axes:
        is_int = isinstance(value_of(sweep.config, axis.field), int)
        kind, read = ("IntDistribution", int) if is_int else ("FloatDistribution", float)
        ranged = axis.is_range and getattr(optuna.distributions, kind)(*map(read, axis.values), log=axis.log)
        kinds[axis.name] = ranged or optuna.distributions.CategoricalDistribution(list(axis.values))
    for cell, _, _, validation, _ in results:
        params = {a.name: float(cell.values[a.name]) if a.is_range else cell.values[a.name] for a in sweep.axes}
        figures = {"state": state.PRUNED} if validation is None else {"value": score(validation, sweep.config)}
        try:
            study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, **figures))
        except ValueError as error:
            place = sweep.folder / cell.name
            raise UserError(f"{place} is outside of the ranges of this sweep ({error}); pass another --out") from error
    return sweep.cell({axis: str(value) for axis, value in study.ask(kinds).params.items()}, name)
