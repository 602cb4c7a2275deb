"""Descent of parameters beyond the gradient of a Lagrangian: proximal smoothing and switching subgradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from unroll_jax.arguments import POSITIVE, checked, in_interval
from unroll_jax.constrained import trees

__all__ = ["proximal_smoothing", "switching_objective"]


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

    The term makes the inner problem of a weakly convex objective strongly convex, so noisy primal-dual steps converge.
    With an augmented Lagrangian it is SSL-ALM, the stochastic smoothed and linearised augmented Lagrangian method:

    .. code-block:: python

        dual = dual_ascent(optax.sgd(dual_rate), penalty=rho)
        optimizer = primal_dual(proximal_smoothing(optax.sgd(rate)), dual, violations=violations)

    Args:
      optimizer: any optax gradient transformation.
      weight: mu > 0, one over the squared length over which the objective is smoothed.
      rate: beta in (0, 1], share of the way that the centre moves to the parameters at each step.

    Returns:
      An optax gradient transformation; its update needs ``params``. A ValueError names a weight or rate out of range.

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
    trees.check_optimizer("optimizer", optimizer)
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


def switching_objective(
    objective: Float[Array, ""] | float,
    violations: PyTree,
    *,
    kinds: Any = "at_most",
    tolerance: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:
    r"""The loss of the switching subgradient method: the worst violation while it exceeds a tolerance, else f.

    It needs no multipliers. Its iterates come within the tolerance of the constraints; let an optax schedule lower it.

    Args:
      objective, violations: f, a scalar, and c, any pytree of arrays.
      kinds: as in `dual_ascent`; of an equality the violation is |c|.
      tolerance: largest violation at which the step is on the objective, at least 0; it may be traced.

    Returns:
      A scalar to differentiate; exactly one of the two parts has a gradient. NaN if either part is. A ValueError names
      an objective that is not a scalar, an unknown kind, and a negative tolerance.

    Source: Huang, Lin, "Oracle complexity of single-loop switching subgradient methods for non-smooth weakly convex
    functional constrained optimization" (2023), Algorithm 1; Polyak (1967).

    Example:
      >>> import jax.numpy as jnp
      >>> [float(switching_objective(5.0, {"gap": jnp.array(gap)}, tolerance=0.1)) for gap in (0.5, 0.05)]
      [0.5, 5.0]
    """
    objective = trees.as_scalar("objective", objective)
    violations = trees.as_violations("violations", violations)
    sizes = trees.violation_sizes(violations, trees.check_kinds(kinds, violations))
    worst = jnp.max(jnp.stack([jnp.max(leaf, initial=0.0) for leaf in jax.tree.leaves(sizes)]))
    trees.check_known("tolerance", tolerance, lambda value: value >= 0.0, "at least 0")
    tolerance = trees.as_scalar("tolerance", tolerance)
    sound = (tolerance >= 0.0) & ~jnp.isnan(objective) & ~jnp.isnan(worst)
    return trees.nan_unless(sound, jnp.where(worst > tolerance, worst, objective))
