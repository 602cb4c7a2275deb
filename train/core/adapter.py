"""Tasks that are still classes, as values. It goes when the last of them is one."""

import dataclasses
from typing import Any

import numpy as np

from .task import Batch, Params, Row, Task, Trial


def as_value(old: Any) -> Task:
    """Returns a task of a class of `train.tasks` as a value."""
    training = old.training

    def batches(seed: int, start_step: int, rows: Any) -> Any:
        same = old.with_config(dataclasses.replace(old.config, seed=seed))
        return same.batches(start_step, rows)

    def losses(params: Params, batch: Batch, trial: Trial) -> Any:
        return old.losses(params, batch, trial.probe)

    common: Any = {
        "options": old.config,
        "num_layers": old.num_layers,
        "init": old.init,
        "batches": batches,
        "examples": lambda split, trial: (),
        "losses": losses,
        "make": lambda options: as_value(old.with_config(options)),
        "predict": old.predict,
        "summary": old.summary_line,
        "corrupt": lambda batch, trial, key: old.sample_noise(batch, key),
        "counts": old.counts,
        "probe": old.probe,
        "summarise": old.summarise,
        "describe": old.describe,
        "trained": training.trained,
        "pretrained": old.pretrained,
        "with_pretrained": old.load_pretrained,
        "bases": training.bases,
        "numbers": training.numbers,
        "num_examples": training.num_examples,
        "examples_are": training.examples,
        "fingerprint": old.data_fingerprint,
        "spec": old.model_spec,
        "inner": old,
    }
    if hasattr(old, "reading"):
        return _layered(old, common)
    return _of_scores(old, common)


def _layered(old: Any, common: Any) -> Task:
    def reading(params: Params, split: str, trial: Trial) -> Any:
        found = old.reading(params, split, trial)
        return {"losses": found.losses, "all": found}

    return Task(
        **common,
        reading=reading,
        trial=old.training_trial,
        trials=old.trials(),
        score=lambda reading, split: old.score_of(reading["all"], split),
        row=lambda params, reading: old.row_of(reading["all"]),
        baselines=lambda params, readings: old.further_figures(
            params, {trial: reading["all"] for trial, reading in readings.items()}
        ),
        count=old.count,
    )


def _of_scores(old: Any, common: Any) -> Task:
    def reading(params: Params, split: str, trial: Trial) -> Any:
        row, matrix = old.split_scores(params, split)
        return {"losses": np.array([[row["loss"]]]), "row": row, "matrix": matrix} | {
            "validation": old.validation_row(params, row)
            if split == "validation"
            else {}
        }

    def baselines(params: Params, readings: Any) -> Row:
        (found,) = readings.values()
        return old.figures(params, found["row"], found["matrix"])

    return Task(
        **common,
        reading=reading,
        row=lambda params, reading: reading["validation"],
        best=lambda row: row[old.config.best_by] - 1e-9 * row["loss"],
        baselines=baselines,
        keep=old.keep,
    )
