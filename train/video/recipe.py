"""How video experiments train: steps, what is said of them, and validation against the stated constraints."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from train.data import VideoData
from train.metrics import numbers
from train.recipe import INFEASIBLE, Recipe, Validation, require_finite
from train.sharding import make_mesh, own_rows
from train.video.config import VideoConfig
from train.video.evaluate import make_split_losses
from train.video.health import describe_collapse
from train.video.state import Metrics, TrainState, init_state, make_step
from train.video.task import Task

__all__ = ["video_recipe"]


def video_recipe(config: VideoConfig, task: Task, data: VideoData) -> Recipe:
    """The recipe of one run, plain or constrained.

    Raises:
      UserError: if the mesh does not fit the devices or the batch.
    """
    split_losses, mesh = make_split_losses(task, data), make_mesh(config.mesh, batch_size=config.batch_size)
    reading = {"batch_size": config.batch_size, "seed": config.seed, "rows": own_rows(mesh, config.batch_size)}

    def validate(state: TrainState) -> Validation:
        found = split_losses(state.params, "validation", config.train_gamma)
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
        describe=_describe,
        validate=validate,
    )


def _describe(step: int, values: Metrics) -> tuple[dict[str, Any], dict[str, str]]:
    require_finite(step, values.layer_losses, "loss", each="layer")
    require_finite(step, values.grad_norm, "gradient")
    row = {
        "loss": float(values.layer_losses[-1]),
        "lagrangian": float(values.lagrangian),
        "layer_losses": values.layer_losses.tolist(),
        "violations": numbers(values.violations, length=values.layer_losses.size),
        "multipliers": numbers(values.multipliers, length=values.layer_losses.size),
        "grad_norm": float(values.grad_norm),
    }
    return row, {"loss": f"{values.layer_losses[-1]:.3f}", "worst_violation": f"{values.violations.max():+.3f}"}


def _judge(config: VideoConfig, task: Task, state: TrainState, found: Any) -> Validation:
    losses = found.sample_losses.mean(axis=0)
    require_finite(int(state.step), losses, "validation loss", each="layer")
    violations = np.asarray(task.constraints(jnp.asarray(losses)))
    bounds = losses[losses.size - violations.size :] - violations
    # Without noise the input has no loss, and the bound on layer 1 is 0.
    excess = float(np.max(violations / np.maximum(bounds, 1e-9)))
    feasible = excess <= config.constraints.tolerance
    score = -float(losses[-1]) if feasible or config.method == "erm" else INFEASIBLE - excess
    row = {
        "layer_losses": losses.tolist(),
        "violations": numbers(violations, length=losses.size),
        "worst_excess": excess,
        "feasible": feasible,
        "dead_share": found.dead.tolist(),
        "spread": found.spread.tolist(),
    }
    multipliers = np.asarray(state.dual.multipliers)
    return Validation(row, score, describe_collapse(found.dead, found.spread, losses, multipliers))
