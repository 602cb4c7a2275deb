"""Descent of slacks and of parameters beyond the gradient of a Lagrangian: slacks, proximal smoothing, switching."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked, in_interval
from unroll_jax.constrained.trees import (
    as_losses,
    as_violations,
    check_kinds,
    check_known,
    check_matching,
    check_optimizer,
    nan_unless,
    violation_sizes,
    zeros_like_violations,
)

__all__ = ["SlackDescent", "SlackState", "proximal_smoothing", "slack_descent", "switching_objective"]


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
        cast = jax.tree.map(lambda g, s: g.astype(s.dtype), as_violations("gradient", gradient), state.slacks)
        updates, opt_state = optimizer.update(cast, state.opt_state, state.slacks)
        moved = optax.apply_updates(state.slacks, updates)
        return SlackState(optax.projections.projection_non_negative(moved), opt_state)

    def restart(state: SlackState, when: Any = True) -> SlackState:
        return state._replace(slacks=jax.tree.map(lambda s: jnp.where(when, 0.0, s), state.slacks))

    return SlackDescent(init, update, restart)


class SmoothingState(NamedTuple):
    """State of `proximal_smoothing`: the centre z, and the state of the optimiser."""

    centre: optax.Params
    opt_state: optax.OptState


@checked(weight=POSITIVE, rate=in_interval("(0, 1]"))
def proximal_smoothing(
    optimizer: optax.GradientTransformation, *, weight: float = 2.0, rate: float = 0.5
) -> optax.GradientTransformationExtraArgs:
    r"""An optimiser that stays near a slowly moving centre: gradients of the Moreau envelope.

    .. math:: g \leftarrow g + \mu (x - z) , \qquad z \leftarrow z + \beta (x - z) .

    The term makes the inner problem of a weakly convex objective strongly convex, so that primal-dual steps with noisy
    gradients converge. With an augmented Lagrangian it is SSL-ALM, the stochastic smoothed and linearised augmented
    Lagrangian method:

    .. code-block:: python

        dual = dual_ascent(optax.sgd(dual_rate), penalty=rho)
        optimizer = primal_dual(proximal_smoothing(optax.sgd(rate)), dual, violations=violations)

    Args:
      optimizer: any optax gradient transformation.
      weight: mu > 0, one over the squared length over which the objective is smoothed.
      rate: beta in (0, 1], share of the way that the centre moves to the parameters at each step.

    Returns:
      An optax gradient transformation; its update needs ``params``.

    Raises:
      ValueError: if weight or rate is out of range.

    Source: Huang, Zhang, Alacaoglu, "Stochastic smoothed primal-dual algorithms for nonconvex optimization with linear
    inequality constraints" (2025), Algorithm 1; Zhang, Luo (2020), "A proximal alternating direction method of
    multiplier for linearly constrained nonconvex minimization".

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = proximal_smoothing(optax.sgd(0.5), weight=1.0, rate=0.5)
      >>> params = jnp.array([2.0])
      >>> updates, state = optimizer.update(jnp.array([1.0]), optimizer.init(params), params)
      >>> updates.tolist(), state.centre.tolist()
      ([-0.5], [1.75])
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: optax.Params) -> SmoothingState:
        return SmoothingState(jax.tree.map(jnp.copy, params), inner.init(params))

    def update(
        gradient: optax.Updates, state: SmoothingState, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, SmoothingState]:
        if params is None:
            raise ValueError("proximal_smoothing needs the parameters: call update(gradient, state, params)")
        pulled = jax.tree.map(lambda g, x, z: g + weight * (x - z), gradient, params, state.centre)
        updates, opt_state = inner.update(pulled, state.opt_state, params, **extra)
        new = optax.apply_updates(params, updates)
        centre = jax.tree.map(lambda z, x: z + rate * (x - z), state.centre, new)
        return updates, SmoothingState(centre, opt_state)

    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


@checked()
def switching_objective(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    *,
    kinds: Any = "at_most",
    tolerance: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:
    r"""The loss of the switching subgradient method: the worst violation while it exceeds a tolerance, else f.

    It needs no multipliers, and its iterates come within the tolerance of the constraints. Take a tolerance that falls,
    such as an optax schedule of the step.

    Args:
      objective: f, a scalar.
      violations: c, any pytree of arrays.
      kinds: as in `dual_ascent`; of an equality the violation is |c|.
      tolerance: largest violation at which the step is on the objective, at least 0; it may be traced.

    Returns:
      A scalar to differentiate; exactly one of the two parts has a gradient. NaN if either part is.

    Raises:
      TypeError: if the objective or violations do not hold real numbers.
      ValueError: if objective is not a scalar, a kind is unknown, or tolerance is negative.

    Source: Huang, Lin, "Oracle complexity of single-loop switching subgradient methods for non-smooth weakly convex
    functional constrained optimization" (2023), Algorithm 1; Polyak (1967).

    Example:
      >>> import jax.numpy as jnp
      >>> [float(switching_objective(5.0, {"gap": jnp.array(gap)}, tolerance=0.1)) for gap in (0.5, 0.05)]
      [0.5, 5.0]
    """
    objective = as_losses("objective", objective)
    if objective.ndim:
        raise ValueError(f"objective must be a scalar, got shape {objective.shape}")
    violations = as_violations("violations", violations)
    sizes = violation_sizes(violations, check_kinds(kinds, violations))
    worst = jnp.max(jnp.stack([jnp.max(leaf, initial=0.0) for leaf in jax.tree.leaves(sizes)]))
    check_known("tolerance", tolerance, lambda value: value >= 0.0, "at least 0")
    sound = (jnp.asarray(tolerance) >= 0.0) & ~jnp.isnan(objective) & ~jnp.isnan(worst)
    return nan_unless(sound, jnp.where(worst > tolerance, worst, objective))
