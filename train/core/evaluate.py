"""Evaluation: a split read under trials, the figures of a plan on it, and the best
checkpoint on the test split."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unroll_jax.perturbations import Perturbation, layer_noise, lost_layer

from ..config.errors import UserError
from ..sharding import put_beside
from ..system.distributed import fetch, is_first
from ..system.files import read_object, write_json
from .checkpoint import Checkpoints, Stored, best_step
from .folder import check_same, identity, require_checkpoints, require_place
from .metrics import json_value, require_finite
from .objective import INFEASIBLE, describe_layers, judge
from .step import evaluated_params, state_like
from .task import VALIDATED, Batch, Log, Params, Plan, Reading, Row, Task, Trial

# One seed for all evaluations: noise is drawn once and scaled to each level. Runs
# compare like with like.
NOISE_SEED = 20260101


def read(task: Task, params: Params, split: str, trial: Trial) -> Reading:
    """Returns losses and figures of every sample of a split under a trial."""
    if task.reading is not None:
        return task.reading(params, split, trial)
    see = _reader(task.corrupt, task.losses, task.read, trial.disturbance)
    numbers = {
        "gamma": np.float32(trial.gamma),
        "layer_noise": np.float32(trial.layer_noise),
        "lost": np.int32(trial.lost),
    }
    parts = []
    for index, batch in enumerate(task.examples(split, trial)):
        key = evaluation_key(index)
        found = see(params, put_beside(params, batch), numbers, key)
        parts.append(fetch(found))
    if task.join is not None:
        return task.join(parts, split)
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


@jax.jit
def evaluation_key(index: int) -> jax.Array:
    """Returns the key of the noise of a batch of an evaluation."""
    return jax.random.fold_in(jax.random.key(NOISE_SEED), index)


# The programs of the last tasks: validations and the trials of an evaluation share one.
@functools.lru_cache(maxsize=2)
def _reader(
    corrupt: Callable[..., Any],
    losses: Callable[..., Any],
    other: Callable[..., Any] | None,
    disturbance: Any,
) -> Callable[..., Any]:
    def see(params: Params, batch: Batch, numbers: Any, key: jax.Array) -> Any:
        trial = Trial(**numbers, disturbance=disturbance)
        drawn = corrupt(batch, trial, key)
        if other is not None:
            return other(params, drawn, trial)
        samples, figures = losses(params, drawn, trial)
        return {"losses": samples, **figures}

    return jax.jit(see)


def perturbation(trial: Trial, keys: Any) -> Perturbation | None:
    """Returns the disturbance of layers of a trial, with a raw key a sample, or None
    where it is known to have none."""
    known = isinstance(trial.layer_noise, float) and isinstance(trial.lost, int)
    if known and trial.layer_noise == 0.0 and trial.lost == 0:
        return None
    noisy = layer_noise(jax.random.wrap_key_data(keys), trial.layer_noise)
    if isinstance(trial.lost, int) and trial.lost == 0:
        return noisy
    lose = lost_layer(trial.lost)
    return lambda layer, before, z: noisy(layer, before, lose(layer, before, z))


def noise_trials(
    score: str,
    gammas: Any,
    trial: Trial,
    *,
    layer_noises: Any = (),
    lost: int = 0,
) -> dict[str, dict[str, Trial]]:
    """Returns the trials of levels of noise on inputs. At the noise of training come
    those of noise on layers, and of each of so many layers left out."""
    trials = {score: {str(gamma): Trial(gamma) for gamma in gammas}}
    if layer_noises:
        trials[f"layer_noise_{score}"] = {
            str(level): Trial(trial.gamma, layer_noise=level)
            for level in sorted(layer_noises)
        }
    if lost:
        trials[f"lost_layer_{score}"] = {
            str(layer): Trial(trial.gamma, lost=layer) for layer in range(1, lost + 1)
        }
    return trials


def validate(
    task: Task, plan: Plan, params: Params, opt_state: Any, step: int
) -> tuple[Row, float]:
    """Returns the row of a validation at the conditions of training, and the score of
    its checkpoint."""
    reading = read(task, params, "validation", task.trial)
    losses = reading["losses"]
    each = "layer" if task.num_layers else None
    require_finite(step, losses.mean(axis=0), "validation loss", each=each)
    row, score = judge(plan, losses, opt_state)
    row |= json_value(task.row(params, reading), "the row of a validation")
    if task.best is not None and row.get("feasible", True):
        score = float(task.best(row))
    return row, score


def evaluate_trials(
    task: Task, params: Params, split: str = "test"
) -> tuple[Row, Mapping[Trial, Reading]]:
    """Returns the scores of all trials on a split, and the readings they come from,
    with that of the conditions of training."""
    every = [trial for cases in task.trials.values() for trial in cases.values()]
    readings = {
        trial: read(task, params, split, trial)
        for trial in dict.fromkeys([*every, task.trial])
    }
    scores: Row = {}
    for name, cases in task.trials.items():
        scores[name] = {
            label: task.score(readings[trial], split) for label, trial in cases.items()
        }
    return scores, readings


def check_figures(task: Task, params: Params) -> None:
    """Raises UserError for figures that are no JSON, before any training."""
    _, readings = evaluate_trials(task, params)
    json_value(task.baselines(params, readings), "the figures of evaluate")


def evaluate(
    task: Task, plan: Plan, params: Params, opt_state: Any, folder: Path
) -> Row:
    """Returns the figures of the test split. Further files, such as pictures, go to the
    folder."""
    scores, readings = evaluate_trials(task, params)
    losses = readings[task.trial]["losses"]
    options = task.options
    of_method: Row = {}
    if hasattr(options, "method"):
        of_method = {
            "method": options.method,
            "train_gamma": options.train_gamma,
            "test_gammas": sorted({float(gamma) for gamma in options.test_gammas}),
            "num_layers": task.num_layers,
        }
    baselines = task.baselines(params, readings)
    task.keep(params, folder, baselines)
    return {
        **of_method,
        "seed": options.seed,
        task.size: len(losses),
        **scores,
        **baselines,
        "parameters": num_parameters(params),
        **describe_layers(plan, losses, opt_state),
    }


def num_parameters(params: Any) -> int:
    """Returns the number of parameters in a pytree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


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
    """Returns the step of the checkpoint that an evaluation of a run is of, or None
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
    keeps. ``on`` is the task on other data, None for the run's.
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
    """Returns the task with other options of its evaluation. Options of other tasks
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
