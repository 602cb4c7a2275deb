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
from train.supervised.task import AdjointSolve, Equilibrium, Task, adjoint_solve

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
    adjoint: AdjointSolve
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
        (loss, (matrix, equilibrium)), (gradients, adjoint) = _mean_gradient(
            task, state.params, task.draw(batch, key), config.accumulate
        )
        updates, opt_state = rule.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = next_average(state.average, params, state.step, config.average)
        new = State(state.step + 1, state.key, params, opt_state, average)
        return new, Metrics(loss, matrix, equilibrium, adjoint, optax.tree.norm(gradients))

    return jax.jit(step, donate_argnums=0)


def _mean_gradient(task: Task, params: Any, batch: Any, parts: int) -> tuple[tuple[Array, Any], tuple[Any, Any]]:
    """Loss and measures, gradient and adjoint solve; in parts, each counts by its share of the labels that count."""

    def differentiate(batch: Any) -> tuple[tuple[Array, Any], tuple[Any, Any]]:
        both = jax.value_and_grad(task.loss, argnums=(0, 2), has_aux=True)
        found, (gradient, statistics) = both(params, batch, task.probe(batch))
        return found, (gradient, adjoint_solve(statistics))

    if parts == 1:
        return differentiate(batch)
    total = jnp.maximum(jnp.sum(counted(batch.labels)), 1)

    def add(gradient: Any, part: Any) -> tuple[Any, Any]:
        share = jnp.sum(counted(part.labels)) / total
        (loss, (matrix, equilibrium)), (found, adjoint) = differentiate(part)
        summed = jax.tree.map(lambda old, new: old + share * new, gradient, found)
        return summed, (share * loss, matrix, (equilibrium, adjoint))

    zero = jax.tree.map(jnp.zeros_like, params)
    gradient, (losses, matrices, solves) = jax.lax.scan(add, zero, in_parts(batch, parts))
    equilibrium, adjoint = jax.tree.map(jnp.mean, solves)
    return (jnp.sum(losses), (jnp.sum(matrices, axis=0), equilibrium)), (gradient, adjoint)
