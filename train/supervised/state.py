"""What a supervised run is made of between two steps, and the jitted step itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from train.average import first_average, next_average
from train.gradients import in_parts
from train.supervised.config import SupervisedConfig
from train.supervised.objective import counted
from train.supervised.task import Equilibrium, Task

__all__ = ["Metrics", "State", "init_state", "make_step"]


class State(NamedTuple):
    """Everything a run needs to go on: two runs with equal states do the same from there on.

    Attributes:
      step: steps done.
      key: (2,) raw key that augmentation is folded from.
      params: of the model.
      opt_state: of the optimiser.
      average: moving average of the parameters; None without.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Any
    opt_state: optax.OptState
    average: Any = None

    @property
    def evaluated(self) -> Any:
        """The parameters that validation, evaluation and export use."""
        return self.params if self.average is None else self.average


class Metrics(NamedTuple):
    """Of one step, before its update."""

    loss: Float[Array, ""]
    matrix: Int[Array, "classes classes"]
    equilibrium: Equilibrium
    grad_norm: Float[Array, ""]


def init_state(config: SupervisedConfig, task: Task, rule: optax.GradientTransformation) -> State:
    """The state before the first step, from the seed alone."""
    params_key, augment_key = jax.random.split(jax.random.key(config.seed))

    def build() -> State:
        params = task.init(params_key)
        return State(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(augment_key),
            params=params,
            opt_state=rule.init(params),
            average=first_average(params, config.average),
        )

    return jax.jit(build)()


def make_step(config: SupervisedConfig, task: Task, rule: optax.GradientTransformation) -> Any:
    """The jitted training step ``(state, batch) -> (state, metrics)``; it consumes (donates) its state."""

    def step(state: State, batch: Any) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        drawn = task.draw(batch, key)
        (loss, (matrix, equilibrium)), gradients = _mean_gradient(task, state.params, drawn, config.accumulate)
        updates, opt_state = rule.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = next_average(state.average, params, state.step, config.average)
        new = State(state.step + 1, state.key, params, opt_state, average)
        return new, Metrics(loss, matrix, equilibrium, optax.tree.norm(gradients))

    return jax.jit(step, donate_argnums=0)


def _mean_gradient(task: Task, params: Any, batch: Any, parts: int) -> tuple[tuple[Array, Any], Any]:
    """Loss, measures and gradient of a batch; in parts, each counts by its share of the labels that count."""
    differentiate = jax.value_and_grad(task.loss, has_aux=True)
    if parts == 1:
        return differentiate(params, batch)
    total = jnp.maximum(jnp.sum(counted(batch.labels)), 1)

    def add(gradient: Any, part: Any) -> tuple[Any, tuple[Array, Any]]:
        share = jnp.sum(counted(part.labels)) / total
        (loss, measures), found = differentiate(params, part)
        return jax.tree.map(lambda old, new: old + share * new, gradient, found), (share * loss, measures)

    zero = jax.tree.map(jnp.zeros_like, params)
    gradient, (losses, (matrices, equilibria)) = jax.lax.scan(add, zero, in_parts(batch, parts))
    equilibrium = jax.tree.map(jnp.mean, equilibria)
    return (jnp.sum(losses), (jnp.sum(matrices, axis=0), equilibrium)), gradient
