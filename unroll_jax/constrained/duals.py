"""Projected dual ascent on the multipliers, through any optax optimiser."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from unroll_jax.constrained.resilience import check_resilience, relaxed_violations

__all__ = ["DualAscent", "DualState", "dual_ascent"]


class DualState(NamedTuple):
    """Multipliers lambda >= 0 (constraints,) and the state of the optimiser that raises them."""

    multipliers: Float[Array, "constraints"]
    opt_state: optax.OptState


class DualAscent(NamedTuple):
    """The pair of pure functions that `dual_ascent` returns.

    Attributes:
      init: ``num_constraints -> DualState``, all multipliers 0.
      update: ``(state, violations) -> DualState``.
    """

    init: Callable[[int], DualState]
    update: Callable[[DualState, Float[Array, "constraints"]], DualState]


def dual_ascent(optimizer: optax.GradientTransformation, *, resilience: float | None = None) -> DualAscent:
    r"""Projected ascent :math:`\lambda \leftarrow [\lambda + \eta c]_+` on the dual function.

    The optimiser is given -c as its gradient, so ``optax.sgd(eta)`` is the update above and ``optax.adam(eta)`` the
    paper's. Violations are detached. With ``resilience`` beta the gradient is :math:`c - \lambda / \beta`; under SGD
    that decays the multipliers, :math:`\lambda \leftarrow [(1 - \eta/\beta) \lambda + \eta c]_+`.

    Args:
      optimizer: any optax gradient transformation.
      resilience: beta > 0, cost of slack; None for hard constraints.

    Returns:
      A `DualAscent`, that is ``(init, update)``.

    Raises:
      ValueError: if resilience is not positive and finite; when called, if num_constraints < 1, or there is not one
        violation for each multiplier.
      TypeError: if optimizer is not an optax gradient transformation.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Algorithm 1 and eq. 38.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> init, update = dual_ascent(optax.sgd(0.5))
      >>> update(init(2), jnp.array([1.0, -1.0])).multipliers.tolist()
      [0.5, 0.0]
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer must be an optax gradient transformation such as optax.sgd(0.1), got {optimizer!r}")
    if resilience is not None:
        check_resilience(resilience)

    def init(num_constraints: int) -> DualState:
        if num_constraints < 1:
            raise ValueError(f"num_constraints must be at least 1, got {num_constraints}")
        multipliers = jnp.zeros(num_constraints)
        return DualState(multipliers, optimizer.init(multipliers))

    def update(state: DualState, violations: Float[Array, "constraints"]) -> DualState:
        if jnp.shape(violations) != state.multipliers.shape:
            raise ValueError(
                f"violations must have shape {state.multipliers.shape}, one a multiplier, got {jnp.shape(violations)}"
            )
        ascent = jax.lax.stop_gradient(violations)
        if resilience is not None:
            ascent = relaxed_violations(ascent, state.multipliers, resilience)
        updates, opt_state = optimizer.update(-ascent, state.opt_state, state.multipliers)
        raised = optax.apply_updates(state.multipliers, updates)
        return DualState(optax.projections.projection_non_negative(raised), opt_state)

    return DualAscent(init, update)
