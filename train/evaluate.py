"""The best checkpoint of a run, and its evaluation on the test split."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoints, Stored, way_back
from .config.errors import UserError
from .objective import INFEASIBLE
from .registry import PASS_IT, is_own
from .runs import check_same, identity, require_checkpoints, require_place
from .step import state_like
from .system.distributed import is_first
from .system.files import AGAIN, write_json, writing
from .task import VALIDATED, Log, Row, Task, json_value


def best_checkpoint(
    task: Task, folder: Path, *, experiment: str, log: Log = print
) -> Stored:
    """Returns the best checkpoint, on the mesh of the task."""
    mend = (
        f"{PASS_IT}, on its data"
        if is_own(task.config)
        else "put its data and config.json back"
    )
    check_same(folder, identity(experiment, task.config, task.data_fingerprint()), mend)
    with Checkpoints(
        folder / "checkpoints", read_only=True, mend=way_back(task.config), log=log
    ) as checkpoints:
        return checkpoints.best(state_like(task))


def evaluate(
    task: Task,
    folder: Path,
    *,
    experiment: str,
    options: Mapping[str, Any] | None = None,
    on: Task | None = None,
    place: str = "evaluation.json",
    log: Log = print,
) -> Row:
    """Evaluates the best checkpoint of a run on its test split and writes the file
    ``place`` in its folder. ``options`` by field override the run's, which config.json
    keeps; ``on`` is the task on other data, None for the run's.
    """
    judge = _by_options(on or task, options or {})
    require_checkpoints(folder, experiment)
    require_place(folder)
    step, state, notes = best_checkpoint(task, folder, experiment=experiment, log=log)
    validated = notes["score"] > INFEASIBLE
    least = "" if validated else ", the least infeasible one on the validation split"
    log(f"{folder}: evaluating the checkpoint of step {step}{least}")
    with writing(f"run folder {folder}", AGAIN):
        figures, losses = judge.evaluate(state.params, folder)
        layers = {}
        if losses is not None:
            layers = task.training.objective.report(losses, state.opt_state)
            log("\n".join(layers.get("constraint_report", [])))
        tested = (
            {}
            if on is None
            else {"tested_on": dataclasses.asdict(vars(on.config)["data"])}
        )
        tested |= (
            {VALIDATED: validated} if getattr(task.config, "enforces", False) else {}
        )
        about = {
            **tested,
            "experiment": experiment,
            "best_step": step,
            "train_seconds": notes["train_seconds"],
        }
        evaluation = json_value(
            {**figures, **layers, **about}, "the figures of evaluate"
        )
        if is_first():
            write_json(folder / place, evaluation)
    log(
        f"{folder}{'' if on is None else f', {place}'}: {task.summary_line(evaluation)}"
    )
    return evaluation


def _by_options(task: Task, options: Mapping[str, Any]) -> Task:
    """Returns the task with other options of its evaluation; options of other tasks
    are a `UserError`."""
    for name in options:
        if not hasattr(task.config, name):
            typed = name.replace("_", "-")
            raise UserError(
                f"--{typed} is no option of {task.config.task}, which this run is of;"
                " leave it out"
            )
    if not options:
        return task
    config = dataclasses.replace(task.config, **options)
    config.check()
    return task.with_config(config)
