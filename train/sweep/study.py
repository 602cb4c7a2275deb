"""Trials of a sweep, proposed by Optuna; the run folders are the only record of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..config.errors import UserError, require_extra
from ..config.fields import value_of
from ..runs import read_config
from .axes import Axis, Cell, Sweep, shown_value
from .compute import check_folders, has_ended, run_cells
from .results import Result, read_result, score

Log = Callable[[str], None]


def run_trials(sweep: Sweep, count: int, *, jobs: int, log: Log = print) -> list[Result]:
    """Trains trials, those of earlier calls included, until there are ``count``; evaluates the best on the test split.

    Trials run in groups of ``jobs``; the values of a trial depend on the seed, its number and the results of the
    groups before it, not on interruptions. A trial that fails is a result, and tried again by the next call.

    Returns:
      The results, the best first.
    """
    optuna = _optuna()
    recorded = {number: _recorded(sweep, number) for number in range(count)}
    cells = {number: cell for number, cell in recorded.items() if cell is not None}
    check_folders(sweep, list(cells.values()))
    begun = [cell for cell in cells.values() if not has_ended(sweep.folder / cell.name, tested=False)]
    run_cells(sweep, begun, jobs=jobs, tested=False, log=log)
    missing = [number for number in range(count) if number not in cells]
    for first in range(0, len(missing), jobs):
        study = _study(optuna, sweep, [read_result(sweep, cells[number]) for number in sorted(cells)])
        new = {number: _proposed(optuna, study, sweep, number) for number in missing[first : first + jobs]}
        run_cells(sweep, list(new.values()), jobs=jobs, tested=False, log=log)
        cells |= new
    results = [read_result(sweep, cells[number]) for number in sorted(cells)]
    results.sort(key=lambda result: -score(result.validation, sweep.config))
    return [_evaluated(sweep, results[0], log), *results[1:]]


def _evaluated(sweep: Sweep, best: Result, log: Log) -> Result:
    """Evaluates the best trial, and no other, on the test split."""
    folder = sweep.folder / best.cell.name
    if best.validation is None:
        return best
    if not best.validation.feasible:
        excess = best.validation.excess or 0.0
        log(f"no trial is feasible on the validation split: the best exceeds a bound by {excess:.1%} of it")
    log(f"best: {folder}; again: unroll-jax run {sweep.experiment} --config {folder / 'config.json'}")
    if not has_ended(folder):
        run_cells(sweep, [best.cell], jobs=1, log=log)
    return read_result(sweep, best.cell)


def _optuna() -> Any:
    require_extra("search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _recorded(sweep: Sweep, number: int) -> Cell | None:
    """Returns the trial of a number with the values of its run folder; None if there is none."""
    folder = sweep.folder / _name(number)
    if not (folder / "config.json").exists():
        return None
    _, config = read_config(folder)
    values = {axis.name: shown_value(value_of(config, axis.field)) for axis in sweep.axes}
    return sweep.cell(values, _name(number))


def _name(number: int) -> str:
    return f"trial-{number:04d}"


def _study(optuna: Any, sweep: Sweep, results: Sequence[Result]) -> Any:
    """Returns a study that holds the trials so far; those that failed are pruned, so that TPE avoids their like."""
    study = optuna.create_study(direction="maximize")
    distributions = {axis.name: _distribution(optuna, sweep, axis) for axis in sweep.axes}
    state = optuna.trial.TrialState
    for result in results:
        values = result.cell.values
        params = {axis.name: float(values[axis.name]) if axis.bounds else values[axis.name] for axis in sweep.axes}
        figures = {"state": state.PRUNED}
        if result.validation is not None:
            figures = {"state": state.COMPLETE, "value": score(result.validation, sweep.config)}
        try:
            trial = optuna.trial.create_trial(params=params, distributions=distributions, **figures)
        except ValueError as error:
            place = sweep.folder / result.cell.name
            raise UserError(f"{place} is outside of the ranges of this sweep ({error}); pass another --out") from error
        study.add_trial(trial)
    return study


def _proposed(optuna: Any, study: Any, sweep: Sweep, number: int) -> Cell:
    """Returns a new trial; the sampler's seed depends on the seed of the runs and the number of the trial."""
    seed = int(np.random.SeedSequence((sweep.config.seed, number)).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=seed)
    trial = study.ask({axis.name: _distribution(optuna, sweep, axis) for axis in sweep.axes})
    return sweep.cell({name: str(value) for name, value in trial.params.items()}, _name(number))


def _distribution(optuna: Any, sweep: Sweep, axis: Axis) -> Any:
    if axis.bounds is None:
        return optuna.distributions.CategoricalDistribution(axis.texts)
    if isinstance(value_of(sweep.config, axis.field), int):
        return optuna.distributions.IntDistribution(*map(int, axis.bounds), log=axis.log)
    return optuna.distributions.FloatDistribution(*axis.bounds, log=axis.log)
