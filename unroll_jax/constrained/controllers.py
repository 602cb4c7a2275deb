"""Controllers of multipliers beyond plain ascent, and rules that raise penalties."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from unroll_jax.arguments import (
    FINITE,
    POSITIVE,
    at_least,
    checked,
    in_interval,
    one_of,
)
from unroll_jax.constrained.trees import RHO, Range, broadcast_option, check_known

__all__ = [
    "IntegralState",
    "PenaltyRule",
    "constant_penalty",
    "growing_penalty",
    "nu_pi",
    "proportional_integral",
]


class IntegralState(NamedTuple):
    """The integral of `proportional_integral`, at least 0.

    `dual_ascent` finds it by this type, and does not take it for equalities.
    """

    integral: optax.Params


class NuPIState(NamedTuple):
    """The moving average of `nu_pi` of the gradient, which is minus the violation.

    Attributes:
      smoothed: the average, of the structure and shapes of the multipliers.
      started: False before a first step like that of SGD.
    """

    smoothed: optax.Params
    started: PyTree[Array]


@checked(proportional_gain=at_least(0.0), cap=POSITIVE, integral_gain=POSITIVE)
def proportional_integral(
    integral_gain: float, proportional_gain: float = 1.0, *, cap: float | None = None
) -> optax.GradientTransformation:
    r"""PI control of multipliers, for `dual_ascent`.

    .. math:: I \leftarrow [I + k_i c]_+ , \qquad \lambda = [I + k_p c]_+ .

    The integral is projected ascent. The proportional part follows the violation at
    once. It damps oscillations and avoids integral wind-up. With
    ``proportional_gain=0`` this is ``optax.sgd(integral_gain)``. Multipliers stay at 0
    or above: for equalities take `nu_pi`. Without a projection both are equal for
    ``nu=0``. A met constraint that comes nearer to its bound keeps its multiplier at 0
    here. `nu_pi` raises it.

    Args:
      integral_gain: k_i > 0, multiplier per unit of violation and step.
      proportional_gain: k_p >= 0, multiplier per unit of violation.
      cap: largest integral and multiplier. None for no bound. The cap of `dual_ascent`
        would not stop the integral.

    Returns:
      An optax transformation of -c. Its update needs ``params``, the multipliers. A
      ValueError names a bad gain or cap.

    Source: Stooke, Achiam, Abbeel (2020), "Responsive safety in reinforcement learning
    by PID Lagrangian methods", Algorithm 2 without the derivative.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> controller = proportional_integral(0.5, proportional_gain=1.0)
      >>> init, update = unroll_jax.dual_ascent(controller)
      >>> state = update(init(1), jnp.array([2.0]))
      >>> state.multipliers.tolist()
      [3.0]
      >>> update(state, jnp.array([0.0])).multipliers.tolist()
      [1.0]
    """

    def move(start: Any, gradient: Any, gain: float) -> Any:
        return jnp.clip(start - gain * gradient, 0.0, cap)

    def init(multipliers: optax.Params) -> IntegralState:
        return IntegralState(jax.tree.map(jnp.copy, multipliers))

    def update(
        gradients: optax.Updates,
        state: IntegralState,
        multipliers: optax.Params | None = None,
    ) -> tuple[optax.Updates, IntegralState]:
        if multipliers is None:
            raise ValueError(
                "proportional_integral needs the multipliers: call update(gradients,"
                " state, multipliers)"
            )
        integral = jax.tree.map(
            lambda i, g: move(i, g, integral_gain), state.integral, gradients
        )
        target = jax.tree.map(
            lambda i, g: move(i, g, proportional_gain), integral, gradients
        )
        updates = jax.tree.map(jnp.subtract, target, multipliers)
        return updates, IntegralState(integral)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


@checked(
    proportional_gain=FINITE,
    nu=in_interval("(-1, 1)"),
    integral_gain=at_least(0.0),
    start=one_of(("zero", "sgd")),
)
def nu_pi(
    integral_gain: float,
    proportional_gain: float = 1.0,
    *,
    nu: float = 0.0,
    start: str = "zero",
) -> optax.GradientTransformation:
    r"""The controller nu-PI: PI control with a moving average of the violation.

    .. math:: \xi_t = \nu \xi_{t-1} + (1 - \nu) c_t , \qquad
        \lambda_{t+1} = [\lambda_t + k_i c_t + k_p (\xi_t - \xi_{t-1})]_+ , \qquad
        \xi_{-1} = 0 .

    `dual_ascent` does the projection. As long as nothing is projected,
    :math:`\lambda_{t+1} = \lambda_0 + k_i \sum_\tau c_\tau + k_p \xi_t`. The state
    holds no integral, so nothing winds up under a cap.

    ``proportional_gain=0`` is ``optax.sgd(integral_gain)``, equal gains with ``nu=0``
    the optimistic gradient method. With :math:`\nu = \beta`,
    :math:`k_i = \eta / (1 - \beta)`, :math:`k_p = - \eta \beta / (1 - \beta)^2` it is
    ``optax.sgd(eta, momentum=beta)``: momentum is a negative proportional gain. It
    oscillates where a positive one damps.

    Args:
      integral_gain: k_i >= 0, multiplier per unit of violation and step. At 0 only
        changes of the violation count.
      proportional_gain: k_p, multiplier per unit of smoothed violation.
      nu: decay of the moving average, in (-1, 1). 0 for none.
      start: "zero" for the average above. "sgd" for :math:`\xi_0 = 0`: the first step
        of a multiplier is :math:`k_i c_0`, as under SGD, and the average starts with
        the second violation.

    Returns:
      An optax gradient transformation, fed -c as `dual_ascent` does. A ValueError names
      a gain or nu out of range.

    Source: Sohrabi et al. (2024), "On PI controllers for updating Lagrange multipliers
    in constrained optimization", Algorithm 1 with xi_0 = (1 - nu) c_0 as in its Theorem
    1; ``start="sgd"`` is its xi_0 = 0, Cooper's default.

    Example:
      >>> import jax.numpy as jnp, unroll_jax
      >>> controller = nu_pi(0.5, proportional_gain=1.0, nu=0.5)
      >>> init, update = unroll_jax.dual_ascent(controller)
      >>> update(init(1), jnp.array([2.0])).multipliers.tolist()
      [2.0]
    """

    def init(multipliers: optax.Params) -> NuPIState:
        started = optax.tree.full_like(multipliers, start == "zero", dtype=bool)
        return NuPIState(optax.tree.zeros_like(multipliers), started)

    def update(
        gradients: optax.Updates,
        state: NuPIState,
        multipliers: optax.Params | None = None,
    ) -> tuple[optax.Updates, NuPIState]:
        del multipliers
        change = jax.tree.map(
            lambda g, old, now: jnp.where(now, (1.0 - nu) * (g - old), 0.0),
            gradients,
            *state,
        )
        updates = jax.tree.map(
            lambda g, d: -(integral_gain * g + proportional_gain * d), gradients, change
        )
        smoothed = jax.tree.map(jnp.add, state.smoothed, change)
        started = optax.tree.full_like(state.started, True)
        return updates, NuPIState(smoothed, started)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


SHARE = in_interval("[0, 1]")


class PenaltyRule(NamedTuple):
    """A rule of penalties: ``init(multipliers)``, and
    ``update(penalty, sizes, previous_sizes)`` of violations' sizes.

    Example:
      >>> import jax.numpy as jnp
      >>> growing_penalty(2.0).init({"gap": jnp.zeros(2)})["gap"].tolist()
      [2.0, 2.0]
    """

    init: Callable[[PyTree[Array]], PyTree[Array]]
    update: Callable[[Any, PyTree[Array], Any], PyTree[Array]]


def constant_penalty(penalty: Any) -> PenaltyRule:
    """Penalties rho > 0 that never change: a number, or a prefix tree of arrays."""
    check_known("penalty", penalty, RHO)

    def init(multipliers: PyTree[Array]) -> PyTree[Array]:
        def fill(multiplier: Array, rho: Any) -> Array:
            # a copy, as a caller may donate the state
            full = jnp.broadcast_to(rho, multiplier.shape)
            return jnp.array(full, multiplier.dtype, copy=True)

        full = broadcast_option("penalty", penalty, multipliers)
        return jax.tree.map(fill, multipliers, full)

    return PenaltyRule(init, lambda rho, sizes, previous: rho)


@checked(
    factor=at_least(1.0),
    increment=at_least(0.0),
    shrinkage=SHARE,
    tolerance=at_least(0.0),
    maximum=POSITIVE,
)
def growing_penalty(
    penalty: Any,
    *,
    factor: float = 2.0,
    increment: float = 0.0,
    shrinkage: float = 0.0,
    tolerance: float = 1e-4,
    maximum: float = 1e6,
) -> PenaltyRule:
    r"""Penalties that grow at every step at which their constraint is violated.

    .. math:: \rho \leftarrow k \rho + d .

    With ``shrinkage`` a penalty whose violation shrank enough stays. Bertsekas' rule is
    ``factor=10, shrinkage=0.25``.

    Args:
      penalty: rho > 0 at the start, one number or a prefix tree.
      factor, increment: k >= 1 and d >= 0. With ``factor=1`` growth is linear.
      shrinkage: share of its last size that a violation must fall below for its penalty
        to stay, in [0, 1].
      tolerance: largest violation that counts as met, in units of the violations.
      maximum: largest penalty.

    Returns:
      A `PenaltyRule` for `dual_ascent`. A ValueError names an option out of range.

    Source: Nocedal and Wright (2006), "Numerical optimization", Framework 17.1; with
    ``shrinkage`` Bertsekas (1999), "Nonlinear programming", Section 4.2.

    Example:
      >>> import jax.numpy as jnp
      >>> rule = growing_penalty(1.0, shrinkage=0.25)
      >>> rule.update(jnp.ones(2), jnp.array([0.5, 0.1]), jnp.ones(2)).tolist()
      [2.0, 1.0]
    """
    most = Range(f"at most maximum={maximum:g}", lambda rho: ~(rho > maximum))
    check_known("penalty", penalty, most)

    def grow(rho: Array, size: Array, last: Array) -> Array:
        grows = size > tolerance
        if shrinkage > 0.0:
            grows &= size > shrinkage * last
        return jnp.where(grows, jnp.minimum(rho * factor + increment, maximum), rho)

    return PenaltyRule(
        constant_penalty(penalty).init,
        lambda rhos, sizes, previous: jax.tree.map(grow, rhos, sizes, previous),
    )
