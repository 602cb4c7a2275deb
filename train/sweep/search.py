"""Bayesian search in each cell of a sweep: a number of trials, of which the best on
validation is tested. Optuna keeps them in a journal in the sweep's folder. Several
processes and machines that share the folder share the trials."""

import json
from collections.abc import Callable
from typing import Any

import filelock
import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ..config.errors import UserError
from ..config.options import differences
from ..core.folder import identity
from ..core.metrics import read_metrics
from ..report.records import REPORTS
from .axes import Axis, Cell, Sweep, read_value

JOURNAL = "search.log"
RANDOM_FIRST = 2  # trials of a cell before the model of Parzen estimators decides
LOG_RATIO = 10.0  # ends of a range so far apart are searched on a logarithmic scale
INFEASIBLE = 1e6  # cost of a trial that meets no bounds, by far above any other


def search(sweep: Sweep, cell: Cell, train: Callable[[Cell, bool], str]) -> str:
    """Trains the trials of a cell that no other process has. Once all have ended, tests
    the best. Returns why it failed, "" if it did not.

    Args:
      sweep: has the ranges, and the number of trials.
      cell: the values of all other axes.
      train: trains a cell, and tests it if the second argument is true. Returns why it
        failed, or "".
    """
    study = _study(sweep, cell)
    message = ""
    while planned := _plan(sweep, cell, study):
        trial, lock = planned
        with lock:
            failed = train(trial_cell(sweep, cell, trial), False)
            if failed:
                message = failed
                study.tell(trial.number, state=TrialState.FAIL)
            else:
                study.tell(trial.number, _cost(sweep, trial_cell(sweep, cell, trial)))
    if study.get_trials(states=(TrialState.RUNNING,)):
        print(f"{cell.name}: other processes have the last trials; the last one tests")
        return ""
    best = best_cell(sweep, cell)
    return train(best, True) if best.searched else f"every trial failed: {message}"


def best_cell(sweep: Sweep, cell: Cell) -> Cell:
    """Returns the best trial of a cell, or the cell itself before one has ended."""
    study = _study(sweep, cell)
    if not study.get_trials(states=(TrialState.COMPLETE,)):
        return cell
    return trial_cell(sweep, cell, study.best_trial)


def trial_cell(sweep: Sweep, cell: Cell, trial: Any) -> Cell:
    """Returns the run of a trial."""
    run = cell._replace(name=f"{cell.name}/trial-{trial.number}", searched=True)
    for axis in sweep.ranges:
        number = trial.params[axis.name]
        text = f"{number:.4g}" if isinstance(number, float) else str(number)
        value = read_value(axis.name, axis.field, text, sweep.config)
        run = run.at(axis, text, value)
    return run.checked()


def _study(sweep: Sweep, cell: Cell) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(sweep.folder / JOURNAL)))
    study = optuna.create_study(
        study_name=cell.name, storage=storage, load_if_exists=True
    )
    options = identity(sweep.experiment, cell.config, {})
    options["ranges"] = {axis.name: list(axis.values) for axis in sweep.ranges}
    options = json.loads(json.dumps(options))
    known = study.user_attrs.get("options")
    if known is None:
        study.set_user_attr("options", options)
    elif changed := differences(known, options):
        raise UserError(
            f"{sweep.folder} has trials of another search: {'; '.join(changed)}; pass"
            " another --out"
        )
    return study


def _plan(sweep: Sweep, cell: Cell, study: optuna.Study) -> tuple[Any, Any] | None:
    """Returns a trial that was interrupted, or a new one, and its lock, or None if
    there is none left."""

    def lock_of(number: int) -> filelock.BaseFileLock:
        return filelock.FileLock(
            sweep.folder / f".{cell.name}-{number}.lock", timeout=0
        )

    with filelock.FileLock(sweep.folder / ".search.lock"):
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            lock = lock_of(trial.number)
            try:
                lock.acquire()
            except filelock.Timeout:
                continue  # another process trains it
            if len(trial.params) == len(sweep.ranges):
                return trial, lock
            # killed while it was planned
            study.tell(trial.number, state=TrialState.FAIL)
        planned = [one for one in study.trials if len(one.params) == len(sweep.ranges)]
        if len(planned) >= sweep.trials:
            return None
        trial = study.ask()
        # by its number: a search that was interrupted goes on with the same values
        study.sampler = optuna.samplers.TPESampler(
            seed=trial.number, n_startup_trials=RANDOM_FIRST
        )
        for axis in sweep.ranges:
            _suggest(trial, axis)
        lock = lock_of(trial.number)
        lock.acquire()
        return trial, lock


def _suggest(trial: optuna.Trial, axis: Axis) -> None:
    low, high = (np.ravel(value)[0].item() for value in axis.values.values())
    if isinstance(low, int):
        trial.suggest_int(axis.name, low, high)
    else:
        is_log = 0.0 < low <= high / LOG_RATIO
        trial.suggest_float(axis.name, low, high, log=is_log)


def _cost(sweep: Sweep, cell: Cell) -> float:
    """Returns the least cost of a validation, by which checkpoints are chosen too."""
    sign = 1.0 if REPORTS[cell.config.task].layered else -1.0  # else a share of hits
    costs = []
    for row in read_metrics(sweep.folder / cell.name / "metrics.jsonl"):
        if row["kind"] == "validation":
            feasible, excess, metric = cell.config.judge(row)
            costs.append(sign * metric if feasible else INFEASIBLE + (excess or 0.0))
    return min(costs)
