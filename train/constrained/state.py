"""What a training run is made of between two steps, and the jitted step itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from train.config import PrimalConfig
from train.constrained.config import DualConfig
from unroll_jax.constrained import DualAscent, DualState, dual_ascent, lagrangian, proportional_integral

__all__ = ["Metrics", "TrainState", "dual_optimizer", "init_state", "make_step", "primal_optimizer"]


class TrainState(NamedTuple):
    """Everything a run needs to go on: two runs with equal states do the same from there on.

    Attributes:
      step: steps done; the next batch and its noise are functions of it.
      key: (2,) raw key that noise is folded from.
      params: of the model.
      opt_state: of the primal optimiser.
      dual: multipliers and the state of the dual optimiser.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Any
    opt_state: optax.OptState
    dual: DualState


class Metrics(NamedTuple):
    """Of one step, before its update; violations are of the tightened bounds that training enforces."""

    lagrangian: Float[Array, ""]
    layer_losses: Float[Array, "layers_and_one"]
    violations: Float[Array, "constraints"]
    multipliers: Float[Array, "constraints"]
    grad_norm: Float[Array, ""]


def primal_optimizer(config: PrimalConfig, steps: int) -> optax.GradientTransformation:
    """Adam on gradients clipped to a global norm, with a warm-up and a cosine schedule over ``steps``."""
    warmup = round(config.warmup_share * steps)
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / max(warmup, 1),
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=max(steps, warmup + 1),
    )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adam(schedule))


def dual_optimizer(config: DualConfig) -> optax.GradientTransformation:
    """The optimiser that raises the multipliers."""
    if config.optimizer == "pi":
        return proportional_integral(config.learning_rate, config.proportional_gain)
    return {"adam": optax.adam, "sgd": optax.sgd}[config.optimizer](config.learning_rate)


def init_state(config: Any, task: Any) -> TrainState:
    """The state before the first step, from the seed alone.

    Args:
      config: of a run: its ``seed``, ``steps``, ``method``, ``primal``, ``dual`` and ``constraints`` count.
      task: with ``init``, ``key -> params``; ``layer_losses``, ``(params, batch, key) -> (L + 1,)``; and ``bounds``.
    """
    params_key, noise_key = jax.random.split(jax.random.key(config.seed))

    def build() -> TrainState:
        params = task.init(params_key)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(noise_key),
            params=params,
            opt_state=primal_optimizer(config.primal, config.steps).init(params),
            dual=_ascent(config).init(task.bounds.number),
        )

    return jax.jit(build)()


def make_step(config: Any, task: Any) -> jax.stages.Wrapped:
    """The jitted training step ``(state, batch) -> (state, metrics)``, of what `init_state` takes.

    It consumes (donates) its state. Method "erm" minimises f_L. Method "constrained" takes one primal step on the
    Lagrangian, then one dual step on the violations of the same batch (Porras-Valenzuela et al., Algorithm 1); during
    warm-up it does as "erm" does.
    """
    optimizer, ascent = primal_optimizer(config.primal, config.steps), _ascent(config)
    constrained = config.method == "constrained"

    def objective(params: Any, multipliers: Array, batch: Any, key: jax.Array) -> tuple[Array, Array]:
        losses = task.layer_losses(params, batch, key)
        if not constrained:
            return losses[-1], losses
        return lagrangian(losses, multipliers, task.bounds.tightened, normalise=config.constraints.normalise), losses

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        differentiate = jax.value_and_grad(objective, has_aux=True)
        (value, losses), gradients = differentiate(state.params, state.dual.multipliers, batch, key)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        violations = task.bounds.tightened(losses)
        new = TrainState(
            step=state.step + 1,
            key=state.key,
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            dual=_raise_multipliers(state, violations) if constrained else state.dual,
        )
        return new, Metrics(value, losses, violations, state.dual.multipliers, optax.tree.norm(gradients))

    def _raise_multipliers(state: TrainState, violations: Array) -> DualState:
        raised = ascent.update(state.dual, violations)
        if config.constraints.warmup_steps == 0:
            return raised
        warm = state.step >= config.constraints.warmup_steps
        return jax.tree.map(lambda new, old: jnp.where(warm, new, old), raised, state.dual)

    return jax.jit(step, donate_argnums=0)


def _ascent(config: Any) -> DualAscent:
    return dual_ascent(dual_optimizer(config.dual), resilience=config.constraints.resilience)
