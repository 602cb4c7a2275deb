"""Resilience with explicit slacks, trained by autodiff like the parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked
from unroll_jax.arrays import check_shape
from unroll_jax.constrained.constraints import Constraints
from unroll_jax.constrained.lagrangian import lagrangian
from unroll_jax.constrained.losses import check_optimizer

__all__ = ["SlackDescent", "SlackState", "resilient_lagrangian", "slack_descent"]


class SlackState(NamedTuple):
    """Slacks s >= 0 (constraints,) and the state of the optimiser that moves them.

    Example:
      >>> import optax
      >>> slack_descent(optax.sgd(0.5)).init(2).slacks.tolist()
      [0.0, 0.0]
    """

    slacks: Float[Array, "constraints"]
    opt_state: optax.OptState


class SlackDescent(NamedTuple):
    """The three pure functions that `slack_descent` returns.

    Attributes:
      init: ``num_constraints -> SlackState``, all slacks 0.
      update: ``(state, gradient) -> SlackState``, the gradient that of `resilient_lagrangian` in the slacks.
      restart: ``(state, when=True) -> SlackState``, all slacks 0 where ``when`` (it may be traced) holds.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> descent = slack_descent(optax.sgd(0.5))
      >>> descent.update(descent.init(2), jnp.array([-1.0, 1.0])).slacks.tolist()  # never below 0
      [0.5, 0.0]
    """

    init: Callable[[int], SlackState]
    update: Callable[[SlackState, Float[Array, "constraints"]], SlackState]
    restart: Callable[..., SlackState]


@checked(resilience=POSITIVE)
def resilient_lagrangian(
    layer_losses: Float[Array, "*samples layers_and_one"],
    slacks: Float[Array, "constraints"],
    multipliers: Float[Array, "constraints"],
    constraints: Constraints,
    *,
    resilience: float,
    normalise: bool = False,
) -> Float[Array, ""]:
    r"""The Lagrangian with slacks, :math:`L = f_L + \sum_l \lambda_l (c_l - s_l) + \frac{\beta}{2} |s|^2`.

    Its gradient in the slacks is :math:`\beta s - \lambda`, so that they come to rest at :math:`\lambda / \beta`; there
    the violations left to the dual step, c - s, are `relaxed_violations`: the form that decays the multipliers.

    Args:
      layer_losses: as in `lagrangian`.
      slacks: s >= 0, one for each constraint.
      multipliers: lambda >= 0, one for each constraint; no gradient flows to them.
      constraints: ``layer_losses -> violations``.
      resilience: beta > 0, cost of slack.
      normalise: divide by 1 + sum(lambda), the cost of slack too.

    Returns:
      A scalar.

    Raises:
      ValueError: if resilience is not positive and finite; while tracing, if there is not one multiplier and one slack
        for each constraint.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 34 to 36.

    Example:
      >>> import jax, jax.numpy as jnp, unroll_jax
      >>> constraints = unroll_jax.descent_constraints(0.25)
      >>> losses, slacks, multipliers = jnp.array([4.0, 2.0, 2.0]), jnp.array([0.0, 0.25]), jnp.array([0.0, 2.0])
      >>> value = jax.value_and_grad(resilient_lagrangian, argnums=1)
      >>> total, gradient = value(losses, slacks, multipliers, constraints, resilience=4.0)
      >>> float(total), gradient.tolist()
      (2.625, [0.0, -1.0])
    """
    check_shape("slacks", slacks, jnp.shape(multipliers), ", one a multiplier")
    cost = 0.5 * resilience * jnp.sum(slacks**2)
    if normalise:
        cost = cost / (1.0 + jnp.sum(jax.lax.stop_gradient(multipliers)))

    def relaxed(losses: Array) -> Array:
        return constraints(losses) - slacks

    return lagrangian(layer_losses, multipliers, relaxed, normalise=normalise) + cost


def slack_descent(optimizer: optax.GradientTransformation) -> SlackDescent:
    r"""Projected descent :math:`s \leftarrow [s - \eta \nabla_s L]_+` of the slacks, as autodiff gives the gradient.

    A step of training then is: the gradient of `resilient_lagrangian` in the parameters and the slacks at once, an
    update of each, and ``dual_ascent(...).update(state, violations - slacks)``.

    Slacks rise high at first and fall slowly, so the paper sets them to 0 after every epoch: ``restart``. The state of
    the optimiser, and with it a schedule, is kept.

    Args:
      optimizer: any optax gradient transformation.

    Returns:
      A `SlackDescent`, that is ``(init, update, restart)``.

    Raises:
      TypeError: if optimizer is not an optax gradient transformation.
      ValueError: when called, if num_constraints < 1, or there is not one gradient for each slack.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Appendices A.5 and B.2 (resilience restarts); Hounie et al. (2023).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> init, update, restart = slack_descent(optax.sgd(0.5))
      >>> state = update(init(2), jnp.array([-1.0, 1.0]))
      >>> state.slacks.tolist(), restart(state).slacks.tolist(), restart(state, when=False).slacks.tolist()
      ([0.5, 0.0], [0.0, 0.0], [0.5, 0.0])
    """
    check_optimizer(optimizer)

    @checked(num_constraints=at_least(1))
    def init(num_constraints: int) -> SlackState:
        slacks = jnp.zeros(num_constraints)
        return SlackState(slacks, optimizer.init(slacks))

    def update(state: SlackState, gradient: Float[Array, "constraints"]) -> SlackState:
        check_shape("gradient", gradient, state.slacks.shape, ", one a slack")
        updates, opt_state = optimizer.update(gradient.astype(state.slacks.dtype), state.opt_state, state.slacks)
        moved = optax.apply_updates(state.slacks, updates)
        return SlackState(optax.projections.projection_non_negative(moved), opt_state)

    def restart(state: SlackState, when: Any = True) -> SlackState:
        return state._replace(slacks=jnp.where(when, 0.0, state.slacks))

    return SlackDescent(init, update, restart)
