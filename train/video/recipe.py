"""How video experiments train: steps, what is said of them, and validation against the stated constraints."""

import functools
from typing import Any

import numpy as np

from train.constrained import TrainState, describe_step, init_state, judge_losses, make_step
from train.data import VideoData
from train.recipe import Recipe, Validation, check_batch_size
from train.sharding import make_mesh, own_rows
from train.video.config import VideoConfig
from train.video.evaluate import make_split_losses
from train.video.health import describe_collapse
from train.video.task import Task

__all__ = ["video_recipe"]


def video_recipe(config: VideoConfig, task: Task, data: VideoData) -> Recipe:
    """The recipe of one run, plain or constrained.

    Raises:
      UserError: if the batch is larger than the train split, or the mesh does not fit the devices or the batch.
    """
    check_batch_size(config.batch_size, data.num_sequences("train"), "sequences")
    split_losses = make_split_losses(task, data)
    mesh = make_mesh(config.mesh, batch_size=config.batch_size, accumulate=config.accumulate)
    reading = {"batch_size": config.batch_size, "seed": config.seed, "rows": own_rows(mesh, config.batch_size)}

    def validate(state: TrainState) -> Validation:
        found = split_losses(state.evaluated, "validation", config.train_gamma)
        return _judge(config, task, state, found)

    return Recipe(
        title=config.method,
        mesh=mesh,
        num_steps=config.steps,
        validate_every=config.validate_every,
        stop_on_collapse=config.on_collapse == "stop",
        init=lambda: init_state(config, task),
        step=make_step(config, task),
        batches=lambda start: data.batches("train", start_step=start, **reading),
        describe=functools.partial(describe_step, config),
        validate=validate,
    )


def _judge(config: VideoConfig, task: Task, state: TrainState, found: Any) -> Validation:
    losses = found.sample_losses.mean(axis=0)
    row, score = judge_losses(config, task.bounds, found.sample_losses, state)
    row |= {"dead_share": found.dead.tolist(), "spread": found.spread.tolist()}
    multipliers = np.asarray(state.multipliers)
    return Validation(row, score, describe_collapse(found.dead, found.spread, losses, multipliers))
