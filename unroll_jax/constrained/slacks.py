"""Resilience with explicit slacks, trained by autodiff like the parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked
from unroll_jax.constrained.groups import as_violations, check_matching, zeros_like_violations
from unroll_jax.constrained.lagrangian import lagrangian, renamed_call
from unroll_jax.constrained.losses import check_optimizer

__all__ = ["SlackDescent", "SlackState", "resilient_lagrangian", "slack_descent"]


class SlackState(NamedTuple):
    """Slacks s >= 0, of the structure of the violations, and the state of the optimiser that moves them.

    Example:
      >>> import optax
      >>> slack_descent(optax.sgd(0.5)).init(2).slacks.tolist()
      [0.0, 0.0]
    """

    slacks: PyTree[Array]
    opt_state: optax.OptState


class SlackDescent(NamedTuple):
    """The three pure functions that `slack_descent` returns.

    Attributes:
      init: ``violations -> SlackState``, all slacks 0: of any pytree of arrays or shapes, or a number of constraints.
      update: ``(state, gradient) -> SlackState``, the gradient that of `resilient_lagrangian` in the slacks.
      restart: ``(state, when=True) -> SlackState``, all slacks 0 where ``when`` (it may be traced) holds.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> descent = slack_descent(optax.sgd(0.5))
      >>> descent.update(descent.init(2), jnp.array([-1.0, 1.0])).slacks.tolist()  # never below 0
      [0.5, 0.0]
    """

    init: Callable[[Any], SlackState]
    update: Callable[[SlackState, PyTree], SlackState]
    restart: Callable[..., SlackState]


@checked(resilience=POSITIVE)
@renamed_call
def resilient_lagrangian(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    slacks: PyTree,
    multipliers: PyTree,
    *,
    resilience: float,
    normalise: bool = False,
) -> Float[Array, ""]:
    r"""The Lagrangian with slacks, :math:`L = f + \sum_i \lambda_i (c_i - s_i) + \frac{\beta}{2} |s|^2`.

    Its gradient in the slacks is :math:`\beta s - \lambda`, so that they come to rest at :math:`\lambda / \beta`; there
    the violations left to the dual step, c - s, are `relaxed_violations`: the form that decays the multipliers.

    Args:
      objective: f, a scalar.
      violations: c of inequalities, any pytree of arrays.
      slacks: s >= 0, of the structure and shapes of the violations.
      multipliers: lambda >= 0, likewise; no gradient flows to them.
      resilience: beta > 0, cost of slack.
      normalise: divide by 1 + sum(lambda), the cost of slack too.

    Returns:
      A scalar.

    Raises:
      ValueError: if resilience is not positive and finite; while tracing, if slacks, multipliers and violations differ
        in structure or shape.

    Source: Porras-Valenzuela, Hadou, Ribeiro, eqs. 34 to 36.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> violations, slacks, multipliers = jnp.array([-1.0, 0.5]), jnp.array([0.0, 0.25]), jnp.array([0.0, 2.0])
      >>> value = jax.value_and_grad(resilient_lagrangian, argnums=2)
      >>> total, gradient = value(2.0, violations, slacks, multipliers, resilience=4.0)
      >>> float(total), gradient.tolist()
      (2.625, [0.0, -1.0])
    """
    violations, slacks = as_violations("violations", violations), as_violations("slacks", slacks)
    check_matching("slacks", slacks, violations)
    cost = 0.5 * resilience * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(slacks))
    if normalise:
        cost = cost / (1.0 + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(jax.lax.stop_gradient(multipliers))))
    relaxed = jax.tree.map(jnp.subtract, violations, slacks)
    return lagrangian(objective, relaxed, multipliers, normalise=normalise) + cost


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
      ValueError: when called, if violations hold no array, or there is not one gradient for each slack.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Appendices A.5 and B.2 (resilience restarts); Hounie et al. (2023).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> init, update, restart = slack_descent(optax.sgd(0.5))
      >>> state = update(init(2), jnp.array([-1.0, 1.0]))
      >>> state.slacks.tolist(), restart(state).slacks.tolist(), restart(state, when=False).slacks.tolist()
      ([0.5, 0.0], [0.0, 0.0], [0.5, 0.0])
    """
    check_optimizer(optimizer)

    def init(violations: Any) -> SlackState:
        slacks = zeros_like_violations(violations)
        return SlackState(slacks, optimizer.init(slacks))

    def update(state: SlackState, gradient: PyTree) -> SlackState:
        check_matching("gradient", gradient, state.slacks, of="slacks")
        cast = jax.tree.map(lambda g, s: jnp.asarray(g, s.dtype), gradient, state.slacks)
        updates, opt_state = optimizer.update(cast, state.opt_state, state.slacks)
        moved = optax.apply_updates(state.slacks, updates)
        return SlackState(optax.projections.projection_non_negative(moved), opt_state)

    def restart(state: SlackState, when: Any = True) -> SlackState:
        return state._replace(slacks=jax.tree.map(lambda s: jnp.where(when, 0.0, s), state.slacks))

    return SlackDescent(init, update, restart)
