"""The best checkpoint of a run, and its evaluation on the test split."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config.errors import UserError
from .core.checkpoint import Checkpoints, Stored, way_back
from .core.evaluate import evaluate
from .core.numbers import json_value
from .core.objective import INFEASIBLE
from .core.step import state_like
from .core.task import VALIDATED, Log, Plan, Row, Task
from .registry import PASS_IT, is_own
from .runs import check_same, identity, require_checkpoints, require_place
from .system.distributed import is_first
from .system.files import AGAIN, write_json, writing


def best_checkpoint(
    task: Task, plan: Plan, folder: Path, *, experiment: str, log: Log = print
) -> Stored:
    """Returns the best checkpoint, on the mesh of the plan."""
    mend = "put its data and config.json back"
    if is_own(task.options):
        mend = f"{PASS_IT}, on its data"
    check_same(folder, identity(experiment, task.options, task.fingerprint()), mend)
    with Checkpoints(
        folder / "checkpoints", read_only=True, mend=way_back(task.options), log=log
    ) as checkpoints:
        return checkpoints.best(state_like(task, plan))


def evaluate_run(
    task: Task,
    plan: Plan,
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
    judged = _by_options(on or task, options or {})
    require_checkpoints(folder, experiment)
    require_place(folder)
    step, state, notes = best_checkpoint(
        task, plan, folder, experiment=experiment, log=log
    )
    validated = notes["score"] > INFEASIBLE
    least = "" if validated else ", the least infeasible one on the validation split"
    log(f"{folder}: evaluating the checkpoint of step {step}{least}")
    with writing(f"run folder {folder}", AGAIN):
        figures = evaluate(judged, plan, state.params, state.opt_state, folder)
        if "constraint_report" in figures:
            log("\n".join(figures["constraint_report"]))
        about: Row = {}
        if on is not None:
            about["tested_on"] = dataclasses.asdict(on.options.data)
        if plan.enforced:
            about[VALIDATED] = validated
        about |= {
            "experiment": experiment,
            "best_step": step,
            "train_seconds": notes["train_seconds"],
        }
        evaluation = json_value({**figures, **about}, "the figures of evaluate")
        if is_first():
            write_json(folder / place, evaluation)
    shown = folder if on is None else f"{folder}, {place}"
    log(f"{shown}: {task.summary(evaluation)}")
    return evaluation


def _by_options(task: Task, options: Mapping[str, Any]) -> Task:
    """Returns the task with other options of its evaluation; options of other tasks
    are a `UserError`."""
    for name in options:
        if not hasattr(task.options, name):
            typed = name.replace("_", "-")
            raise UserError(
                f"--{typed} is no option of {task.options.task}, which this run is of;"
                " leave it out"
            )
    if not options:
        return task
    config = dataclasses.replace(task.options, **options)
    config.check()
    return task.make(config)
