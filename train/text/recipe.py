"""How text experiments train: steps, and validation against the stated constraints."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from train.constrained import TrainState, describe_step, init_state, judge_losses, make_step
from train.data.text import TokenBatch
from train.recipe import Recipe, Validation, check_batch_size
from train.sharding import make_mesh, own_rows
from train.text.config import TextEncoderConfig, TextUnrolledConfig
from train.text.material import TextMaterial
from train.text.reading import SplitReading, make_split_reading
from train.text.task import Task

__all__ = ["text_recipe"]


def text_recipe(config: TextEncoderConfig | TextUnrolledConfig, task: Task, material: TextMaterial) -> Recipe:
    """The recipe of one run, plain or constrained.

    Raises:
      UserError: if the batch is larger than the train split, or the mesh does not fit the devices or the batch.
    """
    check_batch_size(config.batch_size, material.tokens.num_examples("train"), "texts")
    split_reading = make_split_reading(task, material)
    mesh = make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)
    rows = own_rows(mesh, config.batch_size)

    def batches(start: int) -> Iterator[TokenBatch]:
        reading = {"batch_size": config.batch_size, "seed": config.seed, "start_step": start}
        for batch in material.tokens.batches("train", **reading):
            # Every process reads all rows, as the length of a batch depends on all, and gives its own.
            yield batch if rows is None else TokenBatch(*(part[rows] for part in batch))

    def validate(state: TrainState) -> Validation:
        found = split_reading(state.evaluated, "validation", config.train_gamma)
        row, score = judge_losses(config, task.bounds, found.losses, state)
        row |= {"accuracy": float(found.accuracies()[-1]), "error_rates": (1.0 - found.accuracies()).tolist()}
        return Validation(row, score, _describe_collapse(found, material.class_names))

    return Recipe(
        title=config.method,
        mesh=mesh,
        num_steps=config.steps,
        validate_every=config.validate_every,
        stop_on_collapse=config.on_collapse == "stop",
        init=lambda: init_state(config, task),
        step=make_step(config, task),
        batches=batches,
        describe=functools.partial(describe_step, config),
        validate=validate,
        remarks=task.model.remarks,
    )


def _describe_collapse(found: SplitReading, class_names: Any) -> str | None:
    """One plain sentence if every text gets the same class and that is no better than knowing the shares of classes."""
    shares = np.bincount(found.labels, minlength=len(class_names)) / len(found.labels)
    known = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    given, loss = np.unique(found.predictions[:, -1]), float(found.losses[:, -1].mean())
    if len(given) > 1 or loss < known - 1e-3:
        return None
    return (
        f"the model has collapsed (loss {loss:.3f}, that of the shares of the classes is {known:.3f}): it gives "
        f"every text the class {class_names[given[0]]}"
    )
