"""The constraints of a run as its options have them, and how its multipliers and slacks move."""

import importlib
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from train.errors import UserError
from train.video.config import VideoConfig
from train.video.task import Task
from unroll_jax.constrained import (
    Constraints,
    DualAscent,
    Reduction,
    SlackDescent,
    dual_ascent,
    dual_optimizer,
    lagrangian,
    positive_part,
    resilient_lagrangian,
    sample_constraints,
    scaled_constraints,
    slack_descent,
    tail_mean,
)

__all__ = [
    "dual_rule",
    "enforced",
    "has_slacks",
    "multiplier_ascent",
    "objective_value",
    "reduction",
    "slack_rule",
    "stated",
]


def dual_rule(config: VideoConfig) -> optax.GradientTransformation:
    """The optimiser that raises the multipliers: one by name, or what a factory of the user's makes of the rate.

    Raises:
      UserError: if there is no such factory, or it does not make an optax gradient transformation.
    """
    dual = config.dual
    if ":" in dual.optimizer:
        return _made_by(dual.optimizer, dual.learning_rate)
    options: dict[str, dict[str, Any]] = {
        "pi": {"proportional_gain": dual.proportional_gain, "cap": dual.cap},
        "nu_pi": {"proportional_gain": dual.proportional_gain, "nu": dual.nu},
    }
    return dual_optimizer(dual.optimizer, dual.learning_rate, **options.get(dual.optimizer, {}))


def multiplier_ascent(config: VideoConfig, task: Task) -> DualAscent:
    """How the multipliers move, by all options of the configuration.

    A step an epoch is one on the mean violation of its batches. For constraints on means, and batches of one size, that
    is the violation of the mean losses over the train set, as the parameters go; of tails it is the mean of the tails.
    """
    dual, constraints = config.dual, config.constraints
    first = 0 if constraints.reference is not None else 1
    return dual_ascent(
        dual_rule(config),
        resilience=constraints.resilience if constraints.slacks == "implied" else None,
        every=task.steps_an_epoch if dual.every == "epoch" else dual.every,
        smoothing=dual.smoothing,
        warmup=constraints.warmup_steps,
        freeze_after=dual.freeze_after,
        frozen=[layer - first for layer in dual.frozen],
        cap=dual.cap,
    )


def has_slacks(config: VideoConfig) -> bool:
    """Whether slacks are variables of the run."""
    return config.method == "constrained" and config.constraints.slacks == "explicit"


def slack_rule(config: VideoConfig) -> SlackDescent:
    """How explicit slacks move."""
    return slack_descent(optax.sgd(config.constraints.slack_rate))


def reduction(config: VideoConfig) -> Reduction | None:
    """What the constraints bind of the samples' violations; None: they bind the means, and need no samples."""
    constraints = config.constraints
    if constraints.bind == "mean":
        return None
    return tail_mean(constraints.level) if constraints.bind == "tail" else positive_part(constraints.leeway)


def stated(config: VideoConfig, task: Task) -> Constraints:
    """The constraints as the user states them: of mean losses, or with a `reduction`, of every sample's."""
    return _reduced(config, task.constraints)


def enforced(config: VideoConfig, task: Task, sizes: Float[Array, "constraints"] | None = None) -> Constraints:
    """The tightened constraints that training enforces, of the same; divided by ``sizes`` if there are some."""
    found = _reduced(config, task.tightened)
    return found if sizes is None else scaled_constraints(found, sizes)


def objective_value(
    config: VideoConfig,
    losses: Float[Array, "*samples layers_and_one"],
    multipliers: Float[Array, "constraints"],
    slacks: Float[Array, "constraints"] | None,
    constraints: Constraints,
) -> Float[Array, ""]:
    """What the parameters, and explicit slacks, descend: the Lagrangian, or plain risk."""
    if config.method != "constrained":
        return jnp.mean(losses[..., -1])
    settings = config.constraints
    if slacks is None:
        return lagrangian(losses, multipliers, constraints, normalise=settings.normalise)
    assert settings.resilience is not None, "check_config"
    return resilient_lagrangian(
        losses, slacks, multipliers, constraints, resilience=settings.resilience, normalise=settings.normalise
    )


def _made_by(path: str, rate: float) -> optax.GradientTransformation:
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(rate)
    except Exception as error:  # what a module or a factory of the user's raises can be anything
        raise UserError(f"--dual.optimizer {path}: cannot make it ({error!r}); pass MODULE:FACTORY") from error
    if not isinstance(made, optax.GradientTransformation):
        raise UserError(f"--dual.optimizer {path} made {made!r}, which is no optax gradient transformation")
    return made


def _reduced(config: VideoConfig, constraints: Constraints) -> Constraints:
    reduce = reduction(config)
    return constraints if reduce is None else sample_constraints(constraints, reduce)
