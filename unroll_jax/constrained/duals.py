"""Projected dual ascent on the multipliers, through any optax optimiser."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Int, PyTree

from unroll_jax.arguments import checked
from unroll_jax.constrained.groups import (
    as_violations,
    broadcast_option,
    broadcast_prefix,
    check_kinds,
    check_known,
    check_matching,
    check_sign,
    group_name,
    kept_if_sound,
    known_numbers,
    project,
    zeros_like_violations,
)
from unroll_jax.constrained.penalties import PenaltyRule, constant_penalty, violation_sizes
from unroll_jax.constrained.rows import check_rows, rows_of, set_rows
from unroll_jax.constrained.schedules import scheduled, steps_now

__all__ = ["DualAscent", "DualState", "dual_ascent"]


class DualState(NamedTuple):
    """Multipliers and everything that the next step of them needs; a pytree, which checkpoints as any other.

    Attributes:
      multipliers: lambda, of the structure and shapes of the violations.
      opt_state: state of the optimiser that moves them.
      skipped: number of calls whose violations were not finite; such a call changes nothing else.
      penalty: rho of `augmented_lagrangian`, one for each constraint; None without.
      sizes: sizes of the violations at the last step, by which the penalty's rule decides; None without.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> dual_ascent(optax.sgd(0.5)).init({"gap": jnp.zeros(2)}).multipliers["gap"].tolist()
      [0.0, 0.0]
    """

    multipliers: PyTree[Array]
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    penalty: PyTree[Array] | None = None
    sizes: PyTree[Array] | None = None


@dataclasses.dataclass(frozen=True)
class DualAscent:
    """The two pure functions that `dual_ascent` returns, and their kinds; it unpacks as ``init, update``.

    Attributes:
      init: ``(violations, start=0.0) -> DualState``: violations as any pytree of arrays or shapes, or a number of
        constraints for one vector of them; every multiplier at ``start`` (a number, or a prefix tree).
      update: ``(state, violations, rows=None) -> DualState``. With ``rows``, indices along the first axis, violations
        are those of these constraints only, and only their multipliers move; of an index that occurs twice, one
        violation counts. The optimiser's counters are shared by all rows: Adam and ``smoothing`` do not correct a row
        that first moves late for the bias of its start at 0.
      kinds: those of the constraints, for `primal_dual`.

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


@checked()
def dual_ascent(
    optimizer: Any,
    *,
    kinds: Any = "at_most",
    penalty: Any = None,
    resilience: float | None = None,
    every: int = 1,
    smoothing: float = 0.0,
    warmup: int = 0,
    freeze_after: int | None = None,
    frozen: Any = False,
    cap: Any = None,
    restart: bool = False,
) -> DualAscent:
    r"""Projected ascent :math:`\lambda \leftarrow [\lambda + \eta c]_+` on the dual function.

    The optimiser is given -c as its gradient, so ``optax.sgd(eta)`` is the update above and ``optax.adam(eta)`` the
    paper's. Multipliers of equalities are not projected. Violations are detached; they may be stricter than those in
    the Lagrangian, such as a rate of errors where that has a smooth loss. With ``resilience`` beta the gradient is
    :math:`c - \lambda / \beta`; under SGD that decays the multipliers,
    :math:`\lambda \leftarrow [(1 - \eta/\beta) \lambda + \eta c]_+`.

    Violations that are NaN or infinite are an error if they are known; under `jax.jit` the call changes nothing, and
    ``state.skipped`` counts it.

    A step an epoch takes no option: call ``update`` once an epoch, with the violations of the mean losses over the
    train set (`add_losses`). With explicit slacks (`slack_descent`) feed it c - s and leave ``resilience`` at None.

    Args:
      optimizer: any optax gradient transformation, or a prefix tree with one for each group; None takes the penalty
        as the rate, :math:`\lambda \leftarrow [\lambda + \rho c]_+` (the method of multipliers).
      kinds: "at_most" (c <= 0) or "equal" (c = 0, signed multipliers), one for all constraints or a prefix tree.
      penalty: rho > 0 of `augmented_lagrangian`, kept in ``state.penalty``: a number, a prefix tree of numbers, or a
        rule such as `bertsekas_penalty` that raises it on calls that move the multipliers; None without.
      resilience: beta > 0, cost of slack; None for hard constraints. The decay is fed back to the optimiser: under a
        constant violation c a multiplier comes to rest, at beta c, only if
        :math:`\beta > k_i / 2 + k_p (1 - \nu) / (1 + \nu)`, with nu = 0 for `proportional_integral` and k_i = eta,
        k_p = 0 for SGD. Otherwise it oscillates, or grows without bound. That is not checked.
      every: calls whose violations are averaged for one step of the multipliers; they stay as they are in between.
      smoothing: decay in [0, 1) of an exponential moving average of the violations (of their means over ``every``
        calls), which takes their place; 0 for none.
      warmup: calls at the start that are ignored: multipliers stay where they start, at 0 so that training is plain.
      freeze_after: calls, those of ``warmup`` among them, after which every multiplier stays as it is; None for never.
      frozen: multipliers that never move and so weigh a fixed penalty: True for all, or a prefix tree of booleans or
        arrays of booleans.
      cap: largest |multiplier|, one number or a prefix tree of numbers or arrays; None for no bound. A controller with
        a cap must be given it as well (``proportional_integral(..., cap=...)``).
      restart: set the multiplier of an inequality to 0 on calls that move it and find it met, so that it stops
        pushing at once.

    Returns:
      A `DualAscent`, which unpacks as ``init, update``.

    Raises:
      ValueError: if an option is out of range; when called, if start is negative for an inequality, an
        option does not fit the groups, or violations and multipliers differ in structure or shape.
      TypeError: if optimizer is not an optax gradient transformation.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Algorithm 1 and eq. 38. Kinds, strict violations and restarts are those
    of Cooper (Gallego-Posada et al., 2025).

    Example:
      >>> import jax.numpy as jnp, optax
      >>> init, update = dual_ascent(optax.sgd(0.5), kinds={"gap": "at_most", "sum": "equal"})
      >>> violations = {"gap": jnp.array([1.0, -1.0]), "sum": jnp.array(-2.0)}
      >>> state = update(init(violations), violations)
      >>> state.multipliers["gap"].tolist(), state.multipliers["sum"].tolist()
      ([0.5, 0.0], -1.0)
      >>> init, update = dual_ascent(optax.sgd(0.5), every=2, cap=1.5)
      >>> state = update(init(2), jnp.array([1.0, 9.0]))
      >>> state.multipliers.tolist(), update(state, jnp.array([3.0, 1.0])).multipliers.tolist()
      ([0.0, 0.0], [1.0, 1.5])
    """
    rule = penalty if isinstance(penalty, PenaltyRule) or penalty is None else constant_penalty(penalty)
    if optimizer is None and rule is None:
        raise TypeError(
            "optimizer must be an optax gradient transformation such as optax.sgd(0.1), got None, which needs a penalty"
        )
    _check_optimizers(optimizer)
    check_known("cap", cap, lambda value: (value > 0.0) & (value < np.inf), "positive and finite")
    options: dict[str, Any] = {
        "resilience": resilience,
        "every": every,
        "smoothing": smoothing,
        "warmup": warmup,
        "freeze_after": freeze_after,
    }
    scheduled(optax.identity(), **options)  # checks the options

    def transformation(multipliers: PyTree[Array]) -> optax.GradientTransformation:
        return scheduled(_by_group(optimizer, multipliers), **options)

    def limits(multipliers: PyTree[Array]) -> tuple[PyTree, PyTree]:
        return _caps(cap, multipliers), _still(frozen, multipliers)

    def init(violations: Any, start: Any = 0.0) -> DualState:
        zeros = zeros_like_violations(violations)
        kind = check_kinds(kinds, zeros)
        starts = broadcast_option("start", start, zeros)
        multipliers = jax.tree.map_with_path(_started, zeros, starts, kind)
        limits(multipliers)
        first = None if rule is None else rule.init(multipliers)
        sizes = None if rule is None else jax.tree.map(lambda m: jnp.full_like(m, jnp.inf), multipliers)
        return DualState(
            multipliers, transformation(multipliers).init(multipliers), jnp.zeros((), jnp.int32), first, sizes
        )

    def update(state: DualState, violations: Any, rows: Any = None) -> DualState:
        if not isinstance(state, DualState):
            raise TypeError(f"state must be a DualState of init, got {type(state).__name__}")
        state = jax.tree.map(jnp.asarray, state)  # a checkpoint may hold NumPy's
        if rows is None:
            return step(state, violations, *limits(state.multipliers))
        check_rows(rows, state.multipliers)
        some = [
            jax.tree.map(lambda one: jnp.asarray(one)[rows] if one.ndim else one, tree)
            for tree in limits(state.multipliers)
        ]
        part = step(rows_of(state, rows, transformation(state.multipliers)), violations, *some)
        return set_rows(state, rows, part, transformation(state.multipliers))

    def step(state: DualState, violations: Any, caps: PyTree, still: PyTree) -> DualState:
        ascent = _finite("violations", as_violations("violations", violations))
        check_matching("violations", ascent, state.multipliers, of="multipliers")
        ascent = jax.tree.map(lambda c, m: jax.lax.stop_gradient(c).astype(m.dtype), ascent, state.multipliers)
        kind = check_kinds(kinds, ascent)
        check_sign(state.multipliers, kind)
        moved, opt_state = _moved(state, ascent, optimizer is None, transformation)
        moved = project(moved, kind)
        due = steps_now(state.opt_state, **options)
        if restart:
            met = jax.tree.map(lambda c, k: False if k == "equal" else due & (c <= 0.0), ascent, kind)
            moved = jax.tree.map(lambda m, now: jnp.where(now, 0.0, m), moved, met)
        if cap is not None:
            moved = jax.tree.map(lambda m, high: jnp.clip(m, -high, high), moved, caps)
        if frozen is not False:
            moved = jax.tree.map(jnp.where, still, state.multipliers, moved)
        after = DualState(moved, opt_state, state.skipped, state.penalty, state.sizes)
        if rule is not None:
            sizes = violation_sizes(ascent, kind)
            raised = rule.update(state.penalty, sizes, state.sizes), sizes
            penalty_now, sizes_now = jax.tree.map(lambda new, old: jnp.where(due, new, old), raised, after[3:])
            after = after._replace(penalty=penalty_now, sizes=sizes_now)
        return kept_if_sound(ascent, after, state)

    return DualAscent(init, update, kinds)


def _moved(
    state: DualState, ascent: PyTree[Array], by_penalty: bool, transformation: Callable[[Any], Any]
) -> tuple[PyTree[Array], Any]:
    """Multipliers before the projection, and the state of their optimiser."""
    updates, opt_state = transformation(state.multipliers).update(
        jax.tree.map(jnp.negative, ascent), state.opt_state, state.multipliers
    )
    if by_penalty:  # the optimiser passes schedules on, with a rate of 1
        updates = jax.tree.map(jnp.multiply, updates, state.penalty)
    return optax.apply_updates(state.multipliers, updates), opt_state


def _by_group(optimizer: Any, multipliers: PyTree[Array]) -> optax.GradientTransformation:
    """One transformation of all multipliers, from one for each group."""
    if optimizer is None:
        return optax.sgd(1.0)
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    parts, structure = jax.tree.flatten(optimizer, is_leaf=_is_transformation)
    labels = broadcast_prefix("optimizer", jax.tree.unflatten(structure, range(len(parts))), multipliers)
    return optax.partition(dict(enumerate(parts)), labels)


def _check_optimizers(optimizer: Any) -> None:
    for path, part in jax.tree.leaves_with_path(optimizer, is_leaf=_is_transformation):
        if not _is_transformation(part):
            name = group_name("optimizer", path)
            raise TypeError(f"{name} must be an optax gradient transformation such as optax.sgd(0.1), got {part!r}")


def _is_transformation(value: Any) -> bool:
    return isinstance(value, optax.GradientTransformation)


def _started(path: Any, zeros: Array, start: Any, kind: str) -> Array:
    """Multipliers at their start."""
    name = group_name("start", path)
    values = known_numbers(name, start)
    if not np.all(np.isfinite(values)) or (kind == "at_most" and np.any(values < 0.0)):
        allowed = "finite" if kind == "equal" else "finite and at least 0, as multipliers of inequalities are"
        raise ValueError(f"{name} must be {allowed}, got {start}")
    return zeros + jnp.asarray(values, zeros.dtype)


def _finite(name: str, violations: PyTree[Array]) -> PyTree[Array]:
    for path, leaf in jax.tree.leaves_with_path(violations):
        known = not isinstance(leaf, Tracer) and leaf.is_fully_addressable
        if known and not np.all(np.isfinite(leaf)):
            raise ValueError(f"{group_name(name, path)} must be finite, got {leaf}; lower the learning rate")
    return violations


def _caps(cap: Any, multipliers: PyTree[Array]) -> PyTree[np.ndarray]:
    caps = broadcast_option("cap", jnp.inf if cap is None else cap, multipliers)
    return jax.tree.map(lambda m, high: np.asarray(high, m.dtype), multipliers, caps)


def _still(frozen: Any, multipliers: PyTree[Array]) -> PyTree[np.ndarray]:
    masks = broadcast_option("frozen", frozen, multipliers)
    for path, mask in jax.tree.leaves_with_path(masks):
        if np.asarray(mask).dtype != bool:
            where = group_name("frozen", path)
            raise TypeError(f"{where} must be True, False, or an array of booleans, got {mask!r}")
    return jax.tree.map(np.asarray, masks)
