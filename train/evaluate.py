"""The best checkpoint of a run, and its evaluation on the test split."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config.errors import UserError
from .core.checkpoint import Checkpoints, Stored, best_step
from .core.evaluate import evaluate
from .core.folder import check_same, identity, require_checkpoints, require_place
from .core.numbers import json_value
from .core.objective import INFEASIBLE
from .core.step import evaluated_params, state_like
from .core.task import VALIDATED, Log, Plan, Row, Task
from .system.distributed import is_first
from .system.files import read_object, write_json


def best_checkpoint(
    task: Task, plan: Plan, folder: Path, *, experiment: str, log: Log = print
) -> Stored:
    """Returns the best checkpoint, on the mesh of the plan."""
    same = identity(experiment, task.options, task.fingerprint())
    way_out = "pass the task and data, or put back the config.json, of its training"
    check_same(folder, same, way_out)
    with Checkpoints(folder / "checkpoints", read_only=True, log=log) as checkpoints:
        return checkpoints.best(state_like(task, plan))


def evaluated_step(folder: Path, place: str = "evaluation.json") -> int | None:
    """Returns the step of the checkpoint that an evaluation of a run is of; None
    without one that can be read."""
    try:
        return read_object(folder / place).get("best_step")
    except UserError:
        return None


def is_evaluated(folder: Path) -> bool:
    """Returns whether evaluation.json of a run is of its best checkpoint, where that is
    still there. One that was made during training is of an earlier one."""
    step = evaluated_step(folder)
    best = best_step(folder / "checkpoints")
    return step is not None and best in (None, step)


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
    params = evaluated_params(plan, state)
    figures = evaluate(judged, plan, params, state.opt_state, folder)
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
    shown = folder if on is None else f"{folder}, {place}"
    # A run that ended meanwhile has evaluated its best checkpoint.
    if (
        place == "evaluation.json"
        and step != evaluated_step(folder)
        and (is_evaluated(folder))
    ):
        log(f"{shown}: not written, as it is of a better checkpoint by now")
        return evaluation
    if is_first():
        write_json(folder / place, evaluation)
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
