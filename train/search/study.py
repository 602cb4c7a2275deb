"""Optuna's study of a search, in a journal of JSON lines: which values to try next, and what came of those tried.

The journal of a file takes no snapshots, which are the only thing that Optuna would pickle.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from train.errors import UserError
from train.search.space import Parameter, Values, distributions, grid

__all__ = ["Sampler", "Trial", "done", "next_trial", "open_study", "tell"]

Sampler = Literal["tpe", "grid"]
# PRUNED is what Optuna calls a trial that gave no value: TPE keeps away from its like.
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class Trial(NamedTuple):
    """Values to try; the number names the run folder."""

    number: int
    values: Values


def open_study(folder: Path) -> optuna.Study:
    """The study in a folder that no other process uses, new or as it was left.

    Raises:
      UserError: if its journal is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder.absolute() / "journal.jsonl"
    _cut_half_a_line(path)
    # What a killed process left; Optuna would wait for it.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        return optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Optuna replays the journal and raises many kinds for what does not fit
        raise UserError(f"{path} is damaged ({error!r}); search into another --out") from None


def next_trial(study: optuna.Study, parameters: Sequence[Parameter], *, sampler: Sampler, seed: int) -> Trial:
    """The trial that was interrupted, or a new one.

    The values of a new one depend on the seed and on what came of the trials before it, not on how often the search
    was interrupted: the sampler is made anew, from the seed and the count of those trials.
    """
    names = {parameter.name for parameter in parameters}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if set(trial.params) == names:
            return Trial(trial.number, trial.params)
        study.tell(trial.number, state=TrialState.FAIL)  # killed before its values were written
    ended = done(study)
    if sampler == "grid":
        tried = [trial.values for trial in ended]
        study.enqueue_trial(next(point for point in grid(parameters) if point not in tried), skip_if_exists=True)
    else:
        study.sampler = TPESampler(seed=int(np.random.SeedSequence((seed, len(ended))).generate_state(1)[0]))
    trial = study.ask(distributions(parameters))
    return Trial(trial.number, trial.params)


def tell(study: optuna.Study, trial: Trial, score: float | None) -> None:
    """Ends a trial; the highest score is the best, None is that of a trial that failed."""
    study.tell(trial.number, score, state=TrialState.PRUNED if score is None else TrialState.COMPLETE)


def done(study: optuna.Study) -> list[Trial]:
    """The trials that have ended, in their order."""
    return [Trial(trial.number, trial.params) for trial in study.get_trials(deepcopy=False, states=ENDED)]


def _cut_half_a_line(path: Path) -> None:
    """Drops what a kill left of the last line: Optuna would append the next one to it."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)  # which a full disk does not refuse
