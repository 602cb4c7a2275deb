"""Optimisers of the parameters, with their learning rates by step; explicit slacks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers, muon

from ..config.run import DecayedPrimalConfig, OptimizerConfig, PrimalConfig

MOMENTUM = 0.9  # of SGD
# of the schedule "poly", which falls as (1 - step / steps)^0.9. Source: Xie et al.
# (2021), section 5.3.
POLY_POWER = 0.9


def make_optimizer(
    config: PrimalConfig | OptimizerConfig,
    *,
    num_steps: int,
    steps_an_epoch: int = 1,
    trained: Any = None,
) -> optax.GradientTransformation:
    """Clipping, weight decay and the rule, in the order that each rule's paper has
    them, with a warm-up and a schedule. Parameters that are not ``trained``
    (``params -> bool`` for each) keep no state. Their gradients must be 0.
    """
    rates = learning_rates(config, num_steps=num_steps, steps_an_epoch=steps_an_epoch)
    clip = (
        optax.identity()
        if config.clip_norm is None
        else optax.clip_by_global_norm(config.clip_norm)
    )
    if config.name == "muon":
        chain = optax.chain(clip, _muon(config, rates))
    elif isinstance(config, PrimalConfig) and not isinstance(
        config, DecayedPrimalConfig
    ):
        chain = optax.chain(clip, optax.adam(rates))
    elif isinstance(config, PrimalConfig) or config.name == "adam":
        chain = optax.chain(clip, optax.adamw(rates, weight_decay=config.weight_decay))
    else:
        chain = optax.chain(
            clip,
            optax.add_decayed_weights(config.weight_decay),
            optax.sgd(rates, MOMENTUM),
        )
    return chain if trained is None else optax.masked(chain, trained)


def learning_rates(
    config: PrimalConfig | OptimizerConfig, *, num_steps: int, steps_an_epoch: int = 1
) -> optax.Schedule:
    """The learning rate by step."""
    rate, warmup = config.learning_rate, round(config.warmup_share * num_steps)
    left = max(num_steps - warmup, 1)
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(rate, left)
    elif config.schedule == "linear":
        after = optax.linear_schedule(rate, 0.0, left)
    elif config.schedule == "poly":
        after = optax.polynomial_schedule(rate, 0.0, POLY_POWER, left)
    elif isinstance(config, PrimalConfig) or config.schedule == "constant":
        after = optax.constant_schedule(rate)
    else:
        after = optax.exponential_decay(
            rate, config.decay_every * steps_an_epoch, config.decay, staircase=True
        )
    if warmup == 0:
        return after
    return optax.join_schedules(
        [optax.linear_schedule(rate / warmup, rate, warmup), after], [warmup]
    )


def _muon(
    config: PrimalConfig | OptimizerConfig, rates: optax.Schedule
) -> optax.GradientTransformation:
    """Muon for weights that multiply, Adam (Nesterov's) for vectors and embeddings,
    both in steps of the rate's size.

    Source: Jordan et al. (2024), "Muon"; Liu et al. (2025), arXiv 2502.16982, for the
    size of its steps.
    """
    images = isinstance(config, OptimizerConfig)

    def axes(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        # layers are stacks: of vectors too
        if leaf.ndim < (3 if "layers" in name else 2) or "embedding" in name:
            return None
        # of a convolution: height, width, channels in, channels out
        if images and leaf.ndim == 4:
            return MuonDimensionNumbers((0, 1, 2), 3)
        return MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1)

    decay = (
        config.weight_decay
        if isinstance(config, OptimizerConfig | DecayedPrimalConfig)
        else 0.0
    )
    return muon(
        rates,
        weight_decay=decay,
        adam_weight_decay=decay,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=lambda params: jax.tree.map_with_path(
            axes, params
        ),
    )


class SlackState(NamedTuple):
    """State of an optimiser with slacks.

    Attributes:
      slacks: s >= 0 by the name of a constraint, in units of its violation.
      rule: state of the optimiser of the slacks.
      step: steps done.
      inner: state of the optimiser of the parameters and the multipliers.
    """

    slacks: dict[str, Array]
    rule: Any
    step: Array
    inner: Any


def with_slacks(
    optimizer: optax.GradientTransformationExtraArgs,
    names: Any,
    *,
    learning_rate: float,
    reset_every: int,
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimiser that also descends the slacks of constraints, by their
    gradient ``slack_gradient``, from 0 and again from 0 after every epoch of
    ``reset_every`` steps.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eq. 36 and Appendix B.2 ("resilience
    restarts").
    """
    rule = optax.chain(optax.sgd(learning_rate), optax.keep_params_nonnegative())
    zeros = {name: jnp.zeros(()) for name in names}

    def init(params: Any) -> SlackState:
        step = jnp.zeros((), jnp.int32)
        return SlackState(zeros, rule.init(zeros), step, optimizer.init(params))

    def update(
        updates: Any,
        state: SlackState,
        params: Any = None,
        *,
        slack_gradient: Any,
        **extra: Any,
    ) -> tuple[Any, SlackState]:
        updates, inner = optimizer.update(updates, state.inner, params, **extra)
        moves, moved = rule.update(slack_gradient, state.rule, state.slacks)
        slacks: Any = optax.apply_updates(state.slacks, moves)
        step = state.step + 1
        restarts = step % reset_every == 0
        slacks = jax.tree.map(lambda one: jnp.where(restarts, 0.0, one), slacks)
        return updates, SlackState(slacks, moved, step, inner)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]
