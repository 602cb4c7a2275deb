"""What a supervised run is made of between two steps, and the jitted step itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from train.supervised.config import SupervisedConfig
from train.supervised.task import AdjointSolve, Equilibrium, Task, adjoint_solve

__all__ = ["Metrics", "State", "init_state", "make_step"]


class State(NamedTuple):
    """Everything a run needs to go on: two runs with equal states do the same from there on.

    Attributes:
      step: steps done.
      key: (2,) raw key that augmentation is folded from.
      params: of the model.
      opt_state: of the optimiser.
    """

    step: Int[Array, ""]
    key: UInt32[Array, "2"]
    params: Any
    opt_state: optax.OptState


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
        return State(jnp.zeros((), jnp.int32), jax.random.key_data(augment_key), params, rule.init(params))

    return jax.jit(build)()


def make_step(task: Task, rule: optax.GradientTransformation) -> Any:
    """The jitted training step ``(state, batch) -> (state, metrics)``; it consumes (donates) its state."""

    def step(state: State, batch: Any) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        differentiate = jax.value_and_grad(task.loss, argnums=(0, 3), has_aux=True)
        probe = task.probe(batch)
        (loss, (matrix, equilibrium)), (gradients, statistics) = differentiate(state.params, batch, key, probe)
        updates, opt_state = rule.update(gradients, state.opt_state, state.params)
        new = State(state.step + 1, state.key, optax.apply_updates(state.params, updates), opt_state)
        adjoint, grad_norm = adjoint_solve(statistics), optax.tree.norm(gradients)
        return new, Metrics(loss, matrix, equilibrium, adjoint, grad_norm)

    return jax.jit(step, donate_argnums=0)
