"""A search: trials one after another, each an ordinary run folder; it goes on where it was interrupted."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.config import differences
from train.errors import StorageError, UserError
from train.experiments import EXPERIMENTS
from train.lock import locked
from train.metrics import write_json
from train.outputs import check_out
from train.report.files import read_object
from train.report.panels import png
from train.report.tables import as_text
from train.runs import check_first, evaluate, identity, run_one
from train.search.outcomes import (
    Outcome,
    as_csv,
    as_options,
    as_table,
    ranked,
    read_outcome,
    score,
    to_json_rows,
)
from train.search.plot import parallel_coordinates
from train.search.space import Parameter, configured, read_space, words
from train.search.study import Sampler, Trial, done, next_trial, open_study, tell
from train.storage import AGAIN, PARTIAL, require_writable, write_all, writing
from train.tuning import Tuning

__all__ = ["default_folder", "search"]

TRIALS = 20
MOST_TRIALS = 100_000  # of which Optuna's journal is read as a whole, again and again
RESULTS = ("metric", "best", "trials")

Log = Callable[[str], None]


def search(
    config: Any,
    *,
    experiment: str,
    over: Mapping[str, str | None],
    sampler: Sampler = "tpe",
    trials: int | None = None,
    log: Log = print,
) -> list[Outcome]:
    """Searches for the configuration that is best on the validation split; the test split has no say in it.

    Feasible trials come before all others and are ranked by the validation metric; the others by how far they are from
    feasible. Only the best trial of all is evaluated on the test split, at the end.

    Args:
      config: what all trials share; ``out`` is the folder of the search, ``seed`` that of every run and of the sampler.
      experiment: its name.
      over: range or choices of each parameter, by its name on the command line.
      sampler: Optuna's TPE, or every combination of the choices.
      trials: how many in all, those of earlier calls among them; None is 20, or the whole grid.
      log: where messages go.

    Returns:
      The outcomes, best first.

    Raises:
      UserError: whatever the user can mend, in one line.
    """
    kind = EXPERIMENTS[experiment].kind
    check_first(kind, config)
    folder = check_out(config.out) if config.out else default_folder(config, experiment)
    config = dataclasses.replace(config, out=None)
    if len(kind.variants(config)) > 1:
        raise UserError("a search trains one variant a trial, and this is several; pass --method constrained or erm")
    parameters = read_space(over, kind.tuning.tunables(config), grid=sampler == "grid")
    total = _count(trials, parameters, sampler)
    _check_ends(parameters, config, kind.check)
    _check_corners(parameters, config, kind.check)
    data = kind.load(config, log)
    _check_ends(parameters, config, lambda changed: kind.recipe(changed, data))
    space = {parameter.name: parameter.to_json() for parameter in parameters}
    said = identity(experiment, config, data) | {"sampler": sampler, "over": space}
    _claim(folder, said)
    with locked(folder), writing(f"--out {folder}", AGAIN):
        require_writable(folder, f"--out {folder}", AGAIN)
        log(f"{folder}: {total} trials ({sampler}) over " + ", ".join(f"{one.name} {one.text}" for one in parameters))
        outcomes = _Search(folder, experiment, config, parameters, said, log).run(sampler, total)
        _conclude(folder, experiment, config, parameters, outcomes, log)
    return outcomes


def default_folder(config: Any, experiment: str) -> Path:
    """runs/search/EXPERIMENT/..., the same for the same command, so that it finds an interrupted search again."""
    return Path("runs") / "search" / experiment / EXPERIMENTS[experiment].kind.label(config)


class _Search:
    """The moving parts of one call of `search`."""

    def __init__(
        self,
        folder: Path,
        experiment: str,
        config: Any,
        parameters: Sequence[Parameter],
        said: dict[str, Any],
        log: Log,
    ):
        self._folder, self._experiment, self._log = folder, experiment, log
        self._config, self._parameters, self._said = config, parameters, said
        self._tuning = EXPERIMENTS[experiment].kind.tuning

    def run(self, sampler: Sampler, total: int) -> list[Outcome]:
        study = open_study(self._folder)
        outcomes = [self._outcome(trial) for trial in done(study)]
        if outcomes:  # a kill may have come before the last one was written
            self._write(ranked(outcomes, self._tuning))
        while len(outcomes) < total:
            trial = next_trial(study, self._parameters, sampler=sampler, seed=self._config.seed)
            self._log(f"trial {trial.number} ({len(outcomes) + 1} of {total}): {words(trial.values)}")
            self._train(trial)
            outcomes.append(self._outcome(trial))
            judgement = outcomes[-1].judgement
            tell(study, trial, None if judgement is None else score(judgement, self._tuning))
            self._write(ranked(outcomes, self._tuning))
        return ranked(outcomes, self._tuning)

    def _train(self, trial: Trial) -> None:
        """Trains, or goes on with, the run of a trial; that a loss is not finite is an outcome like another."""
        folder = _trial_folder(self._folder, trial.number)
        config = configured(self._config, self._parameters, trial.values)
        try:
            run_one(config, folder, experiment=self._experiment, evaluated=False, log=self._log)
        except StorageError:  # says nothing of what the trial tried
            raise
        except UserError as error:
            status = read_object(folder / "status.json") if (folder / "status.json").exists() else {}
            if status.get("state") != "failed" or str(error) not in status["messages"]:
                raise
            self._log(f"{folder}: failed: {error}")

    def _outcome(self, trial: Trial) -> Outcome:
        config = configured(self._config, self._parameters, trial.values)
        return read_outcome(trial, _trial_folder(self._folder, trial.number), config, self._tuning)

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        best = outcomes[0] if outcomes[0].judgement else None
        results = {
            "metric": self._tuning.metric,
            "best": best and str(_trial_folder(Path(), best.number)),
            "trials": to_json_rows(outcomes),
        }
        said = json.dumps(self._said | results, indent=2, allow_nan=False) + "\n"
        files = {
            "search.json": said.encode(),
            "table.csv": as_csv(outcomes).encode(),
            "parallel_coordinates.png": _picture(outcomes, self._parameters, self._tuning),
        }
        write_all(self._folder, files)


def _picture(outcomes: Sequence[Outcome], parameters: Sequence[Parameter], tuning: Tuning) -> bytes:
    return png(parallel_coordinates(outcomes, parameters, tuning))


def _conclude(
    folder: Path, experiment: str, config: Any, parameters: Sequence[Parameter], outcomes: Sequence[Outcome], log: Log
) -> None:
    """Says what the search found, and evaluates the best trial."""
    best = outcomes[0]
    log(as_text(as_table(outcomes, EXPERIMENTS[experiment].kind.tuning)))
    log(f"search: {folder / 'search.json'}, {folder / 'table.csv'}, {folder / 'parallel_coordinates.png'}")
    if best.judgement is None:
        raise UserError(f"no trial of {folder} could be trained; the first one says: {outcomes[0].message}")
    path = _trial_folder(folder, best.number)
    log(f"best: trial {best.number} in {path}, {words(best.values)}")
    if not best.judgement.feasible:
        excess = 100 * (best.judgement.excess or 0.0)
        log(f"no trial is feasible on the validation split: the best is over a bound by {excess:.1f}% of it")
    chosen = configured(config, parameters, best.values)
    log(f"again: python -m train run {experiment} {as_options(chosen, EXPERIMENTS[experiment].config)}")
    if not (path / "evaluation.json").exists():
        evaluate(path, mesh=config.mesh, log=log)


def _trial_folder(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:04d}"


def _count(trials: int | None, parameters: Sequence[Parameter], sampler: Sampler) -> int:
    if trials is not None and not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"--trials must be from 1 to {MOST_TRIALS}, got {trials}")
    if sampler == "tpe":
        return TRIALS if trials is None else trials
    points = math.prod(len(parameter.choices) for parameter in parameters)
    if points > MOST_TRIALS:
        raise UserError(f"--sampler grid has {points} combinations, of which {MOST_TRIALS} may be; give fewer values")
    return points if trials is None else min(trials, points)


def _check_ends(parameters: Sequence[Parameter], config: Any, check: Callable[[Any], object]) -> None:
    """Refuses a range whose ends the experiment refuses."""
    for parameter in parameters:
        for value in parameter.ends:
            try:
                check(configured(config, [parameter], {parameter.name: value}))
            except UserError as error:
                raise UserError(f"--over.{parameter.name} {parameter.text}: {error}") from error


def _check_corners(parameters: Sequence[Parameter], config: Any, check: Callable[[Any], object]) -> None:
    """Refuses ranges whose ends the experiment refuses together."""
    for corner in itertools.product(*map(_extremes, parameters)):
        values = {parameter.name: value for parameter, value in zip(parameters, corner, strict=True)}
        try:
            check(configured(config, parameters, values))
        except UserError as error:
            raise UserError(f"a trial with {words(values)} would be refused: {error}") from error


def _extremes(parameter: Parameter) -> tuple[float | None, ...]:
    numbers = [value for value in parameter.ends if value is not None]
    found = (min(numbers), max(numbers)) if numbers else ()
    return found if len(numbers) == len(parameter.ends) else (*found, None)


def _claim(folder: Path, said: dict[str, Any]) -> None:
    """Makes the folder this search's, or checks that it is."""
    path = folder / "search.json"
    try:
        if path.exists():
            found = {name: value for name, value in read_object(path).items() if name not in RESULTS}
            changed = differences(found, said)
            if changed:
                raise UserError(f"{folder} holds another search: {'; '.join(changed)}; pass another --out")
            return
        folder.mkdir(parents=True, exist_ok=True)
        if any(entry.suffix != PARTIAL for entry in folder.iterdir()):
            raise UserError(
                f"--out {folder} holds files but no search.json, so it is no search; pass an empty or a new folder"
            )
        write_json(path, said)
    except OSError as error:
        raise StorageError(f"cannot write to --out {folder} ({error.strerror}); pass another folder") from error
