"""Explicit slacks of resilient constraints: variables beside the parameters, in the
state of the optimiser."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array


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
