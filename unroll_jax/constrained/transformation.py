"""Constraints for any optax loop: both updates as one gradient transformation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from unroll_jax.arguments import checked, one_of, require
from unroll_jax.constrained.duals import DualAscent, DualState
from unroll_jax.constrained.lagrangian import lagrangian
from unroll_jax.constrained.points import take_rows
from unroll_jax.constrained.trees import check_optimizer, states_of

__all__ = ["PrimalDualState", "multipliers_of", "primal_dual"]

ORDERS = ("simultaneous", "primal_dual", "dual_primal", "extragradient")


class PrimalDualState(NamedTuple):
    """State of `primal_dual`: of the primal optimiser, and of the multipliers."""

    primal: optax.OptState
    dual: DualState


Problem = Callable[[Any], tuple[Array, PyTree] | tuple[Array, PyTree, PyTree]]


@checked(order=one_of(ORDERS))
def primal_dual(
    primal: optax.GradientTransformation,
    dual: DualAscent,
    *,
    violations: Any,
    start: Any = 0.0,
    order: str = "simultaneous",
) -> optax.GradientTransformationExtraArgs:
    r"""An optax optimiser under constraints, with the multipliers in its state.

    The training loss becomes
    ``lagrangian(objective, violations, multipliers_of(opt_state))``, and the update is

    .. code-block:: python

        updates, opt_state = optimizer.update(
            gradient, opt_state, params, violations=violations
        )

    In the default order, "simultaneous", ``primal`` moves the parameters by the
    gradient, and ``dual`` the multipliers by the violations of this call. The other
    orders evaluate the problem again, so the update gets ``problem=`` in place of the
    violations, a function ``params -> (objective, violations)``, or
    ``(objective, violations, strict)`` with strict violations for the multipliers:

    - "primal_dual": the multipliers follow the violations at the new parameters.
    - "dual_primal": the multipliers move first, and the parameters descend the
      Lagrangian at the new ones.
    - "extragradient": both take a trial step, and then the step from here with the
      gradients found there. The primal optimiser keeps the moments of its trial, as
      ExtraAdam does, so its schedules count two updates per step.

    Complex parameters take the conjugate of `jax.grad`, as in optax. Orders that take
    ``problem`` conjugate themselves.

    For one step on several calls put ``optax.MultiSteps`` around ``primal`` and around
    the optimiser of ``dual``. Around `primal_dual` it would pass on only the last
    call's violations: `multipliers_of` takes no such state.

    With a multiplier per data point the update gets their ``rows=``, the Lagrangian
    ``take_rows(multipliers, rows)``.

    Args:
      primal: optimiser of the parameters.
      dual: ascent of the multipliers, from `dual_ascent`. Its penalty makes the
        Lagrangian the augmented one.
      violations: arrays or shapes like the violations, or a number of constraints:
        multipliers are made like them.
      start: initial multipliers, a number or a prefix tree of numbers or arrays.
      order: one of these.

    Returns:
      An optax transformation. ``init(params)`` gives a `PrimalDualState`. Its update
      raises a ValueError unless it gets exactly the argument, violations or problem, of
      its order.

    Source: orders as in Cooper (Gallego-Posada et al., 2025); extragradient:
    Korpelevich (1976); with moments: Gidel et al., "A variational inequality
    perspective on generative adversarial networks" (2019), Algorithm 4.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from unroll_jax import dual_ascent, lagrangian
      >>> dual = dual_ascent(optax.sgd(0.5), kinds="equal")
      >>> optimizer = primal_dual(optax.sgd(0.2), dual, violations=jnp.zeros(()))
      >>> params = jnp.array([1.0, -1.0])
      >>> def loss(params, multipliers):
      ...     violations = params[0] + params[1] - 1.0
      ...     return lagrangian(jnp.sum(params**2), violations, multipliers), violations
      >>> state = optimizer.init(params)
      >>> slope = jax.grad(loss, has_aux=True)
      >>> for _ in range(100):
      ...     gradient, missed = slope(params, multipliers_of(state))
      ...     updates, state = optimizer.update(
      ...         gradient, state, params, violations=missed
      ...     )
      ...     params = optax.apply_updates(params, updates)
      >>> params.round(3).tolist(), round(float(multipliers_of(state)), 3)
      ([0.5, 0.5], -1.0)
    """
    check_optimizer("primal", primal)
    if not isinstance(dual, DualAscent):
        raise TypeError(f"dual must be a dual_ascent(...), got {dual!r}")
    primal = optax.with_extra_args_support(primal)

    # optax's own counters mix dtypes
    def descend(*given: Any, **extra: Any) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return primal.update(*given, **extra)

    def init(params: optax.Params) -> PrimalDualState:
        return PrimalDualState(primal.init(params), dual.init(violations, start))

    slope = functools.partial(_lagrangian_gradient, dual.kinds)

    def update(
        gradient: optax.Updates,
        state: PrimalDualState,
        params: optax.Params | None = None,
        *,
        violations: PyTree | None = None,
        problem: Problem | None = None,
        rows: Any = None,
        **extra: Any,
    ) -> tuple[optax.Updates, PrimalDualState]:
        _check_given(order, violations, problem)
        duals, moments = state.dual, state.primal
        if order == "simultaneous":
            updates, moments = descend(gradient, moments, params, **extra)
            duals = dual.update(duals, violations, rows)
            return updates, PrimalDualState(moments, duals)
        if problem is None or params is None:
            raise ValueError(f"params must be given in order {order!r}, got None")
        if order != "primal_dual":
            violations = problem(params)[-1]
        if order == "dual_primal":
            duals = dual.update(duals, violations, rows)
            gradient, _ = slope(problem, params, duals, rows)
        elif order == "extragradient":
            trial, moments = descend(gradient, moments, params, **extra)
            ahead = dual.update(duals, violations, rows)
            gradient, violations = slope(
                problem, optax.apply_updates(params, trial), ahead, rows
            )
        updates, opt_state = descend(gradient, moments, params, **extra)
        if order == "primal_dual":
            violations = problem(optax.apply_updates(params, updates))[-1]
        if order != "dual_primal":
            duals = dual.update(duals, violations, rows)
        return updates, PrimalDualState(opt_state, duals)

    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


def _lagrangian_gradient(
    kinds: Any, problem: Problem, params: optax.Params, duals: DualState, rows: Any
) -> tuple[optax.Updates, PyTree]:
    """The gradient of the Lagrangian as optax takes it, and the strict violations."""
    prices, penalty = duals.multipliers, duals.penalty
    if rows is not None:
        prices, penalty = take_rows((prices, penalty), rows)

    def value(params: optax.Params) -> tuple[Array, PyTree]:
        objective, smooth, *strict = problem(params)
        loss = lagrangian(objective, smooth, prices, penalty=penalty, kinds=kinds)
        return loss, strict[0] if strict else smooth

    gradient, strict = jax.grad(value, has_aux=True)(params)
    # of complex parameters, the direction that optax descends
    return jax.tree.map(jnp.conj, gradient), strict


def _check_given(order: str, violations: Any, problem: Any) -> None:
    """Checks that an update got the one argument of its order."""
    wanted = "violations" if order == "simultaneous" else "problem"
    way_out = f"call update(gradient, state, params, {wanted}={wanted})"
    for name, value in {"violations": violations, "problem": problem}.items():
        given = value is not None
        needed = name == wanted
        allowed = f"{'be given' if needed else 'be left out'} in order {order!r}"
        got = "one" if given else "none"
        require(given == needed, name, allowed, got, way_out)


def multipliers_of(opt_state: Any) -> PyTree[Array]:
    """Returns the multipliers in the state of `primal_dual`.

    The state may be within that of `optax.chain`, `flax.nnx.Optimizer` and the like.

    A ValueError says if there are none, or `optax.MultiSteps` around `primal_dual`
    drops all violations but the last.

    Example: see `primal_dual`.
    """
    for outer in states_of(optax.MultiStepsState, opt_state, within=[DualState]):
        wrong = "one whose MultiSteps averages gradients and not violations"
        inside = (
            "put optax.MultiSteps inside, around primal and around the optimiser of"
            " dual"
        )
        require(
            not states_of(DualState, outer.inner_opt_state),
            "opt_state",
            "be of a primal_dual(...)",
            wrong,
            inside,
        )
    states = states_of(DualState, opt_state)
    require(
        len(states) == 1,
        "opt_state",
        "hold the state of one primal_dual(...)",
        f"{len(states)} of them",
    )
    return jax.tree.map(_plain, states[0].multipliers, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    """A variable of flax.nnx, in which its optimiser keeps every array of the state."""
    return hasattr(leaf, "get_value")


def _plain(leaf: Any) -> Any:
    return leaf.get_value() if _is_variable(leaf) else leaf
