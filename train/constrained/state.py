"""What a training run is made of between two steps, and the jitted step itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from train.average import first_average, next_average
from train.config import PrimalConfig
from train.constrained.bounds import Bounds
from train.constrained.duals import (
    enforced,
    has_slacks,
    multiplier_ascent,
    objective_value,
    reduction,
    slack_rule,
)
from train.constrained.task import Task
from train.gradients import loss_gradient
from unroll_jax.constrained import DualState, SlackState, initial_sizes, optimal_slacks

__all__ = ["Metrics", "TrainState", "init_state", "make_step", "plain_slacks", "primal_optimizer"]


class TrainState(NamedTuple):
    """Everything a run needs to go on: two runs with equal states do the same from there on.

    Attributes:
      step: steps done; the next batch and its noise are functions of it.
      key: (2,) raw key that noise is folded from.
      params: of the model.
      opt_state: of the primal optimiser.
      dual: multipliers and the state of the dual optimiser; of the scaled constraints where they are scaled.
      slacks: explicit ones, and the state of their optimiser; None without.
      sizes: (constraints,) what constraints are divided by, from the first step on; None where they are not scaled.
      average: moving average of the parameters; None without.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Any
    opt_state: optax.OptState
    dual: DualState
    slacks: SlackState | None = None
    sizes: Float[Array, "constraints"] | None = None
    average: Any = None

    @property
    def evaluated(self) -> Any:
        """The parameters that validation, evaluation and export use."""
        return self.params if self.average is None else self.average

    @property
    def multipliers(self) -> Any:
        """Of the constraints in plain units."""
        return _over(self.dual.multipliers, self.sizes)


class Metrics(NamedTuple):
    """Of one step, before its update; violations are of the tightened bounds that training enforces.

    All in plain units: of the losses, and multipliers of constraints that are not scaled. Sizes are what scaled ones
    are divided by.
    """

    lagrangian: Float[Array, ""]
    layer_losses: Float[Array, "layers_and_one"]
    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    slacks: Float[Array, "constraints"] | None
    grad_norm: Float[Array, ""]
    sizes: Float[Array, "constraints"] | None = None


def primal_optimizer(config: PrimalConfig, steps: int, trained: Any = None) -> optax.GradientTransformation:
    """Adam on gradients clipped to a global norm, with a warm-up and a schedule over ``steps``.

    What is not ``trained`` (``params -> bool`` for each) keeps no state: its gradient has to be 0.
    """
    warmup, peak = round(config.warmup_share * steps), config.learning_rate
    last = max(steps, warmup + 1)
    start = peak / max(warmup, 1)
    if config.schedule == "cosine":
        rates = optax.warmup_cosine_decay_schedule(start, peak, warmup_steps=warmup, decay_steps=last)
    else:
        end = 0.0 if config.schedule == "linear" else peak
        parts = [optax.linear_schedule(start, peak, warmup), optax.linear_schedule(peak, end, last - warmup)]
        rates = optax.join_schedules(parts, [warmup])
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    chain = optax.chain(clip, optax.adam(rates))
    return chain if trained is None else optax.masked(chain, trained)


def init_state(config: Any, task: Task) -> TrainState:
    """The state before the first step, from the seed alone.

    Args:
      config: of a run: its seed, steps, method, average, accumulate, primal, dual and constraints count.
      task: what is trained.
    """
    params_key, noise_key = jax.random.split(jax.random.key(config.seed))
    start = config.dual.start[0] if len(config.dual.start) == 1 else config.dual.start

    def build() -> TrainState:
        params = task.init(params_key)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(noise_key),
            params=params,
            opt_state=primal_optimizer(config.primal, config.steps, task.trained).init(params),
            dual=multiplier_ascent(config, task.steps_an_epoch).init(task.bounds.number, start),
            slacks=slack_rule(config).init(task.bounds.number) if has_slacks(config) else None,
            sizes=jnp.ones(task.bounds.number) if _is_scaled(config) else None,
            average=first_average(params, config.average),
        )

    return jax.jit(build)()


def make_step(config: Any, task: Task) -> jax.stages.Wrapped:
    """The jitted training step ``(state, batch) -> (state, metrics)``, of what `init_state` takes.

    It consumes (donates) its state. Method "erm" minimises f_L. Method "constrained" takes one primal step on the
    Lagrangian, then one dual step on the violations of the same batch (Porras-Valenzuela et al., Algorithm 1); explicit
    slacks move with the parameters.
    """
    optimizer = primal_optimizer(config.primal, config.steps, task.trained)
    ascent = multiplier_ascent(config, task.steps_an_epoch)
    bounds = task.bounds

    def objective(samples: Array, state: TrainState) -> tuple[Array, tuple[Array, Array, Any]]:
        means = jnp.mean(samples, axis=0)
        losses = means if reduction(config) is None else samples
        sizes = _sizes(state, means, bounds)
        pressing = _pressing(config, state)
        value = objective_value(config, losses, pressing, _slacks(state), enforced(config, bounds, sizes))
        return value, (means, losses, sizes)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        (value, (means, losses, sizes)), gradients = loss_gradient(
            task.sample_losses,
            lambda samples: objective(samples, state),
            state.params,
            task.draw(batch, key),
            parts=config.accumulate,
            affine=_is_affine(config, state),
        )
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        violations, slacks = enforced(config, bounds, sizes)(losses), _slacks(state)
        unmet = violations if slacks is None else violations - slacks
        new = TrainState(
            step=state.step + 1,
            key=state.key,
            params=params,
            opt_state=opt_state,
            dual=ascent.update(state.dual, unmet) if config.method == "constrained" else state.dual,
            slacks=_moved_slacks(config, task, state, losses, sizes),
            sizes=sizes,
            average=next_average(state.average, params, state.step, config.average),
        )
        before = state._replace(sizes=sizes)
        return new, _metrics(config, before, value, means, violations, optax.tree.norm(gradients))

    return jax.jit(step, donate_argnums=0)


def plain_slacks(config: Any, state: TrainState) -> Any:
    """Slacks in units of the losses, explicit or implied by the multipliers; None where constraints are hard."""
    if config.constraints.resilience is None:
        return None
    slacks = _slacks(state)
    implied = optimal_slacks(state.dual.multipliers, config.constraints.resilience)
    return _times(implied if slacks is None else slacks, state.sizes)


def _metrics(
    config: Any, before: TrainState, lagrangian: Array, means: Array, violations: Array, grad_norm: Array
) -> Metrics:
    """In plain units, of the state ``before`` the update with the sizes that the step divided by."""
    return Metrics(
        lagrangian=lagrangian,
        layer_losses=means,
        violations=_times(violations, before.sizes),
        multipliers=before.multipliers,
        slacks=plain_slacks(config, before),
        grad_norm=grad_norm,
        sizes=before.sizes,
    )


def _is_scaled(config: Any) -> bool:
    return config.constraints.scale and config.method == "constrained"


def _is_affine(config: Any, state: TrainState) -> bool | Array:
    """Whether the weights of losses in the objective are known without the losses.

    Sizes are those of the first step's losses: they weigh nothing there if no multiplier does.
    """
    if reduction(config) is not None:
        return False
    weighed = _is_scaled(config) and any(config.dual.start) and config.constraints.warmup_steps == 0
    return state.step > 0 if weighed else True


def _pressing(config: Any, state: TrainState) -> Array:
    """The multipliers that count in this step: none in the warm-up, also where they start above 0."""
    return jnp.where(state.step < config.constraints.warmup_steps, 0.0, state.dual.multipliers)


def _sizes(state: TrainState, means: Array, bounds: Bounds) -> Any:
    if state.sizes is None:
        return None
    found = initial_sizes(jax.lax.stop_gradient(means), bounds.tightened)
    return jnp.where(state.step == 0, found.astype(state.sizes.dtype), state.sizes)


def _moved_slacks(config: Any, task: Task, state: TrainState, losses: Array, sizes: Any) -> SlackState | None:
    if state.slacks is None:
        return None
    rule, constraints = slack_rule(config), enforced(config, task.bounds, sizes)
    gradient = jax.grad(objective_value, argnums=3)(
        config, losses, _pressing(config, state), state.slacks.slacks, constraints
    )
    moved = rule.update(state.slacks, gradient)
    over = (state.step + 1) % task.steps_an_epoch == 0
    return rule.restart(moved, over) if config.constraints.slack_restarts else moved


def _slacks(state: TrainState) -> Any:
    return None if state.slacks is None else state.slacks.slacks


def _times(values: Any, sizes: Any) -> Any:
    return values if sizes is None else values * sizes


def _over(values: Any, sizes: Any) -> Any:
    return values if sizes is None else values / sizes
