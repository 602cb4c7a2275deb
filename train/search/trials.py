"""Search over the numbers of an experiment: feasible on validation first, then the validation metric.

Trials run one after another, each an ordinary run folder; a search goes on where it was interrupted. Optuna proposes by
TPE and keeps trials in a journal of JSON lines (a snapshot of which it would pickle; that of a file takes none). Its
sampler of grids stops the study, which raises where trials are asked for and told: a grid is enqueued point by point.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from ..config.errors import StorageError, UserError
from ..config.fields import differences
from ..config.run import RunConfig
from ..evaluate import evaluate
from ..experiments import EXPERIMENTS
from ..loop import train_run
from ..report.panels import png
from ..runs import ANEW, begin, check_first, clear, identity
from ..system.files import AGAIN, check_out, locked, read_object, require_writable, write_all, writing
from ..system.terminal import as_text
from ..task import Task
from ..tasks.table import open_task
from .results import Outcome, as_csv, as_table, parallel_coordinates, ranked, read_outcome, score
from .space import Parameter, Sampler, Values, as_options, configured, grid, read_search, words

RESULTS = ("metric", "best", "trials")
# PRUNED is what Optuna calls a trial that gave no value: TPE keeps away from its like.
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)

Log = Callable[[str], None]
Check = Callable[[Any], object]


def search(
    config: RunConfig,
    *,
    experiment: str,
    over: Mapping[str, str | None],
    sampler: Sampler = "tpe",
    trials: int | None = None,
    log: Log = print,
) -> list[Outcome]:
    """Searches for the configuration that is best on the validation split; returns the outcomes, best first.

    The test split has no say in it: only the best trial of all is evaluated there, at the end. ``config`` is what all
    trials share, its ``out`` the folder of the search, which ``overwrite`` clears, its ``seed`` that of every run and
    of the sampler; ``trials`` counts those of earlier calls too, and None is 20 or the whole grid.
    """
    parameters, total = read_search(config, over, sampler=sampler, trials=trials)
    check_first(config)
    folder = check_out(config.out) if config.out else default_folder(config, experiment)
    anew, config = config.overwrite, dataclasses.replace(config, out=None, overwrite=False, config=None)
    ends = [(f"--over.{one.name} {one.text}", {one.name: value}) for one in parameters for value in one.ends]
    _check(itertools.chain(ends, _corners(parameters)), parameters, config, lambda changed: changed.check())
    task = open_task(config, log)
    _check(ends, parameters, config, task.with_config)
    space = {parameter.name: parameter.to_json() for parameter in parameters}
    description = identity(experiment, config, task.data_fingerprint()) | {"sampler": sampler, "over": space}
    if anew and (folder / "search.json").exists():
        require_writable(folder, f"--out {folder}", "pass another folder")
        clear(folder, "search.json")
    _claim(folder, description)
    with locked(folder), writing(f"--out {folder}", AGAIN):
        require_writable(folder, f"--out {folder}", AGAIN)
        log(f"{folder}: {total} trials ({sampler}) over " + ", ".join(f"{one.name} {one.text}" for one in parameters))
        one = Search(folder, experiment, task, parameters, sampler, description, log)
        outcomes = one.run(total)
        one.conclude(outcomes)
    return outcomes


def default_folder(config: RunConfig, experiment: str) -> Path:
    """runs/search/EXPERIMENT/..., the same for the same command, so that it finds an interrupted search again."""
    return Path("runs") / "search" / experiment / config.label()


@dataclasses.dataclass(frozen=True)
class Search:
    """One call of `search`: ``description`` is what search.json holds besides its results."""

    folder: Path
    experiment: str
    task: Task
    parameters: Sequence[Parameter]
    sampler: Sampler
    description: dict[str, Any]
    log: Log

    def run(self, total: int) -> list[Outcome]:
        """Goes on until ``total`` trials have ended; returns their outcomes, best first."""
        study = open_study(self.folder)
        outcomes = [self.outcome(trial.number, trial.params) for trial in _ended(study)]
        if outcomes:  # a kill may have come before the last one was written
            self.write(outcomes)
        while len(outcomes) < total:
            number, values = next_trial(study, self.parameters, sampler=self.sampler, seed=self.task.config.seed)
            self.log(f"trial {number} ({len(outcomes) + 1} of {total}): {words(values)}")
            self.train(number, values)
            outcomes.append(self.outcome(number, values))
            value = score(outcomes[-1], self.task.config)
            study.tell(number, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)
            self.write(outcomes)
        return ranked(outcomes, self.task.config)

    def train(self, number: int, values: Values) -> None:
        """Trains, or goes on with, the run of a trial; that a loss is not finite is an outcome like another."""
        folder, config = self.folder / _place(number), configured(self.task.config, self.parameters, values)
        try:
            train_run(self.task.with_config(config), folder, experiment=self.experiment, log=self.log)
        except StorageError:  # says nothing of what the trial tried
            raise
        except UserError as error:
            status = read_object(folder / "status.json") if (folder / "status.json").exists() else {}
            if status.get("state") != "failed" or str(error) not in status["messages"]:
                raise
            self.log(f"{folder}: failed: {error}")

    def outcome(self, number: int, values: Values) -> Outcome:
        """Returns the outcome of a trial."""
        config = configured(self.task.config, self.parameters, values)
        return read_outcome(number, values, self.folder / _place(number), config)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Writes search.json, the same as a table, and the picture."""
        outcomes = ranked(outcomes, self.task.config)
        best = None if outcomes[0].metric is None else str(_place(outcomes[0].trial))
        rows = [{"rank": rank, **one._asdict()} for rank, one in enumerate(outcomes, start=1)]
        results = {"metric": self.task.config.metric, "best": best, "trials": rows}
        files = {
            "search.json": (json.dumps(self.description | results, indent=2, allow_nan=False) + "\n").encode(),
            "table.csv": as_csv(outcomes).encode(),
            "parallel_coordinates.png": png(parallel_coordinates(outcomes, self.parameters, self.task.config)),
        }
        write_all(self.folder, files)

    def conclude(self, outcomes: Sequence[Outcome]) -> None:
        """Says what the search found, and evaluates the best trial."""
        best, folder = outcomes[0], self.folder
        self.log(as_text(as_table(outcomes, self.task.config)))
        self.log(f"search: {folder / 'search.json'}, {folder / 'table.csv'}, {folder / 'parallel_coordinates.png'}")
        if best.metric is None:
            raise UserError(f"no trial of {folder} could be trained; the first one says: {best.message}")
        path = folder / _place(best.trial)
        self.log(f"best: trial {best.trial} in {path}, {words(best.values)}")
        if not best.feasible:
            excess = 100 * (best.worst_excess or 0.0)
            self.log(f"no trial is feasible on the validation split: the best is over a bound by {excess:.1f}% of it")
        chosen = configured(self.task.config, self.parameters, best.values)
        options = as_options(chosen, EXPERIMENTS[self.experiment].config)
        self.log(f"again: unroll-jax run {self.experiment} {options}")
        if not (path / "evaluation.json").exists():
            evaluate(self.task.with_config(chosen), path, experiment=self.experiment, log=self.log)


def open_study(folder: Path) -> optuna.Study:
    """The study in a folder that no other process uses, new or as it was left."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder.absolute() / "journal.jsonl"
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):  # a kill left half a line, to which Optuna would append the next one
        os.truncate(path, content.rfind(b"\n") + 1)  # which a full disk does not refuse
    # What a killed process left; Optuna would wait for it.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        return optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Optuna replays the journal and raises many kinds for what does not fit
        raise UserError(f"{path} is damaged ({error!r}); search into another --out") from None


def next_trial(
    study: optuna.Study, parameters: Sequence[Parameter], *, sampler: Sampler, seed: int
) -> tuple[int, Values]:
    """Number and values of the trial that was interrupted, or of a new one.

    The values of a new one depend on the seed and on the results of the trials before it, not on how often the search
    was interrupted: the sampler is made anew, from the seed and the count of those trials.
    """
    distributions = {parameter.name: parameter.distribution for parameter in parameters}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if trial.params.keys() == distributions.keys():
            return trial.number, trial.params
        study.tell(trial.number, state=TrialState.FAIL)  # killed before its values were written
    done = _ended(study)
    if sampler == "grid":
        tried = [trial.params for trial in done]
        study.enqueue_trial(next(point for point in grid(parameters) if point not in tried), skip_if_exists=True)
    else:
        study.sampler = TPESampler(seed=int(np.random.SeedSequence((seed, len(done))).generate_state(1)[0]))
    trial = study.ask(distributions)
    return trial.number, trial.params


def _ended(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=ENDED)


def _place(number: int) -> Path:
    return Path("trials") / f"{number:04d}"


def _check(
    points: Iterable[tuple[str, Values]], parameters: Sequence[Parameter], config: RunConfig, check: Check
) -> None:
    """Refuses a search, in the words beside it, for a point that the experiment refuses."""
    for point, values in points:
        try:
            check(configured(config, parameters, values))
        except UserError as error:
            raise UserError(f"{point}: {error}") from error


def _corners(parameters: Sequence[Parameter]) -> Iterator[tuple[str, Values]]:
    """Ends of all ranges together."""
    for corner in itertools.product(*(parameter.extremes for parameter in parameters)):
        values = {parameter.name: value for parameter, value in zip(parameters, corner, strict=True)}
        yield f"a trial with {words(values)} would be refused", values


def _claim(folder: Path, description: dict[str, Any]) -> None:
    """Makes the folder this search's, or checks that it is."""
    if begin(folder, "search.json", description, what="search"):
        return
    stored = {name: value for name, value in read_object(folder / "search.json").items() if name not in RESULTS}
    if changed := differences(stored, description):
        raise UserError(f"{folder} holds another search: {'; '.join(changed)}; {ANEW}")
