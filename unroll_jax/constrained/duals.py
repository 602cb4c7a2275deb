"""Projected dual ascent on the multipliers, through any optax optimiser."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int, PyTree

from unroll_jax.arguments import POSITIVE, checked, require
from unroll_jax.constrained import trees
from unroll_jax.constrained.controllers import (
    IntegralState,
    PenaltyRule,
    constant_penalty,
)
from unroll_jax.constrained.points import check_rows, owners, rows_of, set_rows
from unroll_jax.summaries import summary

__all__ = ["DualAscent", "DualState", "dual_ascent"]

NOT_DIVERGED = trees.FINITE._replace(
    allowed="finite (lower the learning rate if training diverges)"
)


class DualState(NamedTuple):
    """Multipliers and everything that their next step needs, as a pytree.

    Attributes:
      multipliers: lambda, of the structure and shapes of the violations.
      opt_state: state of the optimiser that moves them.
      skipped: number of calls whose violations were not finite. Such a call changes
        nothing else.
      penalty: rho of `lagrangian`, one for each constraint. None without.
      sizes: sizes of the violations at the last step, by which the penalty's rule
        decides. None without.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> state = dual_ascent(optax.sgd(0.5)).init({"gap": jnp.zeros(2)})
      >>> state.multipliers["gap"].tolist()
      [0.0, 0.0]
    """

    multipliers: PyTree[Array]
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    penalty: PyTree[Array] | None = None
    sizes: PyTree[Array] | None = None

    def __repr__(self) -> str:
        """Prints by name how many multipliers are not 0, and the largest of them."""
        return summary(self, self._lines)

    def _lines(self) -> list[str]:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.multipliers)]
        names = trees.leaf_names("multipliers", self.multipliers)
        lines = [
            f"{name}: {np.count_nonzero(leaf)} of {leaf.size} not 0, largest"
            f" {np.abs(leaf).max(initial=0.0):.4g}"
            for name, leaf in zip(names, leaves, strict=True)
        ]
        return [*lines, f"skipped calls: {int(np.sum(self.skipped))}"]


@dataclasses.dataclass(frozen=True)
class DualAscent:
    """The two pure functions of `dual_ascent`, which unpack as ``init, update``.

    Attributes:
      init: ``(violations, start=0.0) -> DualState``: violations as any pytree of arrays
        or shapes, or a number of constraints for one vector of them. Every multiplier
        at ``start`` (a number, or a prefix tree).
      update: ``(state, violations, rows=None) -> DualState``. With ``rows``, indices
        along the first axis, violations have these rows only, and only their
        multipliers move. Of a repeated index, one violation counts. All rows share the
        optimiser's counters: Adam and ``optax.ema`` do not correct the bias of a row
        that first moves late.
      kinds: as in `dual_ascent`, for `primal_dual`.

    Example:
      >>> import optax
      >>> ascent = dual_ascent(optax.sgd(0.5))
      >>> ascent.init(2, start=1.0).multipliers.tolist()
      [1.0, 1.0]
    """

    init: Callable[..., DualState]
    update: Callable[..., DualState]
    kinds: Any = "at_most"

    def __iter__(self) -> Iterator[Callable[..., DualState]]:
        """Yields ``init`` and ``update``."""
        return iter((self.init, self.update))


@checked(resilience=POSITIVE)
def dual_ascent(
    optimizer: optax.GradientTransformation | None,
    *,
    kinds: Any = "at_most",
    penalty: Any = None,
    resilience: float | None = None,
    cap: Any = None,
    restart: bool = False,
) -> DualAscent:
    r"""Projected ascent on the dual function, by any optax optimiser.

    .. math:: \lambda \leftarrow [\lambda + \eta c]_+

    The optimiser is given -c as its gradient, so ``optax.sgd(eta)`` is the update above
    and ``optax.adam(eta)`` the paper's. Multipliers of equalities are not projected.
    Violations are detached. They may be strict ones, such as a rate of errors, for
    which the Lagrangian has a smooth loss. With ``resilience`` beta the gradient is
    :math:`c - \lambda / \beta`. Under SGD that decays the multipliers,
    :math:`\lambda \leftarrow [(1 - \eta/\beta) \lambda + \eta c]_+`.

    Averages, steps in several calls, groups, masks and warm-up are compositions of
    optax:

    .. code-block:: python

        # on a moving average of the violations
        dual_ascent(optax.chain(optax.ema(0.9), optax.sgd(0.1)))
        # one step on the mean of four calls
        dual_ascent(optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation())
        # still for 100 calls
        warm = lambda step, **_: step >= 100
        dual_ascent(optax.conditionally_mask(optax.sgd(0.1), warm))
        # one rate for each group
        rates = {"fast": optax.sgd(0.1), "slow": optax.sgd(0.01)}
        dual_ascent(optax.partition(rates, {"gap": "fast", "norm": "slow"}))

    Violations that are NaN or infinite are an error if they are known. Under `jax.jit`
    the call changes nothing, and ``state.skipped`` counts it. With explicit slacks (of
    `lagrangian`) pass c - s, and no ``resilience``.

    Args:
      optimizer: any optax gradient transformation. None takes the penalty as the rate,
        :math:`\lambda \leftarrow [\lambda + \rho c]_+` (the method of multipliers).
      kinds: "at_most" (c <= 0) or "equal" (c = 0, signed multipliers), one for all
        constraints or a prefix tree.
      penalty: rho > 0 of `lagrangian`, kept in ``state.penalty``: a number, a
        prefix tree of numbers, or a rule such as `growing_penalty` that raises it. None
        without.
      resilience: beta > 0, cost of slack. None for hard constraints. The decay is fed
        back to the optimiser: under a constant violation c a multiplier comes to rest,
        at beta c, only if :math:`\beta > k_i / 2 + k_p (1 - \nu) / (1 + \nu)`, with nu
        = 0 for `proportional_integral` and k_i = eta, k_p = 0 for SGD. Otherwise it
        oscillates, or grows without bound. That is not checked.
      cap: largest |multiplier|, one number or a prefix tree of numbers or arrays. None
        for no bound. A controller with a cap must be given it as well
        (``proportional_integral(..., cap=...)``).
      restart: at a call that finds an inequality met, set its multiplier to 0 and what
        the optimiser keeps of it (moments, integrals) to its start. `optax.flatten`
        joins these, and keeps them. Restarts and the penalty's rule act at every call,
        except while an ``optax.MultiSteps`` waits for more.

    Returns:
      A `DualAscent`, which unpacks as ``init, update``.

    Raises:
      ValueError: if an option is out of range. When called, if two constraints have one
        name, start is negative for an inequality, an option does not fit the groups, or
        violations and multipliers differ in structure or shape.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Algorithm 1 and eq. 38. Kinds, strict
    violations and restarts follow Cooper (Gallego-Posada et al., 2025).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> kinds = {"gap": "at_most", "sum": "equal"}
      >>> init, update = dual_ascent(optax.sgd(0.5), kinds=kinds)
      >>> violations = {"gap": jnp.array([1.0, -1.0]), "sum": jnp.array(-2.0)}
      >>> state = update(init(violations), violations)
      >>> state.multipliers["gap"].tolist(), state.multipliers["sum"].tolist()
      ([0.5, 0.0], -1.0)
    """
    rule = penalty
    if penalty is not None and not isinstance(penalty, PenaltyRule):
        rule = constant_penalty(penalty)
    ascent = _ascent(optimizer, rule, resilience)
    options = _Options(ascent, kinds, rule, optimizer is None, restart, cap is not None)
    trees.check_known("cap", cap, trees.RHO)

    def init(violations: Any, start: Any = 0.0) -> DualState:
        zeros = trees.zeros_like_violations(violations)
        kind = trees.check_kinds(kinds, zeros)
        starts = trees.broadcast_option("start", start, zeros)
        trees.check_known("start", starts, trees.FINITE)
        starts = trees.check_signs(starts, kind, "start")
        multipliers = jax.tree.map(
            lambda z, one: z + jnp.asarray(one, z.dtype), zeros, starts
        )
        _caps(cap, multipliers)
        opt_state = ascent.init(multipliers)
        _check_signed(opt_state, kind)
        state = DualState(multipliers, opt_state, jnp.zeros((), jnp.int32))
        if rule is None:
            return state
        sizes = optax.tree.full_like(multipliers, jnp.inf)
        return state._replace(penalty=rule.init(multipliers), sizes=sizes)

    def update(state: DualState, violations: Any, rows: Any = None) -> DualState:
        if not isinstance(state, DualState):
            raise TypeError(
                f"state must be a DualState of init, got {type(state).__name__}"
            )
        state = jax.tree.map(jnp.asarray, state)  # a checkpoint may hold NumPy's
        caps = _caps(cap, state.multipliers)
        if rows is None:
            return _step(options, state, violations, caps)
        check_rows(rows, state.multipliers)
        some = jax.tree.map(
            lambda one: jnp.asarray(one)[rows] if one.ndim else one, caps
        )
        part = _step(options, rows_of(state, rows, ascent), violations, some)
        return set_rows(state, rows, part, ascent)

    return DualAscent(init, update, kinds)


class _Options(NamedTuple):
    """Options of a step of the multipliers."""

    ascent: optax.GradientTransformation
    kinds: Any
    rule: PenaltyRule | None
    by_penalty: bool
    restart: bool
    capped: bool


def _step(
    options: _Options, state: DualState, violations: Any, caps: PyTree
) -> DualState:
    """The state after one step, with a cap for each leaf."""
    ascent, kinds, rule = options.ascent, options.kinds, options.rule
    values = trees.as_violations("violations", violations)
    trees.check_known("violations", values, NOT_DIVERGED)
    trees.check_matching("violations", values, state.multipliers, of="multipliers")
    values = jax.tree.map(
        lambda c, m: jax.lax.stop_gradient(c).astype(m.dtype),
        values,
        state.multipliers,
    )
    kind = trees.check_kinds(kinds, values)
    state = state._replace(multipliers=trees.check_signs(state.multipliers, kind))
    slope = jax.tree.map(jnp.negative, values)
    # optax's own counters mix dtypes
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = ascent.update(slope, state.opt_state, state.multipliers)
    if options.by_penalty:  # SGD with a rate of 1
        updates = jax.tree.map(jnp.multiply, updates, state.penalty)
    multipliers = trees.project(optax.apply_updates(state.multipliers, updates), kind)
    due = _is_due(opt_state)
    if options.restart:
        met = jax.tree.map(
            lambda c, k: False if k == "equal" else due & (c <= 0.0), values, kind
        )
        multipliers = jax.tree.map(
            lambda m, now: jnp.where(now, 0.0, m), multipliers, met
        )
        opt_state = _reset(ascent, opt_state, multipliers, met)
    if options.capped:
        multipliers = jax.tree.map(
            lambda m, high: jnp.clip(m, -high, high), multipliers, caps
        )
    after = state._replace(multipliers=multipliers, opt_state=opt_state)
    if rule is not None:
        sizes = trees.violation_sizes(values, kind)
        after = _update_penalty(rule, after, sizes, due)
    return trees.keep_if_finite(values, after, state)


def _ascent(
    optimizer: Any, rule: PenaltyRule | None, resilience: float | None
) -> optax.GradientTransformation:
    """The optimiser, on the gradient c - lambda / beta of the resilient dual."""
    if optimizer is not None or rule is None:
        ending = ", which needs a penalty" if optimizer is None else ""
        trees.check_optimizer(
            "optimizer", optimizer, f"{ending}; for one per group take optax.partition"
        )
    inner = optax.sgd(1.0) if optimizer is None else optimizer
    if resilience is None:
        return inner
    return optax.chain(optax.add_decayed_weights(1.0 / resilience), inner)


def _update_penalty(
    rule: PenaltyRule, state: DualState, sizes: PyTree[Array], due: Any
) -> DualState:
    """The state with the rule's penalty and the sizes, if the multipliers moved."""
    penalty = rule.update(state.penalty, sizes, state.sizes)
    penalty, sizes = jax.tree.map(
        lambda new, old: jnp.where(due, new, old),
        (penalty, sizes),
        (state.penalty, state.sizes),
    )
    return state._replace(penalty=penalty, sizes=sizes)


def _check_signed(opt_state: Any, kind: PyTree[str]) -> None:
    """Checks that no PI controller moves multipliers of equalities, in any wrapper."""
    kinds = dict(jax.tree.leaves_with_path(kind))
    got = "proportional_integral, whose multipliers are at least 0"
    for state in trees.states_of(IntegralState, opt_state):
        # `optax.flatten` joins multipliers under a path that has no kind.
        moved = {
            kinds.get(path) for path, _ in jax.tree.leaves_with_path(state.integral)
        }
        fits = "equal" not in kinds.values() or moved <= {"at_most"}
        require(fits, "optimizer", "be one for equalities such as nu_pi", got)


def _reset(
    ascent: optax.GradientTransformation,
    opt_state: Any,
    multipliers: PyTree,
    met: PyTree,
) -> Any:
    """Resets the optimiser's state of multipliers whose constraints are met.

    Their momentum or integral would move them at the next call.
    """
    owner, numbers = owners(ascent, multipliers)
    by_number = dict(zip(jax.tree.leaves(numbers), jax.tree.leaves(met), strict=True))
    fresh = ascent.init(jax.tree.map(jnp.zeros_like, multipliers))

    def restart(owner: int, old: Array, new: Array) -> Array:
        return old if owner < 0 else jnp.where(by_number[owner], new, old)

    return jax.tree.map(restart, owner, opt_state, fresh)


def _is_due(opt_state: Any) -> bool | Bool[Array, ""]:
    """False at calls at which an ``optax.MultiSteps`` waits for more."""
    waiting = trees.states_of(optax.MultiStepsState, opt_state)
    if not waiting:
        return True
    return jnp.all(jnp.stack([state.mini_step == 0 for state in waiting]))


def _caps(cap: Any, multipliers: PyTree[Array]) -> PyTree[np.ndarray]:
    caps = trees.broadcast_option("cap", jnp.inf if cap is None else cap, multipliers)
    return jax.tree.map(lambda m, high: np.asarray(high, m.dtype), multipliers, caps)
