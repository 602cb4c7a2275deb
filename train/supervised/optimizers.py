"""The optimiser of supervised training: its configuration, and the optax chain that it stands for."""

import dataclasses
from typing import Literal

import optax

__all__ = ["OptimizerConfig", "learning_rates", "optimizer"]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam or SGD, with a schedule over the run."""

    name: Literal["adam", "sgd"] = "adam"
    """adam, or sgd with momentum."""
    learning_rate: float = 3e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "staircase", "polynomial", "constant"] = "cosine"
    """cosine, linear and polynomial fall to 0 at the last step; staircase multiplies by `decay` every `decay_every`
    epochs."""
    warmup_share: float = 0.0
    """Share of the steps over which the learning rate rises from 0."""
    decay: float = 0.5
    """Factor of the staircase."""
    decay_every: int = 30
    """Epochs between two stairs."""
    power: float = 0.9
    """Power of the polynomial, (1 - step / steps)^power."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 0.0
    """Added to the gradient as this times the weights for sgd; decoupled for adam."""
    clip_norm: float | None = None
    """Largest global norm of a gradient."""


def learning_rates(config: OptimizerConfig, *, num_steps: int, steps_an_epoch: int) -> optax.Schedule:
    """The learning rate by step."""
    rate, warmup = config.learning_rate, round(config.warmup_share * num_steps)
    left = max(num_steps - warmup, 1)
    after = {
        "cosine": optax.cosine_decay_schedule(rate, left),
        "linear": optax.linear_schedule(rate, 0.0, left),
        "polynomial": optax.polynomial_schedule(rate, 0.0, config.power, left),
        "staircase": optax.exponential_decay(rate, config.decay_every * steps_an_epoch, config.decay, staircase=True),
        "constant": optax.constant_schedule(rate),
    }[config.schedule]
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(rate / warmup, rate, warmup), after], [warmup])


def optimizer(config: OptimizerConfig, *, num_steps: int, steps_an_epoch: int) -> optax.GradientTransformation:
    """Clipping, weight decay and the rule, in the order that each rule's paper has them."""
    rates = learning_rates(config, num_steps=num_steps, steps_an_epoch=steps_an_epoch)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    if config.name == "adam":
        return optax.chain(clip, optax.adamw(rates, weight_decay=config.weight_decay))
    return optax.chain(clip, optax.add_decayed_weights(config.weight_decay), optax.sgd(rates, config.momentum))
