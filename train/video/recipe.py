"""How video experiments train: steps, what is said of them, and validation against the stated constraints."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from train.data import VideoData
from train.metrics import numbers
from train.recipe import INFEASIBLE, Recipe, Validation, require_finite
from train.sharding import make_mesh, own_rows
from train.video.config import VideoConfig
from train.video.duals import reduction, stated
from train.video.evaluate import make_split_losses
from train.video.health import describe_collapse
from train.video.state import Metrics, TrainState, init_state, make_step
from train.video.task import Task
from unroll_jax.constrained import constraint_names, named_figures

__all__ = ["video_recipe"]


def video_recipe(config: VideoConfig, task: Task, data: VideoData) -> Recipe:
    """The recipe of one run, plain or constrained.

    Raises:
      UserError: if the mesh does not fit the devices or the batch.
    """
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
        describe=functools.partial(_describe, config),
        validate=validate,
    )


def _describe(config: VideoConfig, step: int, values: Metrics) -> tuple[dict[str, Any], dict[str, str]]:
    require_finite(step, values.layer_losses, "loss", each="layer")
    require_finite(step, values.multipliers, "multiplier", each="constraint")
    require_finite(step, values.lagrangian, "Lagrangian")
    require_finite(step, values.grad_norm, "gradient")
    row = {
        "loss": float(values.layer_losses[-1]),
        "lagrangian": float(values.lagrangian),
        "layer_losses": values.layer_losses.tolist(),
        "violations": numbers(values.violations, length=values.layer_losses.size),
        "multipliers": numbers(values.multipliers, length=values.layer_losses.size),
        "grad_norm": float(values.grad_norm),
        **_named(
            config, violation=values.violations, multiplier=values.multipliers, slack=values.slacks, size=values.sizes
        ),
    }
    return row, {"loss": f"{values.layer_losses[-1]:.3f}", "worst_violation": f"{values.violations.max():+.3f}"}


def _named(config: VideoConfig, **figures: Any) -> dict[str, float | None]:
    """Figures of the constraints by name and layer."""
    names = constraint_names(config.model.num_layers, reference=config.constraints.reference)
    found = named_figures(names, **figures)
    return dict(zip(found, numbers(map(float, found.values())), strict=True))


def _judge(config: VideoConfig, task: Task, state: TrainState, found: Any) -> Validation:
    losses = found.sample_losses.mean(axis=0)
    require_finite(int(state.step), losses, "validation loss", each="layer")
    bound = losses if reduction(config) is None else found.sample_losses
    violations = np.asarray(stated(config, task)(jnp.asarray(bound)))
    # What the means have to stay under, as `feasibility_report` has it, whatever is bound of the samples.
    bounds = losses[losses.size - violations.size :] - np.asarray(task.constraints(jnp.asarray(losses)))
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
        **_named(config, violation=violations),
    }
    multipliers = np.asarray(state.multipliers)
    return Validation(row, score, describe_collapse(found.dead, found.spread, losses, multipliers))
