"""Projected dual ascent on the multipliers, through any optax optimiser."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from unroll_jax.arguments import POSITIVE, at_least, checked, require
from unroll_jax.arrays import check_shape
from unroll_jax.constrained.losses import as_losses, as_numbers, check_each, check_optimizer
from unroll_jax.constrained.schedules import scheduled

__all__ = ["DualAscent", "DualState", "dual_ascent"]


class DualState(NamedTuple):
    """Multipliers lambda >= 0 (constraints,) and the state of the optimiser that raises them.

    Example:
      >>> import optax
      >>> dual_ascent(optax.sgd(0.5)).init(3).multipliers.tolist()
      [0.0, 0.0, 0.0]
    """

    multipliers: Float[Array, "constraints"]
    opt_state: optax.OptState


class DualAscent(NamedTuple):
    """The pair of pure functions that `dual_ascent` returns.

    Attributes:
      init: ``(num_constraints, start=0.0) -> DualState``, every multiplier at ``start`` (one number, or one for each).
      update: ``(state, violations) -> DualState``.

    Example:
      >>> import optax
      >>> ascent = dual_ascent(optax.sgd(0.5))
      >>> ascent.init(2, start=1.0).multipliers.tolist()
      [1.0, 1.0]
    """

    init: Callable[..., DualState]
    update: Callable[[DualState, Float[Array, "constraints"]], DualState]


@checked()
def dual_ascent(
    optimizer: optax.GradientTransformation,
    *,
    resilience: float | None = None,
    every: int = 1,
    smoothing: float = 0.0,
    warmup: int = 0,
    freeze_after: int | None = None,
    frozen: Sequence[int] | bool = (),
    cap: float | Sequence[float] | None = None,
) -> DualAscent:
    r"""Projected ascent :math:`\lambda \leftarrow [\lambda + \eta c]_+` on the dual function.

    The optimiser is given -c as its gradient, so ``optax.sgd(eta)`` is the update above and ``optax.adam(eta)`` the
    paper's. Violations are detached; a call with one that is NaN or infinite changes nothing. With ``resilience`` beta
    the gradient is :math:`c - \lambda / \beta`; under SGD that decays the multipliers,
    :math:`\lambda \leftarrow [(1 - \eta/\beta) \lambda + \eta c]_+`.

    A step an epoch takes no option: call ``update`` once an epoch, with the violations of the mean losses over the
    train set (`add_losses`). With explicit slacks (`slack_descent`) feed it c - s and leave ``resilience`` at None.

    Args:
      optimizer: any optax gradient transformation.
      resilience: beta > 0, cost of slack; None for hard constraints. The decay is fed back to the optimiser: under a
        constant violation c a multiplier comes to rest, at beta c, only if
        :math:`\beta > k_i / 2 + k_p (1 - \nu) / (1 + \nu)`, with nu = 0 for `proportional_integral` and k_i = eta,
        k_p = 0 for SGD. Otherwise it oscillates, or grows without bound. That is not checked.
      every: calls whose violations are averaged for one step of the multipliers; they stay as they are in between.
      smoothing: decay in [0, 1) of an exponential moving average of the violations (of their means over ``every``
        calls), which takes their place; 0 for none.
      warmup: calls at the start that are ignored: multipliers stay where they start, at 0 so that training is plain.
      freeze_after: calls, those of ``warmup`` among them, after which every multiplier stays as it is; None for never.
      frozen: places of the constraints whose multipliers never move, or True for all; they then weigh a fixed penalty.
      cap: largest multiplier, one number or one for each constraint; None for no bound. A controller with an integral
        with a cap must be given it as well (``proportional_integral(..., cap=...)``).

    Returns:
      A `DualAscent`, that is ``(init, update)``.

    Raises:
      ValueError: if an option is out of range; when called, if num_constraints < 1, start is negative or
        does not fit, frozen or cap do not fit it, or there is not one violation for each multiplier.
      TypeError: if optimizer is not an optax gradient transformation.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Algorithm 1 and eq. 38; the options beyond resilience are ours.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> init, update = dual_ascent(optax.sgd(0.5))
      >>> update(init(2), jnp.array([1.0, -1.0])).multipliers.tolist()
      [0.5, 0.0]
      >>> init, update = dual_ascent(optax.sgd(0.5), every=2, cap=1.5)
      >>> state = update(init(2), jnp.array([1.0, 9.0]))
      >>> state.multipliers.tolist(), update(state, jnp.array([3.0, 1.0])).multipliers.tolist()
      ([0.0, 0.0], [1.0, 1.5])
    """
    check_optimizer(optimizer)
    transformation = scheduled(
        optimizer,
        resilience=resilience,
        every=every,
        smoothing=smoothing,
        warmup=warmup,
        freeze_after=freeze_after,
    )
    highest = None if cap is None else as_numbers("cap", cap, POSITIVE, each="constraint")

    @checked(num_constraints=at_least(1))
    def init(num_constraints: int, start: Any = 0.0) -> DualState:
        _frozen_mask(frozen, num_constraints)
        check_each("cap", highest, num_constraints)
        multipliers = jnp.full(num_constraints, _start(start, num_constraints), float)
        return DualState(multipliers, transformation.init(multipliers))

    def update(state: DualState, violations: Float[Array, "constraints"]) -> DualState:
        if not isinstance(state, DualState):
            raise TypeError(f"state must be a DualState of init, got {type(state).__name__}")
        violations = as_losses("violations", violations)
        check_shape("violations", violations, state.multipliers.shape, ", one a multiplier")
        ascent = jax.lax.stop_gradient(violations.astype(state.multipliers.dtype))
        sound = jnp.all(jnp.isfinite(ascent))
        updates, opt_state = transformation.update(-ascent, state.opt_state, state.multipliers)
        raised = optax.projections.projection_non_negative(optax.apply_updates(state.multipliers, updates))
        if highest is not None:
            raised = jnp.minimum(raised, highest.astype(raised.dtype))
        still = _frozen_mask(frozen, raised.size)
        after = DualState(jnp.where(still, state.multipliers, raised) if still.any() else raised, opt_state)
        return jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, state)

    return DualAscent(init, update)


def _frozen_mask(frozen: Sequence[int] | bool, num_constraints: int) -> np.ndarray:
    if isinstance(frozen, bool):
        return np.full(num_constraints, frozen)
    places = all(not isinstance(place, bool | np.bool_) and 0 <= place < num_constraints for place in frozen)
    allowed = f"hold places of constraints in 0..{num_constraints - 1}, or be True or False"
    require(places, "frozen", allowed, frozen)
    return np.isin(np.arange(num_constraints), list(frozen))


def _start(start: Any, num_constraints: int) -> np.ndarray:
    values = as_numbers("start", start, at_least(0.0), each="constraint")
    check_each("start", values, num_constraints)
    return values
